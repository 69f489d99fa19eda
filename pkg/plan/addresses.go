// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"slices"

	"github.com/shunt-lb/shunt/pkg/model"
)

// planAddresses returns the operations that give addresses the flags of the frontends to come, and those that take
// away flags when the frontends have gone.
func (s *State) planAddresses(puts, deletes []Operation) (before, after []Operation) {
	touched := map[netip.Addr]address{}
	var order []netip.Addr
	count := func(key model.FrontendKey, k model.Kind, n int) {
		if flagOf(k) == 0 {
			return
		}
		a, ok := touched[key.Address]
		if !ok {
			a = s.addresses[key.Address]
			order = append(order, key.Address)
		}
		a.count(k, n)
		touched[key.Address] = a
	}
	for _, o := range puts {
		put := o.(*PutFrontend)
		had, replaces := s.frontends[put.Key]
		if replaces && had.Kind == put.Frontend.Kind {
			continue
		}
		count(put.Key, put.Frontend.Kind, 1)
		if replaces {
			count(put.Key, had.Kind, -1)
		}
	}
	for _, o := range deletes {
		key := o.(*DeleteFrontend).Key
		count(key, s.frontends[key].Kind, -1)
	}
	// Addresses that earlier failures left behind. Before the first sync, a frontend may still come for them.
	left := len(order)
	for key := range s.unsettled {
		if _, done := touched[key]; !done && (s.synced || s.addresses[key].wanted() != 0) {
			touched[key] = s.addresses[key]
			order = append(order, key)
		}
	}
	slices.SortFunc(order[left:], netip.Addr.Compare)

	for _, key := range order {
		a := touched[key]
		if more := a.flags | a.wanted(); more != a.flags {
			before = append(before, &PutAddress{key, more})
			a.flags = more
		}
		if exactly := a.flags&fromNode | a.wanted(); exactly != a.flags {
			after = append(after, addressOperation(key, exactly))
		}
	}
	return before, after
}

func addressOperation(key netip.Addr, flags AddressFlags) Operation {
	if flags == 0 {
		return &DeleteAddress{key}
	}
	return &PutAddress{key, flags}
}

// PlanNodeAddresses returns the operations for the addresses that serve node ports and those on the node's devices.
// What frontends say of an address stays.
func (s *State) PlanNodeAddresses(nodePorts, onNode []netip.Addr) []Operation {
	want := make(map[netip.Addr]AddressFlags, len(onNode))
	for _, a := range nodePorts {
		want[a.Unmap().WithZone("")] |= NodePorts
	}
	for _, a := range onNode {
		want[a.Unmap().WithZone("")] |= OnNode
	}
	keys := make([]netip.Addr, 0, len(want))
	for key := range want {
		keys = append(keys, key)
	}
	for key, a := range s.addresses {
		if _, stays := want[key]; !stays && a.flags&fromNode != 0 {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, netip.Addr.Compare)
	var ops []Operation
	for _, key := range keys {
		a := s.addresses[key]
		if flags := a.flags&fromFrontends | want[key]; flags != a.flags {
			ops = append(ops, addressOperation(key, flags))
		}
	}
	return ops
}
