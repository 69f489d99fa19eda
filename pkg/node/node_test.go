// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
)

func TestName(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ what, override, environment, host, want string }{
		{"the override wins", "a", "b", "c", "a"},
		{"then the environment", "", "b", "c", "b"},
		{"then the host", "", "", "c", "c"},
		{"trimmed and in lower case", "", "", " Node-1.Example.ORG\n", "node-1.example.org"},
		{"blanks are nothing", "  ", "\t", "c", "c"},
		{"nothing at all", "", "", " ", ""},
	} {
		got, err := Name(row.override, row.environment, func() (string, error) { return row.host, nil })
		if got != row.want || (err != nil) != (row.want == "") {
			t.Errorf("%s: %q, %v, want %q", row.what, got, err, row.want)
		}
	}
	broken := errors.New("no such call")
	if _, err := Name("", "", func() (string, error) { return "", broken }); !errors.Is(err, broken) {
		t.Errorf("a failing host name gives %v, want %v", err, broken)
	}
}

func list(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestChooseIPs(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what      string
		addresses []netip.Addr
		bind      string
		ipv4      string
		ipv6      string
		primary   model.Family
	}{
		{"the first of each family; the very first is primary",
			list("10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"), "", "10.0.0.1", "fd00::1", model.IPv4},
		{"IPv6 first", list("fd00::1", "10.0.0.1"), "", "10.0.0.1", "fd00::1", model.IPv6},
		{"one family only", list("fd00::1"), "", "", "fd00::1", model.IPv6},
		{"none known", nil, "", "", "", model.IPv4},
		{"an unspecified bind address changes nothing", list("fd00::1"), "0.0.0.0", "", "fd00::1", model.IPv6},
		{"a bind address replaces its family's and is primary",
			list("10.0.0.1", "fd00::1"), "fd00::9", "10.0.0.1", "fd00::9", model.IPv6},
		{"a bind address on a node whose addresses are unknown", nil, "10.0.0.9", "10.0.0.9", "", model.IPv4},
		{"a v4-mapped bind address is IPv4", list("fd00::1"), "::ffff:10.0.0.9", "10.0.0.9", "fd00::1", model.IPv4},
	} {
		var bind netip.Addr
		if row.bind != "" {
			bind = netip.MustParseAddr(row.bind)
		}
		got := ChooseIPs(row.addresses, bind)
		text := func(a netip.Addr) string {
			if !a.IsValid() {
				return ""
			}
			return a.String()
		}
		if text(got.IPv4) != row.ipv4 || text(got.IPv6) != row.ipv6 || got.Primary != row.primary {
			t.Errorf("%s: %+v, want %s, %s, primary %s", row.what, got, row.ipv4, row.ipv6, row.primary)
		}
	}
}

// local are the addresses of a node's interfaces.
var local = list("127.0.0.1", "::1", "10.0.0.1", "10.0.0.2", "172.17.0.1", "fd00::1", "fe80::1")

func TestNodePortAddresses(t *testing.T) {
	t.Parallel()
	everything4, everything6 := list("10.0.0.1", "10.0.0.2", "172.17.0.1"), list("fd00::1", "fe80::1")
	known := IPs{IPv4: netip.MustParseAddr("10.0.0.1"), IPv6: netip.MustParseAddr("fd00::1")}
	for _, row := range []struct {
		what             string
		list             []string
		ips              IPs
		want4, want6     []netip.Addr
		opened4, opened6 bool
		loopback         bool
	}{
		{"the default is primary", nil, known, list("10.0.0.1"), list("fd00::1"), false, false, false},
		{"primary", []string{"primary"}, known, list("10.0.0.1"), list("fd00::1"), false, false, false},
		{"primary with one family unknown opens that family",
			[]string{"primary"}, IPs{IPv4: known.IPv4}, list("10.0.0.1"), everything6, false, true, false},
		{"primary with both unknown opens both", []string{"primary"}, IPs{}, everything4, everything6, true, true, false},
		{"primary on a node whose only known address is loopback contributes nothing",
			[]string{"primary"}, IPs{IPv4: netip.MustParseAddr("127.0.0.1"), IPv6: netip.MustParseAddr("::1")},
			everything4, everything6, true, true, false},
		{"all", []string{"all"}, known, everything4, everything6, false, false, false},
		{"localhost names both families, and loopback is dropped", []string{"localhost"}, known, nil, nil, false, false, true},
		{"an IPv4 list opens IPv6", []string{"10.0.0.0/24"}, known, list("10.0.0.1", "10.0.0.2"), everything6, false, true, false},
		{"an IPv6 list opens IPv4", []string{"fd00::/16"}, known, everything4, list("fd00::1"), true, false, false},
		{"a /0 among others is everything, without the loopback",
			[]string{"10.0.0.1/32", "0.0.0.0/0", "::/0"}, known, everything4, everything6, false, false, false},
		{"a CIDR that no address is in", []string{"192.0.2.0/24", "2001:db8::/32"}, known, nil, nil, false, false, false},
		{"mixed, with host bits and a repeated CIDR",
			[]string{"172.17.9.9/16", "172.17.0.0/16", "primary"}, known, list("10.0.0.1", "172.17.0.1"), list("fd00::1"),
			false, false, false},
		{"loopback by CIDR", []string{"127.0.0.0/8", "::1/128", "10.0.0.2/32"}, known, list("10.0.0.2"), nil, false, false, true},
	} {
		n, err := ParseNodePortAddresses(row.list)
		if err != nil {
			t.Errorf("%s: %v", row.what, err)
			continue
		}
		m4, m6 := n.ForFamily(model.IPv4, row.ips), n.ForFamily(model.IPv6, row.ips)
		if got := m4.Select(local); !slices.Equal(got, row.want4) {
			t.Errorf("%s: IPv4 %v, want %v", row.what, got, row.want4)
		}
		if got := m6.Select(local); !slices.Equal(got, row.want6) {
			t.Errorf("%s: IPv6 %v, want %v", row.what, got, row.want6)
		}
		if m4.Opened != row.opened4 || m6.Opened != row.opened6 {
			t.Errorf("%s: opened %v, %v, want %v, %v", row.what, m4.Opened, m6.Opened, row.opened4, row.opened6)
		}
		if m4.Loopback != row.loopback || m6.Loopback != row.loopback {
			t.Errorf("%s: loopback %v, %v, want %v", row.what, m4.Loopback, m6.Loopback, row.loopback)
		}
	}
}

func TestNodePortAddressesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		list []string
		want string
	}{
		{[]string{"primary", "primary"}, `nodePortAddresses[1] "primary": the word is there twice`},
		{[]string{"10.0.0.0/8", "10.0.0.1"}, `nodePortAddresses[1] "10.0.0.1": not a CIDR`},
		{[]string{"Primary"}, `give a CIDR, or one of the words primary, localhost, all`},
		{[]string{""}, `nodePortAddresses[0] ""`},
	} {
		_, err := ParseNodePortAddresses(row.list)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%v: error %v, want one with %q", row.list, err, row.want)
		}
	}
}

func TestAFamilyThatTheListOpensIsWarnedAbout(t *testing.T) {
	t.Parallel()
	n, err := ParseNodePortAddresses([]string{"10.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	if w := n.ForFamily(model.IPv4, IPs{}).Warning(); w != "" {
		t.Errorf("IPv4 is named and yet warned about: %s", w)
	}
	if w := n.ForFamily(model.IPv6, IPs{}).Warning(); !strings.Contains(w, "every IPv6 address") {
		t.Errorf("warning %q", w)
	}
}

func TestAnAddressWithAZoneOrMappedIsTheSameAddress(t *testing.T) {
	t.Parallel()
	n, err := ParseNodePortAddresses([]string{"all"})
	if err != nil {
		t.Fatal(err)
	}
	got := n.ForFamily(model.IPv6, IPs{}).Select(list("fe80::1%eth0", "fe80::1"))
	if !slices.Equal(got, list("fe80::1")) {
		t.Errorf("selected %v", got)
	}
	if !n.ForFamily(model.IPv4, IPs{}).Match(netip.MustParseAddr("::ffff:10.0.0.1")) {
		t.Error("a v4-mapped address does not match IPv4")
	}
}
