// SPDX-License-Identifier: Apache-2.0

// Package node answers who this node is and on which of its addresses node ports are served: its name, its IP of each
// family, and what a nodePortAddresses list accepts. The functions are pure; the caller brings the environment, the
// Node object's addresses and the addresses of the interfaces, and asks again when they change.
package node

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/shunt-lb/shunt/pkg/model"
)

// errNoName is returned when nothing tells the node's name.
var errNoName = errors.New("find the node's name: it is empty; set --hostname-override or NODE_NAME " +
	"to the name that the Node object has in the API")

// Name returns the name of this node as the Kubernetes API knows it: the override (--hostname-override, --node-name),
// else the environment's NODE_NAME, else the host name; trimmed and in lower case, as the kubelet makes it. It is
// compared byte for byte with the node names in EndpointSlices: a wrong one silently breaks every Local policy.
func Name(override, environment string, hostname func() (string, error)) (string, error) {
	for _, candidate := range []string{override, environment} {
		if name := canonical(candidate); name != "" {
			return name, nil
		}
	}
	host, err := hostname()
	if err != nil {
		return "", fmt.Errorf("find the node's name: %w; set --hostname-override or NODE_NAME", err)
	}
	if name := canonical(host); name != "" {
		return name, nil
	}
	return "", errNoName
}

func canonical(name string) string { return strings.ToLower(strings.TrimSpace(name)) }

// IPs are the node's addresses, one of each family; the zero Addr where it is unknown.
type IPs struct {
	IPv4, IPv6 netip.Addr
	// Primary is the family of the first address known, IPv4 when none is.
	Primary model.Family
}

// Of returns the address of a family.
func (n IPs) Of(family model.Family) netip.Addr {
	if family == model.IPv6 {
		return n.IPv6
	}
	return n.IPv4
}

// ChooseIPs returns the node's IPs from the Node object's addresses, InternalIPs first: the first one is primary, the
// first one of the other family secondary. A specified bindAddress replaces its family's and makes that family primary.
func ChooseIPs(addresses []netip.Addr, bindAddress netip.Addr) IPs {
	out := IPs{Primary: model.IPv4}
	set := func(a netip.Addr) {
		if model.FamilyOf(a) == model.IPv6 {
			out.IPv6 = a
		} else {
			out.IPv4 = a
		}
	}
	for i, a := range addresses {
		a = a.Unmap()
		if i == 0 {
			out.Primary = model.FamilyOf(a)
		}
		if !out.Of(model.FamilyOf(a)).IsValid() {
			set(a)
		}
	}
	if bind := bindAddress.Unmap(); bind.IsValid() && !bind.IsUnspecified() {
		set(bind)
		out.Primary = model.FamilyOf(bind)
	}
	return out
}
