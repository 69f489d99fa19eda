// SPDX-License-Identifier: Apache-2.0

package source

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// errZone refuses addresses with a zone, which mean something on one machine only.
var errZone = errors.New("an address with a zone is not allowed here")

// ParseAddr parses an address as kube-proxy does: leading zeros in the IPv4 form are decimal ("010.0.0.1" is
// 10.0.0.1), since objects stored by old API servers may still contain them. The result is canonical: a v4-mapped IPv6
// address is returned as the IPv4 address it stands for.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(dropLeadingZeros(s))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("not an IP address")
	}
	if a.Zone() != "" {
		return netip.Addr{}, errZone
	}
	return a.Unmap(), nil
}

// ParsePrefix parses an address and a prefix length with ParseAddr's rules and masks off the host bits. A v4-mapped
// prefix of at least /96 is returned as the IPv4 prefix it stands for; a shorter one covers more than IPv4 and is
// refused.
func ParsePrefix(s string) (netip.Prefix, error) {
	text, length, found := strings.Cut(s, "/")
	if !found {
		return netip.Prefix{}, fmt.Errorf("not a CIDR: it has no /length")
	}
	addr, err := ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	bits, err := strconv.ParseUint(length, 10, 8)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("not a CIDR: the length is not a number")
	}
	n := int(bits)
	if addr.Is4() && strings.Contains(text, ":") {
		n -= 96
	}
	if n < 0 || n > addr.BitLen() {
		return netip.Prefix{}, fmt.Errorf("not a CIDR: the length is out of range")
	}
	return netip.PrefixFrom(addr, n).Masked(), nil
}

// dropLeadingZeros rewrites the dotted part of an address without leading zeros, which netip refuses.
func dropLeadingZeros(s string) string {
	if !strings.Contains(s, ".") {
		return s
	}
	start := strings.LastIndexByte(s, ':') + 1
	octets := strings.Split(s[start:], ".")
	for i, octet := range octets {
		trimmed := strings.TrimLeft(octet, "0")
		if trimmed == "" && octet != "" {
			trimmed = "0"
		}
		octets[i] = trimmed
	}
	return s[:start] + strings.Join(octets, ".")
}

// checkFrontend refuses what cannot be a frontend's address. The API server refuses the same; here it is a defence:
// the unspecified address stands for node ports in the maps, and a Service must not take over the loopback.
func checkFrontend(a netip.Addr) error {
	switch {
	case a.IsUnspecified():
		return errors.New("the unspecified address cannot be a Service's")
	case a.IsLoopback():
		return errors.New("a loopback address cannot be a Service's")
	case a.IsMulticast():
		return errors.New("a multicast address cannot be a Service's")
	}
	return nil
}

// checkEndpoint refuses what the API server refuses as an endpoint's address.
func checkEndpoint(a netip.Addr) error {
	switch {
	case a.IsUnspecified():
		return errors.New("the unspecified address cannot be an endpoint")
	case a.IsLoopback():
		return errors.New("a loopback address cannot be an endpoint")
	case a.IsLinkLocalUnicast(), a.IsMulticast():
		return errors.New("a link-local or multicast address cannot be an endpoint")
	}
	return nil
}
