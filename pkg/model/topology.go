// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"
	"unique"
)

// topology is how the hints of a service port's endpoints narrow its cluster set.
type topology uint8

const (
	anywhere topology = iota
	sameZone
	sameNode
)

// topologyOf looks at ready endpoints alone: others neither veto nor select. A hint that is missing on one of them,
// or no hint that names this node or zone, means that the hints are not meant to be used here.
func topologyOf(all []candidate, here place) topology {
	node, zone := hintVote{}, hintVote{}
	for _, e := range all {
		if !e.ready {
			continue
		}
		h := e.hints
		if h == nil {
			return anywhere
		}
		node.count(h.nodes, here.node)
		zone.count(h.zones, here.zone)
	}
	switch {
	case node.carried():
		return sameNode
	case zone.carried():
		return sameZone
	}
	return anywhere
}

// hintVote tells of one kind of hint whether all endpoints have one and whether any names this node or zone.
type hintVote struct {
	missing, named bool
}

func (v *hintVote) count(hints []unique.Handle[string], here unique.Handle[string]) {
	v.missing = v.missing || len(hints) == 0
	v.named = v.named || slices.Contains(hints, here)
}

func (v *hintVote) carried() bool { return v.named && !v.missing }

// allows tells whether an endpoint is in the cluster set. The hint decides, not locality: an endpoint on this node
// that is hinted elsewhere is left out.
func (t topology) allows(e *endpoint, here place) bool {
	switch t {
	case sameNode:
		return slices.Contains(e.hints.nodes, here.node)
	case sameZone:
		return slices.Contains(e.hints.zones, here.zone)
	}
	return true
}
