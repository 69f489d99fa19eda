// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/doctor"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// doctorFacts is a node with one failure, if bad, and warnings.
func doctorFacts(bad bool) doctor.Facts {
	return doctor.Facts{
		Capabilities: 1<<64 - 1,
		Kernel:       doctor.Version{Major: 6, Minor: 1, Release: "6.1.0-28-amd64"},
		CgroupRoot:   "/sys/fs/cgroup",
		BPFFS:        "/sys/fs/bpf",
		BPFFSMounted: !bad,
		Pins:         "/sys/fs/bpf/shunt",
		MapsErr:      maps.ErrNotPinned,
	}
}

func TestDoctorExitsWithOneOnlyWhenACheckFails(t *testing.T) {
	t.Parallel()
	for _, bad := range []bool{false, true} {
		env := environment{gather: func(context.Context, doctor.Options) doctor.Facts { return doctorFacts(bad) }}
		stdout, stderr, status := invoke(t, env, "doctor")
		if bad {
			compareGolden(t, "doctor", stdout)
			if status != 1 || stderr != "shunt: 1 check failed: see FAIL above\n" {
				t.Errorf("status %d, stderr %q", status, stderr)
			}
		} else if status != 0 || stderr != "" || !strings.Contains(stdout, "WARN") {
			t.Errorf("status %d, stderr %q:\n%s", status, stderr, stdout)
		}
	}
}

func TestDoctorPrintsJSONAndAsksWhereItIsTold(t *testing.T) {
	t.Parallel()
	var asked doctor.Options
	env := environment{gather: func(_ context.Context, o doctor.Options) doctor.Facts {
		asked = o
		return doctorFacts(false)
	}}
	stdout, stderr, status := invoke(t, env, "doctor", "-o", "json", "--bpffs", "/run/bpf",
		"--healthz-address", "[::1]:1")
	var report doctor.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || status != 0 {
		t.Fatalf("%v, status %d, stderr %q", err, status, stderr)
	}
	if len(report.Findings) == 0 || report.Findings[0].Check != "privileges" {
		t.Errorf("findings %+v", report.Findings)
	}
	want := doctor.Options{Proc: "/proc", BPFFS: "/run/bpf", Pins: "/run/bpf/shunt", HealthURL: "http://[::1]:1/livez"}
	if asked != want {
		t.Errorf("asked for %+v", asked)
	}
}

func TestCleanupSaysWhatItDid(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, line string
		err        error
		removed    []string // by kube-proxy's cleanup
		stdout     string
		stderr     string
	}{
		{"removed", "cleanup", nil, nil, "removed shunt's programs and maps from /sys/fs/bpf/shunt\n", ""},
		{"nothing there", "cleanup", errNothingPinned, nil, "shunt has left nothing in /sys/fs/bpf/shunt\n", ""},
		{"an agent runs", "cleanup", fmt.Errorf("lock: %w", loader.ErrLocked), nil, "",
			"shunt: clean up: lock: another agent is running on this node: stop it first (or use --force)\n"},
		{"no permission", "cleanup --force", loader.ErrPermission, nil, "", "shunt: clean up: no permission: run this as root"},
		{"kube-proxy", "cleanup --kube-proxy", nil, []string{"removed the nftables table ip kube-proxy"},
			"removed the nftables table ip kube-proxy\n", ""},
		{"kube-proxy was never here", "cleanup --kube-proxy", nil, nil, "kube-proxy has left nothing here\n", ""},
		{"kube-proxy in part", "cleanup --kube-proxy", errors.New("remove chains: install iptables"), []string{"removed one"},
			"removed one\n", "shunt: remove chains: install iptables\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			env := environment{clean: cleaner{
				shunt: func(bpffs string, force bool) error {
					if bpffs != "/sys/fs/bpf" || force != strings.Contains(tc.line, "--force") {
						t.Errorf("bpffs %s, force %v", bpffs, force)
					}
					return tc.err
				},
				kubeProxy: func(_ context.Context, report func(string)) error {
					for _, what := range tc.removed {
						report(what)
					}
					return tc.err
				},
			}}
			stdout, stderr, status := invoke(t, env, strings.Fields(tc.line)...)
			if stdout != tc.stdout || !strings.HasPrefix(stderr, tc.stderr) || (status == 0) != (tc.stderr == "") {
				t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
			}
		})
	}
}
