// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

// The keywords of a nodePortAddresses list.
const (
	KeywordPrimary   = "primary"
	KeywordLocalhost = "localhost"
	KeywordAll       = "all"
)

// NodePortAddresses is a parsed nodePortAddresses list: which of the node's addresses serve node ports.
type NodePortAddresses struct {
	primary, localhost, all bool
	cidrs                   []netip.Prefix
}

// ParseNodePortAddresses parses a list of CIDRs and keywords, freely mixed. An empty list is "primary", the default of
// kube-proxy's nftables mode. A repeated keyword is an error, a repeated CIDR is not.
func ParseNodePortAddresses(list []string) (NodePortAddresses, error) {
	var n NodePortAddresses
	if len(list) == 0 {
		n.primary = true
		return n, nil
	}
	for i, entry := range list {
		keyword, err := n.add(strings.TrimSpace(entry))
		if err != nil {
			return NodePortAddresses{}, fmt.Errorf("parse nodePortAddresses[%d] %q: %w", i, entry, err)
		}
		if keyword != nil {
			*keyword = true
		}
	}
	return n, nil
}

// add adds a CIDR, or returns which keyword the entry is.
func (n *NodePortAddresses) add(entry string) (keyword *bool, err error) {
	switch entry {
	case KeywordPrimary:
		keyword = &n.primary
	case KeywordLocalhost:
		keyword = &n.localhost
	case KeywordAll:
		keyword = &n.all
	default:
		cidr, err := source.ParsePrefix(entry)
		if err != nil {
			return nil, fmt.Errorf("%w; give a CIDR, or one of the words %s, %s, %s",
				err, KeywordPrimary, KeywordLocalhost, KeywordAll)
		}
		n.cidrs = append(n.cidrs, cidr)
		return nil, nil
	}
	if *keyword {
		return nil, fmt.Errorf("the word is there twice")
	}
	return keyword, nil
}

// Matcher decides which addresses of one family serve node ports.
type Matcher struct {
	Family model.Family
	// All is true when every local address of the family does, the loopback excepted.
	All bool
	// Opened is true when All is not what the list says: the list has nothing of this family, and the family is
	// therefore not restricted at all. Operators read the list as a restriction, so it is worth a warning.
	Opened bool
	// Loopback is true when the list names the loopback itself (not by a /0).
	Loopback bool
	cidrs    []netip.Prefix
}

// ForFamily evaluates the list for one family. ips are the node's own addresses, which "primary" stands for.
func (n NodePortAddresses) ForFamily(family model.Family, ips IPs) Matcher {
	m := Matcher{Family: family}
	for _, cidr := range n.expand(ips) {
		if model.FamilyOf(cidr.Addr()) != family {
			continue
		}
		m.cidrs = append(m.cidrs, cidr)
		if cidr.Bits() == 0 {
			m.All = true
		} else if cidr.Addr().IsLoopback() {
			m.Loopback = true
		}
	}
	if len(m.cidrs) == 0 {
		m.All, m.Opened = true, true
	}
	return m
}

// expand returns the list with its keywords replaced by the CIDRs that they stand for.
func (n NodePortAddresses) expand(ips IPs) []netip.Prefix {
	out := slices.Clone(n.cidrs)
	if n.primary {
		for _, ip := range []netip.Addr{ips.IPv4, ips.IPv6} {
			if ip.IsValid() && !ip.IsLoopback() {
				out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	if n.localhost {
		out = append(out, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
	}
	if n.all {
		out = append(out, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
	}
	return out
}

// Match tells whether a local address serves node ports. A loopback address never does here: whether the node's own
// processes may use node ports there is another switch.
func (m Matcher) Match(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if model.FamilyOf(a) != m.Family || a.IsLoopback() || a.IsUnspecified() {
		return false
	}
	return m.All || slices.ContainsFunc(m.cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Select returns those of the node's interface addresses that serve node ports, sorted, each once.
func (m Matcher) Select(local []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range local {
		if a = a.Unmap().WithZone(""); m.Match(a) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// Warning says what an operator should know about how the list is read for this family, empty when there is nothing.
func (m Matcher) Warning() string {
	if !m.Opened {
		return ""
	}
	everything := "0.0.0.0/0"
	if m.Family == model.IPv6 {
		everything = "::/0"
	}
	return fmt.Sprintf("nodePortAddresses names no %[1]s address, so node ports are served on every %[1]s address of "+
		"this node (as by kube-proxy); add an %[1]s CIDR to restrict them, or %[2]s to say so yourself", m.Family, everything)
}
