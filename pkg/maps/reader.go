// SPDX-License-Identifier: Apache-2.0

package maps

import "iter"

// Reader reads what is programmed, from the pinned maps or from a Fake. The commands, the metrics and the agent's
// read-back at start all see the kernel through it.
//
// An iteration shows each element that is there from its beginning to its end; elements that come or go meanwhile
// may or may not be shown. It ends with the first error, which it yields last.
type Reader interface {
	// The lookups report false for an absent key.
	Service(Frontend) (Service, bool, error)
	Backend(id uint32) (Backend, bool, error)
	// Slots returns the backend ids in a run's cells.
	Slots(Run) ([]uint32, error)
	Address(Address) (AddressFlags, bool, error)
	ServiceName(id uint32) (ServiceName, bool, error)
	Affinity(AffinityKey) (AffinityValue, bool, error)
	// ServiceStats returns the sums over all CPUs of the counters of ids, in their order.
	ServiceStats(ids []uint32) ([]ServiceStats, error)
	// Drops returns the sums over all CPUs, indexed by enum reason.
	Drops() ([]uint64, error)
	Meta() (Meta, error)

	Services() iter.Seq2[Entry[Frontend, Service], error]
	Backends() iter.Seq2[Backend, error]
	Addresses() iter.Seq2[Entry[Address, AddressFlags], error]
	ServiceNames() iter.Seq2[Entry[uint32, ServiceName], error]
	SourceRanges() iter.Seq2[SourceRange, error]
	AffinityEntries() iter.Seq2[Entry[AffinityKey, AffinityValue], error]

	// What the packet path has, nothing where it has never been on. Flows are the elements of conntrack, two for each
	// flow; PacketStats are as ServiceStats, nil for nothing.
	Flows() iter.Seq2[Entry[ConntrackKey, ConntrackValue], error]
	PacketStats(ids []uint32) ([]PacketStats, error)
	PacketSettings() (PacketSettings, bool, error)

	// Usage returns how many elements each map holds and can hold, by map name.
	Usage() (map[string]Usage, error)
}

// Entry is one element of a map.
type Entry[K, V any] struct {
	Key   K
	Value V
}

// Usage is the fill of one map.
type Usage struct {
	Used, Capacity uint32
}
