// SPDX-License-Identifier: Apache-2.0

package config

import (
	"io/fs"
	"log/slog"
	"maps"
	"strings"
	"testing"
)

// fakeFiles are the kernel's settings; those in readOnly cannot be written.
type fakeFiles struct {
	content  map[string]string
	readOnly map[string]bool
	order    []string
}

func (f *fakeFiles) ReadFile(name string) ([]byte, error) {
	if content, ok := f.content[name]; ok {
		return []byte(content), nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func (f *fakeFiles) WriteFile(name string, data []byte) error {
	if f.readOnly[name] {
		return &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	f.content[name] = string(data)
	f.order = append(f.order, name)
	return nil
}

func newFakeFiles() *fakeFiles {
	return &fakeFiles{readOnly: map[string]bool{}, content: map[string]string{
		conntrackMaxFile:  "262144\n",
		conntrackHashFile: "65536\n",
		conntrackSysctls + "nf_conntrack_tcp_timeout_established": "432000\n",
		conntrackSysctls + "nf_conntrack_tcp_timeout_close_wait":  "60\n",
		conntrackSysctls + "nf_conntrack_tcp_be_liberal":          "0\n",
		conntrackSysctls + "nf_conntrack_udp_timeout":             "30\n",
		conntrackSysctls + "nf_conntrack_udp_timeout_stream":      "120\n",
	}}
}

func TestConntrackSettingsAreAppliedAsKubeProxyAppliesThem(t *testing.T) {
	for _, row := range []struct {
		args string
		cpus int
		want map[string]string // file name -> new content; nothing else is written
	}{
		{args: "", cpus: 8},
		{args: "--conntrack-min=9999999", cpus: 8}, // the minimum counts only beside a number per core
		{args: "--conntrack-max-per-core=10", cpus: 8},
		{args: "--conntrack-max-per-core=65536", cpus: 8,
			want: map[string]string{conntrackHashFile: "131072", conntrackMaxFile: "524288"}},
		{args: "--conntrack-max-per-core=65536 --conntrack-min=2000000", cpus: 8,
			want: map[string]string{conntrackHashFile: "500000", conntrackMaxFile: "2000000"}},
		{args: "--conntrack-max-per-core=65536 --conntrack-min=2000000", cpus: 100,
			want: map[string]string{conntrackHashFile: "262144", conntrackMaxFile: "1048576"}},
		{args: "--conntrack-tcp-timeout-established=24h --conntrack-tcp-timeout-close-wait=1h " +
			"--conntrack-tcp-be-liberal --conntrack-udp-timeout=10s --conntrack-udp-timeout-stream=2m",
			want: map[string]string{
				conntrackSysctls + "nf_conntrack_tcp_timeout_established": "86400",
				conntrackSysctls + "nf_conntrack_tcp_timeout_close_wait":  "3600",
				conntrackSysctls + "nf_conntrack_tcp_be_liberal":          "1",
				conntrackSysctls + "nf_conntrack_udp_timeout":             "10",
			}},
	} {
		cfg, _, err := load(t, "", strings.Fields(row.args)...)
		if err != nil {
			t.Fatal(err)
		}
		files, want := newFakeFiles(), newFakeFiles().content
		maps.Copy(want, row.want)
		if err := cfg.ApplySysctls(files, row.cpus, slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("%s: %v", row.args, err)
		}
		if !maps.Equal(files.content, want) || len(files.order) != len(row.want) {
			t.Errorf("%s on %d CPUs: wrote %q; now %q, want %q", row.args, row.cpus, files.order, files.content, want)
		}
	}
}

func TestTheNumberOfCPUsIsTheNodes(t *testing.T) {
	for list, want := range map[string]string{"0-3,8\n": "500000", "0\n": "262144\n", "all\n": "300000", "3-1": "300000"} {
		cfg, _, err := load(t, "", "--conntrack-max-per-core=100000")
		if err != nil {
			t.Fatal(err)
		}
		files := newFakeFiles()
		files.content[onlineCPUsFile] = list
		if err := cfg.ApplySysctls(files, 3, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
		if got := files.content[conntrackMaxFile]; got != want {
			t.Errorf("CPUs %q: nf_conntrack_max %q, want %q", list, got, want)
		}
	}
}

func TestASettingThatWasAskedForMustSucceedAndADefaultNeedNot(t *testing.T) {
	const file = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	closeWait := conntrackSysctls + "nf_conntrack_tcp_timeout_close_wait"
	for _, row := range []struct {
		name, file string
		args       []string
		fails      bool
	}{
		{name: "default", file: file},
		{name: "file", file: file + "conntrack: {tcpCloseWaitTimeout: 1h}", fails: true},
		{name: "flag over default", file: file, args: []string{"--conntrack-tcp-timeout-close-wait=1h"}, fails: true},
		{name: "flag", args: []string{"--conntrack-tcp-timeout-close-wait=1h"}, fails: true},
	} {
		cfg, _, err := load(t, row.file, row.args...)
		if err != nil {
			t.Fatal(err)
		}
		files := newFakeFiles()
		files.readOnly[closeWait] = true
		var log strings.Builder
		err = cfg.ApplySysctls(files, 2, slog.New(slog.NewTextHandler(&log, nil)))
		if (err != nil) != row.fails {
			t.Errorf("%s: ApplySysctls = %v, want failure %t", row.name, err, row.fails)
		}
		if row.fails && !strings.Contains(err.Error(), "--conntrack-tcp-timeout-close-wait") {
			t.Errorf("%s: error %v does not name the flag", row.name, err)
		}
		if !row.fails && !strings.Contains(log.String(), "conntrack-tcp-timeout-close-wait") {
			t.Errorf("%s: log %q does not name the flag", row.name, log.String())
		}
		if files.content[closeWait] != "60\n" {
			t.Errorf("%s: written to a read-only file", row.name)
		}
	}
}

func TestTheOOMScoreIsThatOfTheConfiguration(t *testing.T) {
	cfg := Default()
	files := newFakeFiles()
	if err := cfg.ApplyOOMScore(files); err != nil || files.content["/proc/self/oom_score_adj"] != "-999" {
		t.Errorf("ApplyOOMScore = %v, wrote %q", err, files.content["/proc/self/oom_score_adj"])
	}
	files.readOnly["/proc/self/oom_score_adj"] = true
	if err := cfg.ApplyOOMScore(files); err == nil || !strings.Contains(err.Error(), "-999") {
		t.Errorf("ApplyOOMScore = %v, want an error that names the value", err)
	}
}
