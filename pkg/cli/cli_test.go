// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/maps"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fakeEnvironment reads r instead of pinned maps.
func fakeEnvironment(r maps.Reader) environment {
	return environment{
		openMaps:  func(string) (maps.Reader, func(), error) { return r, func() {}, nil },
		monotonic: func() uint64 { return fixtureNow },
		netns: func(pid int) (uint64, []netip.Addr, error) {
			if pid != podPID {
				return 0, nil, fmt.Errorf("find the network namespace of process %d: there is no such process", pid)
			}
			return podCookie, []netip.Addr{netip.MustParseAddr("10.244.1.8")}, nil
		},
		datapath: func(string) (explain.Datapath, error) {
			return explain.Datapath{
				Hooks:             []string{"connect4", "connect6", "sendmsg4", "sendmsg6"},
				NodeCookie:        nodeCookie,
				NodeAddresses:     []netip.Addr{netip.MustParseAddr("10.0.0.1")},
				LoopbackNodePorts: true,
				SetRetval:         true,
				ReadKernel:        true,
			}, nil
		},
	}
}

// invoke runs a command line against the fixture.
func invoke(t *testing.T, env environment, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), env, args, &out, &errs)
	return out.String(), errs.String(), status
}

func TestOutputOfEachCommand(t *testing.T) {
	t.Parallel()
	env := fakeEnvironment(newFixture(t))
	for _, line := range []string{
		"services",
		"services -o wide",
		"services -o json",
		"services -o yaml",
		"services -n kube-system",
		"services default/shop",
		"services --service web -o wide",
		"backends",
		"backends -o wide",
		"backends -o json",
		"backends -o yaml",
		"backends default/web",
		"affinity",
		"affinity -o wide",
		"affinity -o json",
		"affinity -o yaml",
		"affinity -n prod",
		"affinity -n prod -o json",
		"explain 10.96.0.10:80",
		"explain 10.96.0.10:80 -o json",
		"explain 10.96.0.10:80 -o yaml",
		"explain 10.96.0.10:81",
		"explain 10.96.0.2:53/udp --from pid:321",
		"explain 10.96.0.6:80",
		"explain 127.0.0.1:30080",
		"explain 10.0.0.1:30080 --from external",
		"explain 192.0.2.20:443 --from 10.244.1.9",
		"explain 192.0.2.20:443",
		"explain default/shop",
		"explain prod/edge:https",
	} {
		runGolden(t, env, line, line)
	}
}

func TestOutputWithThePacketPath(t *testing.T) {
	t.Parallel()
	env := fakeEnvironment(newPacketFixture(t))
	for _, line := range []string{
		"conntrack",
		"conntrack -o wide",
		"conntrack -o json",
		"conntrack -o yaml",
		"conntrack --expired",
		"conntrack --client 198.51.100.8",
		"conntrack --client 198.51.100.0/29 default/web",
		"conntrack --backend 10.244.1.5:8080",
		"conntrack --backend 10.244.2.7",
		"conntrack default/shop -o json",
		"services default/web -o wide",
		"services default/web -o json",
	} {
		runGolden(t, env, line, line+" with packets")
	}
}

// runGolden runs a command line in parallel with others, and compares what it prints.
func runGolden(t *testing.T, env environment, line, golden string) {
	t.Helper()
	t.Run(line, func(t *testing.T) {
		t.Parallel()
		stdout, stderr, status := invoke(t, env, strings.Fields(line)...)
		if status != 0 || stderr != "" {
			t.Fatalf("status %d, stderr %q", status, stderr)
		}
		checkSyntax(t, line, stdout)
		compareGolden(t, golden, stdout)
	})
}

// checkSyntax parses what claims to be JSON or YAML.
func checkSyntax(t *testing.T, line, output string) {
	t.Helper()
	var document any
	if strings.HasSuffix(line, "-o json") {
		if err := json.Unmarshal([]byte(output), &document); err != nil {
			t.Error(err)
		}
	}
	if strings.HasSuffix(line, "-o yaml") {
		if err := yaml.UnmarshalStrict([]byte(output), &document); err != nil {
			t.Error(err)
		}
	}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", strings.Map(func(r rune) rune {
		if strings.ContainsRune(" /:[]", r) {
			return '_'
		}
		return r
	}, name)+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("output differs from %s (-update writes it anew):\n%s", file, got)
	}
}

func TestErrorsSayWhatToDoAndExitWithOne(t *testing.T) {
	t.Parallel()
	works := fakeEnvironment(newFixture(t))
	closed := works
	closed.openMaps = func(dir string) (maps.Reader, func(), error) {
		return nil, nil, fmt.Errorf("open maps in %s: %w", dir, maps.ErrNotPinned)
	}
	broken := works
	broken.datapath = func(string) (explain.Datapath, error) {
		return explain.Datapath{}, errors.New("find the attached programs: no permission")
	}
	for _, tc := range []struct {
		env  environment
		line string
		want string
	}{
		{closed, "services --bpffs /run/bpf", "open maps in /run/bpf/shunt: nothing is pinned here"},
		{closed, "explain 10.96.0.1:80", "open maps in /sys/fs/bpf/shunt: nothing is pinned here"},
		{broken, "affinity", "find the attached programs"},
		{broken, "explain 10.96.0.1:80", "find the attached programs"},
		{works, "services nowhere/web", "find Service nowhere/web: none of that name is programmed here"},
		{works, "backends nobody", "find Service nobody: none of that name"},
		{works, "affinity -n default --service kube-dns", "find Service default/kube-dns"},
		{works, "services default/web --service default/shop", "give one"},
		{works, "services -n prod default/web", "not in the namespace \"prod\""},
		{works, "services default/", "is not NAMESPACE/NAME"},
		{works, "services -o xml", "give one of table, wide, json, yaml"},
		{works, "explain 10.96.0.1:80 -o wide", "give one of text, json, yaml"},
		{works, "explain 10.96.0.1:80 --from nobody", "give node, external, a pod's address"},
		{works, "explain 10.96.0.1:80 --from pid:9", "there is no such process"},
		{works, "explain", "accepts 1 arg(s), received 0"},
		{works, "explain default/nothing", "find Service default/nothing: none of that name is programmed here"},
		{works, "explain default/web:grpc", "find Service default/web: it has no port \"grpc\" here"},
		{works, "conntrack", "the packet path has never been on here"},
		{works, "conntrack --client here", "\"here\" is neither an ADDRESS nor ADDRESS/BITS"},
		{works, "conntrack --backend :80", "\":80\" is neither an ADDRESS nor ADDRESS:PORT"},
		{works, "translate", "unknown command \"translate\""},
		{works, "services --wide", "unknown flag: --wide"},
	} {
		t.Run(tc.line, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, status := invoke(t, tc.env, strings.Fields(tc.line)...)
			if status != 1 || stdout != "" {
				t.Errorf("status %d, stdout %q", status, stdout)
			}
			if !strings.HasPrefix(stderr, "shunt: ") || !strings.Contains(stderr, tc.want) {
				t.Errorf("stderr %q does not contain %q", stderr, tc.want)
			}
			if strings.Count(strings.TrimSpace(stderr), "\n") > 0 {
				t.Errorf("more than one line: %q", stderr)
			}
		})
	}
}

func TestAServiceWithoutANameIsShownByItsID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.must(f.DeleteServiceNames([]uint32{webID}))
	env := fakeEnvironment(f)
	stdout, _, status := invoke(t, env, "services")
	if status != 0 || !strings.Contains(stdout, "(service id 1)") {
		t.Errorf("status %d:\n%s", status, stdout)
	}
	stdout, _, _ = invoke(t, env, "services", "-n", "default")
	if strings.Contains(stdout, "(service id 1)") {
		t.Errorf("shown although no namespace is known:\n%s", stdout)
	}
}

func TestEmptyMapsGiveEmptyLists(t *testing.T) {
	t.Parallel()
	env := fakeEnvironment(maps.NewFake(nil))
	for _, command := range []string{"services", "backends", "affinity"} {
		stdout, _, status := invoke(t, env, command, "-o", "json")
		if status != 0 || stdout != "[]\n" {
			t.Errorf("%s: status %d, %q", command, status, stdout)
		}
	}
}

func TestReadErrorsReachTheUser(t *testing.T) {
	t.Parallel()
	env := fakeEnvironment(failing{newFixture(t)})
	for _, line := range []string{"services", "backends", "affinity", "explain default/web"} {
		_, stderr, status := invoke(t, env, strings.Fields(line)...)
		if status != 1 || !strings.Contains(stderr, "read map service_names: out of memory") {
			t.Errorf("%s: status %d, stderr %q", line, status, stderr)
		}
	}
}

// failing fails to read service_names.
type failing struct{ *fixture }

func (failing) ServiceNames() iter.Seq2[maps.Entry[uint32, maps.ServiceName], error] {
	return func(yield func(maps.Entry[uint32, maps.ServiceName], error) bool) {
		yield(maps.Entry[uint32, maps.ServiceName]{}, errors.New("read map service_names: out of memory"))
	}
}

func TestTenThousandServicesAreListed(t *testing.T) {
	t.Parallel()
	f := maps.NewFake(nil)
	fixture := &fixture{Fake: f, t: t}
	const n = 10_000
	for i := range uint32(n) {
		fixture.name(i+1, fmt.Sprintf("ns-%d", i%50), fmt.Sprintf("svc-%d", i), "http", 6, 4)
		fixture.service(fmt.Sprintf("10.%d.%d.%d:80", 96+i>>16, i>>8&255, i&255), maps.Service{ServiceID: i + 1, Kind: 1})
	}
	stdout, stderr, status := invoke(t, fakeEnvironment(f), "services", "-o", "json")
	var rows []serviceRow
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || status != 0 {
		t.Fatalf("status %d, %v, %s", status, err, stderr)
	}
	if len(rows) != n {
		t.Errorf("%d rows, want %d", len(rows), n)
	}
}
