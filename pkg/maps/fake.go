// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"iter"
	"slices"
	"sync"
)

// Fake is the maps in memory, for tests: a Reader and a Writer that counts operations and fails where it is told
// to. Iterations are sorted, so that what a test prints is stable. It is safe for concurrent use.
type Fake struct {
	mu        sync.Mutex
	capacity  map[string]uint32
	services  map[Frontend]Service
	backends  map[uint32]Backend
	slots     []uint32
	addresses map[Address]AddressFlags
	names     map[uint32]ServiceName
	ranges    map[SourceRange]struct{}
	affinity  map[AffinityKey]AffinityValue
	stats     map[uint32]ServiceStats
	drops     []uint64
	meta      Meta
	packets   fakePackets

	operations int
	before     func(Operation) error
	after      func(Operation)
}

// Operation is one element written or deleted, as the Fake's hooks see it.
type Operation struct {
	// Number counts from 0 for the first operation of the Fake.
	Number int
	Map    string
	Delete bool
	// Key is the element's key; for slots it is the Run.
	Key any
}

// NewFake returns an empty Fake. A map that capacity does not name holds 65536 elements.
func NewFake(capacity map[string]uint32) *Fake {
	f := &Fake{
		capacity:  map[string]uint32{},
		services:  map[Frontend]Service{},
		backends:  map[uint32]Backend{},
		addresses: map[Address]AddressFlags{},
		names:     map[uint32]ServiceName{},
		ranges:    map[SourceRange]struct{}{},
		affinity:  map[AffinityKey]AffinityValue{},
		stats:     map[uint32]ServiceStats{},
		meta:      Meta{LayoutVersion: LayoutVersion},
	}
	for name := range shapes() {
		f.capacity[name] = 65536
		if c, ok := capacity[name]; ok {
			f.capacity[name] = c
		}
	}
	f.slots = make([]uint32, f.capacity[MapSlots])
	return f
}

// Before has hook called ahead of each operation: with an error, the operation fails with it and changes nothing.
// After has hook called when an operation has been done. The hooks may read the Fake and
// do what a program does, but not use its Writer.
func (f *Fake) Before(hook func(Operation) error) { f.before = hook }

// After is explained at Before.
func (f *Fake) After(hook func(Operation)) { f.after = hook }

// Operations returns how many operations have been tried: elements written or deleted, whole runs of slots.
func (f *Fake) Operations() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.operations
}

// SetCapacity changes the size of a map. Elements beyond it stay.
func (f *Fake) SetCapacity(name string, size uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity[name] = size
	if name == MapSlots && int(size) > len(f.slots) {
		f.slots = append(f.slots, make([]uint32, int(size)-len(f.slots))...)
	}
}

// PutAffinity does what a program does: it has no counterpart in Writer.
func (f *Fake) PutAffinity(k AffinityKey, v AffinityValue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.affinity[k] = v
}

// AddServiceStats counts, as a program does.
func (f *Fake) AddServiceStats(id uint32, s ServiceStats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.stats[id]
	sum.add(s)
	f.stats[id] = sum
}

// SetDrops sets the counters of drops.
func (f *Fake) SetDrops(drops []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drops = slices.Clone(drops)
}

// find looks up one key under the lock.
func find[K comparable, V any](f *Fake, m map[K]V, k K) (V, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok := m[k]
	return v, ok, nil
}

// list returns the elements as they are now, sorted.
func list[K comparable, V any](f *Fake, m map[K]V, compare func(a, b K) int) iter.Seq2[Entry[K, V], error] {
	return func(yield func(Entry[K, V], error) bool) {
		f.mu.Lock()
		all := make([]Entry[K, V], 0, len(m))
		for k, v := range m {
			all = append(all, Entry[K, V]{k, v})
		}
		f.mu.Unlock()
		slices.SortFunc(all, func(a, b Entry[K, V]) int { return compare(a.Key, b.Key) })
		for _, e := range all {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func compareAddresses(a, b Address) int { return slices.Compare(a[:], b[:]) }

func compareFrontends(a, b Frontend) int {
	return cmp.Or(compareAddresses(a.Address, b.Address), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Protocol, b.Protocol))
}

func compareRanges(a, b SourceRange) int {
	return cmp.Or(cmp.Compare(a.ServiceID, b.ServiceID), compareAddresses(a.Address, b.Address),
		cmp.Compare(a.PrefixBits, b.PrefixBits))
}

func comparePins(a, b AffinityKey) int {
	return cmp.Or(cmp.Compare(a.ServiceID, b.ServiceID), compareAddresses(a.Client, b.Client),
		cmp.Compare(a.NetnsCookie, b.NetnsCookie))
}
