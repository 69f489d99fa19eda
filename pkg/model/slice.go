// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"
	"unique"
)

// slice is an EndpointSlice as the Cluster keeps it: checked once, and small, because a large cluster has some
// hundred thousand endpoints on a few names of nodes and zones.
type slice struct {
	name      SliceName
	service   ServiceName
	family    Family
	zoned     bool // an endpoint has a zone hint
	ports     []SlicePort
	endpoints []endpoint
	// faults are Problems in the making: their Service may not be known yet.
	faults []string
}

// endpoint is one endpoint of a slice.
type endpoint struct {
	address netip.Addr
	node    unique.Handle[string]
	// hints are shared by endpoints that have the same; nil: none.
	hints                       *hints
	ready, serving, terminating bool
}

// hints are the topology hints of an endpoint.
type hints struct {
	zones, nodes []unique.Handle[string]
}

// usable endpoints are the first choice when ready, and a fallback when they still serve on their way out.
func (e *endpoint) fallback() bool { return !e.ready && e.serving && e.terminating }
func (e *endpoint) usable() bool   { return e.ready || e.fallback() }

// newSlice checks and packs an EndpointSlice.
func newSlice(s *EndpointSlice) *slice {
	packed := &slice{name: s.SliceName, service: s.Service, family: s.Family, ports: slices.Clone(s.Ports)}
	packed.endpoints = make([]endpoint, 0, len(s.Endpoints))
	var refused faults
	var shared hintPool
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		a := canonical(e.Address)
		if !refused.check(s, a) {
			continue
		}
		packed.endpoints = append(packed.endpoints, endpoint{
			address: a,
			node:    unique.Make(e.NodeName),
			hints:   shared.get(e.ForZones, e.ForNodes),
			ready:   e.Ready, serving: e.Serving, terminating: e.Terminating,
		})
		packed.zoned = packed.zoned || len(e.ForZones) > 0
	}
	packed.faults = refused.messages(s)
	return packed
}

// equal tells whether two slices of one name mean the same.
func (s *slice) equal(o *slice) bool {
	return s.service == o.service && s.family == o.family && slices.Equal(s.ports, o.ports) &&
		slices.EqualFunc(s.endpoints, o.endpoints, endpoint.equal) && slices.Equal(s.faults, o.faults)
}

func (e endpoint) equal(o endpoint) bool {
	a, b := e.hints, o.hints
	e.hints, o.hints = nil, nil
	return e == o && a.equal(b)
}

func (h *hints) equal(o *hints) bool {
	return h == o || (h != nil && o != nil && slices.Equal(h.zones, o.zones) && slices.Equal(h.nodes, o.nodes))
}

// spells tells whether h has these hints.
func (h *hints) spells(zones, nodes []string) bool {
	spelled := func(w unique.Handle[string], text string) bool { return w.Value() == text }
	return h != nil && slices.EqualFunc(h.zones, zones, spelled) && slices.EqualFunc(h.nodes, nodes, spelled)
}

// hintPool shares equal hints within a slice. It looks at the most recent ones only: endpoints of few zones have few
// different hints, and where each endpoint has its own there is nothing to share.
type hintPool struct {
	recent [4]*hints
	next   int
}

func (p *hintPool) get(zones, nodes []string) *hints {
	if len(zones)+len(nodes) == 0 {
		return nil
	}
	for _, h := range p.recent {
		if h.spells(zones, nodes) {
			return h
		}
	}
	h := &hints{zones: interned(zones), nodes: interned(nodes)}
	p.recent[p.next%len(p.recent)] = h
	p.next++
	return h
}

func interned(words []string) []unique.Handle[string] {
	out := make([]unique.Handle[string], 0, len(words))
	for _, w := range words {
		out = append(out, unique.Make(w))
	}
	return out
}

// faults gathers what is wrong with the endpoints of a slice: one message for all that have the same fault.
type faults struct {
	special, foreign           int
	firstSpecial, firstForeign netip.Addr
}

// check tells whether an address is one to program.
func (f *faults) check(s *EndpointSlice, a netip.Addr) bool {
	switch {
	case special(a) != "":
		if f.special++; f.special == 1 {
			f.firstSpecial = a
		}
		return false
	case FamilyOf(a) != s.Family:
		if f.foreign++; f.foreign == 1 {
			f.firstForeign = a
		}
		return false
	}
	return true
}

func (f *faults) messages(s *EndpointSlice) []string {
	var out []string
	if f.special > 0 {
		out = append(out, fmt.Sprintf("EndpointSlice %v: %d of %d endpoints are not used: %v is %s", s.SliceName, f.special,
			len(s.Endpoints), f.firstSpecial, special(f.firstSpecial)))
	}
	if f.foreign > 0 {
		out = append(out, fmt.Sprintf("EndpointSlice %v: %d of %d endpoints are not used: %v is no %v address", s.SliceName,
			f.foreign, len(s.Endpoints), f.firstForeign, s.Family))
	}
	return out
}
