// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"slices"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Counts is how many elements the mirror has, by map.
type Counts struct{ Names, Backends, Frontends, Ranges, Addresses int }

// Count counts the elements.
func (s *State) Count() Counts {
	c := Counts{Frontends: len(s.frontends)}
	for _, p := range s.ports {
		if p.name != (model.ServicePortName{}) {
			c.Names++
		}
		c.Backends += len(p.backends)
		c.Ranges += len(p.ranges)
	}
	for _, a := range s.addresses {
		if a.flags != 0 {
			c.Addresses++
		}
	}
	return c
}

// HasBackend tells whether the mirror has exactly this backend.
func (s *State) HasBackend(service uint32, b Backend) bool {
	p := s.ports[service]
	if p == nil {
		return false
	}
	i, found := slices.BinarySearchFunc(p.backends, b, compareBackends)
	return found && p.backends[i] == b
}

// HasRange tells whether the mirror has this source range.
func (s *State) HasRange(service uint32, prefix netip.Prefix) bool {
	p := s.ports[service]
	return p != nil && slices.Contains(p.ranges, prefix)
}

// Address returns the flags of an address.
func (s *State) Address(a netip.Addr) AddressFlags { return s.addresses[a].flags }

// Runs calls visit with each run that frontends use and what is in its cells, until visit returns false.
func (s *State) Runs(visit func(service uint32, r Run, backends []uint32) bool) {
	for _, p := range s.ports {
		for _, r := range p.runs {
			if !visit(p.id, r.Run, r.backends) {
				return
			}
		}
	}
}

// Inherit takes over from the mirror of the same maps that s replaces what the maps do not tell: cells that readers
// may still be in, and which ids have been given.
func (s *State) Inherit(before *State) {
	s.nextBackend = max(s.nextBackend, before.nextBackend)
	for item := range before.garbage {
		if item.Kind == RunItem && s.slots.take(item.Run) {
			s.retire(item)
		}
	}
}
