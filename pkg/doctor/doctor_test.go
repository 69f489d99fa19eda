// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/kubeproxy"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// healthy is a node on which all is well.
func healthy() Facts {
	f := Facts{
		Capabilities: 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON | 1<<unix.CAP_NET_ADMIN,
		Kernel:       Version{Major: 6, Minor: 12, Release: "6.12.9-amd64"},
		Features: []Feature{
			{Name: "required things", Since: "5.8", Need: "nothing works", Required: true},
			{Name: "wanted things", Since: "5.18", Need: "less works"},
		},
		CgroupRoot:   "/sys/fs/cgroup",
		BPFFS:        "/sys/fs/bpf",
		BPFFSMounted: true,
		Pins:         "/sys/fs/bpf/shunt",
		Holder:       4242,
		Health:       Health{URL: "http://127.0.0.1:10256/livez", Status: 200},
		Usage: map[string]maps.Usage{
			maps.MapServices: {Used: 10, Capacity: 100}, maps.MapBackends: {Used: 30, Capacity: 100},
			maps.MapAffinity: {Used: 100, Capacity: 100}, maps.MapMeta: {Used: 1, Capacity: 1},
			maps.MapDrops: {Used: 64, Capacity: 64}, maps.MapServiceStats: {Used: 100, Capacity: 100},
		},
	}
	for _, h := range hooks() {
		f.Links = append(f.Links, Link{Program: "sock_" + h.name, Hook: h.name, Cgroup: "/sys/fs/cgroup", Root: true})
	}
	return f
}

func TestAHealthyNodePassesEveryCheck(t *testing.T) {
	t.Parallel()
	r := Examine(healthy())
	for _, f := range r.Findings {
		if f.Status != Pass || f.Message == "" || f.Advice != "" {
			t.Errorf("%+v", f)
		}
	}
	if r.Failures() != 0 {
		t.Errorf("%d failures", r.Failures())
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		harm   func(*Facts)
		check  string
		status Status
		says   string // in message or advice
	}{
		{"no privileges", func(f *Facts) { f.Capabilities = 0 }, wordPrivileges, Fail,
			"missing CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN"},
		{"one privilege missing", func(f *Facts) { f.Capabilities &^= 1 << unix.CAP_PERFMON }, wordPrivileges, Fail,
			"missing CAP_PERFMON;"},
		{"CAP_SYS_ADMIN does not contain CAP_NET_ADMIN", func(f *Facts) { f.Capabilities = 1 << unix.CAP_SYS_ADMIN },
			wordPrivileges, Fail, "missing CAP_NET_ADMIN;"},
		{"CAP_SYS_ADMIN contains the others",
			func(f *Facts) { f.Capabilities = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN }, wordPrivileges, Pass, ""},
		{"privileges unknown", func(f *Facts) { f.CapabilitiesErr = errors.New("no /proc") }, wordPrivileges, Fail, "no /proc"},
		{"kernel too old", func(f *Facts) { f.Kernel = Version{5, 10, "5.10.0"} }, wordKernel, Fail,
			"upgrade to Linux 5.14 or later"},
		{"no BTF", func(f *Facts) { f.BTFErr = errors.New("not found") }, wordBTF, Fail, "CONFIG_DEBUG_INFO_BTF=y"},
		{"required feature missing", func(f *Facts) { f.Features[0].Err = errors.ErrUnsupported }, wordFeature, Fail,
			"no required things: nothing works"},
		{"wanted feature missing", func(f *Facts) { f.Features[1].Err = errors.ErrUnsupported }, wordFeature, Warn,
			"it needs Linux 5.18 or later"},
		{"feature with advice of its own",
			func(f *Facts) { f.Features[1].Err, f.Features[1].Advice = errors.ErrUnsupported, "give it CAP_PERFMON" },
			wordFeature, Warn, "give it CAP_PERFMON"},
		{"feature that cannot be tried",
			func(f *Facts) { f.Features[0].Err, f.Features[0].Unknown = errors.New("not permitted"), true },
			wordFeature, Warn, "cannot tell: not permitted"},
		{"no cgroup v2", func(f *Facts) { f.CgroupErr = fmt.Errorf("find: %w", attach.ErrNoCgroup) }, wordCgroup, Fail,
			"mount -t cgroup2"},
		{"cgroups cannot be read", func(f *Facts) { f.CgroupErr = errors.New("no mountinfo") }, wordCgroup, Fail, "no mountinfo"},
		{"no bpffs", func(f *Facts) { f.BPFFSMounted = false }, wordBPFFS, Fail, "mount -t bpf bpf /sys/fs/bpf"},
		{"bpffs cannot be read", func(f *Facts) { f.BPFFSErr = errors.New("not a directory") }, wordBPFFS, Fail, "--bpffs"},
		{"no agent", func(f *Facts) { f.Holder = 0 }, wordAgent, Warn, "what is programmed goes on working"},
		{"nothing at all", func(f *Facts) { f.Holder, f.MapsErr = 0, maps.ErrNotPinned }, wordAgent, Warn,
			"nothing is programmed"},
		{"agent unknown", func(f *Facts) { f.HolderErr = errors.New("no locks") }, wordAgent, Warn, "no locks"},
		{"agent is silent", func(f *Facts) { f.Health = Health{URL: "http://x/", Err: errors.New("refused")} }, wordHealth,
			Warn, "--healthz-bind-address"},
		{"agent is behind", func(f *Facts) { f.Health.Status = 503 }, wordHealth, Fail, "waiting for long"},
		{"no maps", func(f *Facts) { f.MapsErr = maps.ErrNotPinned }, wordMaps, Warn, "nothing is pinned in /sys/fs/bpf/shunt"},
		{"another layout", func(f *Facts) { f.MapsErr = &maps.LayoutError{Pinned: 9, Known: 1} }, wordMaps, Fail, "layout 9"},
		{"maps cannot be read", func(f *Facts) { f.MapsErr = maps.ErrNoPermission }, wordMaps, Fail, "as root"},
		{"a map nearly full", func(f *Facts) { f.Usage[maps.MapBackends] = maps.Usage{Used: 80, Capacity: 100} }, wordFill, Warn,
			"raise the agent's --max-backends"},
		{"a map full", func(f *Facts) { f.Usage[maps.MapServices] = maps.Usage{Used: 100, Capacity: 100} }, wordFill, Fail,
			"map services is full: 100 of 100"},
		{"a program missing", func(f *Facts) { f.Links = f.Links[1:] }, wordLinks, Fail, "not attached: connect4:"},
		{"a link whose cgroup is gone", func(f *Facts) { f.Links[0].Hook, f.Links[0].Cgroup = "", "" }, wordLinks, Fail,
			"not attached: connect4:"},
		{"another cgroup", func(f *Facts) { f.Links[0].Root, f.Links[0].Cgroup = false, "/sys/fs/cgroup/x" }, wordLinks, Warn,
			"connect4 attached to the cgroup /sys/fs/cgroup/x:"},
		{"links cannot be read", func(f *Facts) { f.LinksErr = errors.New("bad link") }, wordLinks, Fail, "bad link"},
		{"kube-proxy runs", func(f *Facts) { f.KubeProxyPIDs = []int{7, 9} }, wordKubeProxy, Warn, "process 7, 9"},
		{"nftables mode", func(f *Facts) { f.KubeProxy = kubeproxy.State{Tables: []string{"ip kube-proxy"}} },
			wordKubeProxyRules, Warn, "nftables has its tables ip kube-proxy"},
		{"iptables mode", func(f *Facts) { f.KubeProxy = kubeproxy.State{Chains: []string{"ip nat"}} },
			wordKubeProxyRules, Warn, "in the tables ip nat"},
		{"iptables legacy mode", func(f *Facts) { f.KubeProxy = kubeproxy.State{LegacyChains: []string{"iptables -t nat"}} },
			wordKubeProxyRules, Warn, "iptables (legacy)"},
		{"IPVS mode", func(f *Facts) { f.KubeProxy = kubeproxy.State{IPVS: true} }, wordKubeProxyRules, Warn, "kube-ipvs0"},
		{"rules cannot be read", func(f *Facts) { f.KubeProxyErr = errors.New("no netlink") }, wordKubeProxyRules, Warn,
			"no netlink"},
		{"Cilium", func(f *Facts) { f.Foreign = []Program{{7, "cil_sock4_connect", "connect4"}} }, wordForeign, Fail,
			"Cilium translates Services in sockets: cil_sock4_connect (id 7) in connect4"},
		{"somebody", func(f *Facts) { f.Foreign = []Program{{8, "probe", "sendmsg6"}} }, wordForeign, Warn,
			"probe (id 8) in sendmsg6"},
		{"hooks cannot be read", func(f *Facts) { f.ForeignErr = errors.New("no query") }, wordForeign, Warn, "no query"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := healthy()
			tc.harm(&f)
			findings := Examine(f).Findings
			if !slices.ContainsFunc(findings, func(f Finding) bool {
				return f.Check == tc.check && f.Status == tc.status && strings.Contains(f.Message+"\n"+f.Advice, tc.says)
			}) {
				t.Errorf("no %s of %s with %q in %+v", tc.status, tc.check, tc.says, findings)
			}
		})
	}
}

// Without an agent nobody is asked, and without maps there is nothing to measure.
func TestChecksThatHaveNothingToLookAtAreLeftOut(t *testing.T) {
	t.Parallel()
	f := healthy()
	f.Holder, f.MapsErr, f.Links = 0, maps.ErrNotPinned, nil
	for _, finding := range Examine(f).Findings {
		if slices.Contains([]string{wordHealth, wordFill, wordLinks}, finding.Check) {
			t.Errorf("%+v", finding)
		}
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]Version{
		"6.12.9-amd64":         {Major: 6, Minor: 12},
		"5.14.0-427.el9":       {Major: 5, Minor: 14},
		"6.1":                  {Major: 6, Minor: 1},
		"7.0-rc3":              {Major: 7},
		"something else":       {},
		"6.18.44-fc-v657+more": {Major: 6, Minor: 18},
	} {
		want.Release = release
		if got := parseVersion(release); got != want {
			t.Errorf("%s: got %+v", release, got)
		}
	}
	for _, tc := range []struct {
		v    Version
		want bool
	}{{Version{5, 14, ""}, true}, {Version{5, 13, ""}, false}, {Version{6, 0, ""}, true}, {Version{4, 20, ""}, false}} {
		if got := tc.v.AtLeast(5, 14); got != tc.want {
			t.Errorf("%+v at least 5.14: %v", tc.v, got)
		}
	}
}

func TestFindLock(t *testing.T) {
	t.Parallel()
	const locks = `1: POSIX  ADVISORY  WRITE 77 00:1c:5678 0 EOF
2: FLOCK  ADVISORY  WRITE 4242 00:1c:5678 0 EOF
2: -> FLOCK  ADVISORY  WRITE 4243 00:1c:5678 0 EOF
3: FLOCK  ADVISORY  WRITE 99 00:1c:1 0 EOF
4: FLOCK  ADVISORY  WRITE 98 08:10:5678 0 EOF
`
	for _, tc := range []struct {
		major, minor uint32
		inode        uint64
		want         int
	}{{0, 0x1c, 5678, 4242}, {0, 0x1c, 1, 99}, {8, 0x10, 5678, 98}, {0, 0x1c, 2, 0}} {
		if got := findLock(locks, tc.major, tc.minor, tc.inode); got != tc.want {
			t.Errorf("%02x:%02x:%d: got %d, want %d", tc.major, tc.minor, tc.inode, got, tc.want)
		}
	}
}
