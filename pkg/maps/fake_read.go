// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
)

var _ Reader = (*Fake)(nil)

// Service implements Reader.
func (f *Fake) Service(k Frontend) (Service, bool, error) { return find(f, f.services, k) }

// Backend implements Reader.
func (f *Fake) Backend(id uint32) (Backend, bool, error) { return find(f, f.backends, id) }

// Slots implements Reader.
func (f *Fake) Slots(r Run) ([]uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	end := uint64(r.Base) + uint64(r.Count)
	if end > uint64(len(f.slots)) {
		return nil, fmt.Errorf("run of %d cells at %d is beyond the %d cells of map slots", r.Count, r.Base, len(f.slots))
	}
	return slices.Clone(f.slots[r.Base:end]), nil
}

// Address implements Reader.
func (f *Fake) Address(a Address) (AddressFlags, bool, error) { return find(f, f.addresses, a) }

// ServiceName implements Reader.
func (f *Fake) ServiceName(id uint32) (ServiceName, bool, error) { return find(f, f.names, id) }

// Affinity implements Reader.
func (f *Fake) Affinity(k AffinityKey) (AffinityValue, bool, error) { return find(f, f.affinity, k) }

// ServiceStats implements Reader.
func (f *Fake) ServiceStats(ids []uint32) ([]ServiceStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sums := make([]ServiceStats, len(ids))
	for i, id := range ids {
		sums[i] = f.stats[id]
	}
	return sums, nil
}

// Drops implements Reader.
func (f *Fake) Drops() ([]uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.drops), nil
}

// Meta implements Reader.
func (f *Fake) Meta() (Meta, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.meta, nil
}

// Services implements Reader.
func (f *Fake) Services() iter.Seq2[Entry[Frontend, Service], error] {
	return list(f, f.services, compareFrontends)
}

// Backends implements Reader.
func (f *Fake) Backends() iter.Seq2[Backend, error] {
	return func(yield func(Backend, error) bool) {
		for e := range list(f, f.backends, cmp.Compare[uint32]) {
			if !yield(e.Value, nil) {
				return
			}
		}
	}
}

// Addresses implements Reader.
func (f *Fake) Addresses() iter.Seq2[Entry[Address, AddressFlags], error] {
	return list(f, f.addresses, compareAddresses)
}

// ServiceNames implements Reader.
func (f *Fake) ServiceNames() iter.Seq2[Entry[uint32, ServiceName], error] {
	return list(f, f.names, cmp.Compare[uint32])
}

// SourceRanges implements Reader.
func (f *Fake) SourceRanges() iter.Seq2[SourceRange, error] {
	return func(yield func(SourceRange, error) bool) {
		for e := range list(f, f.ranges, compareRanges) {
			if !yield(e.Key, nil) {
				return
			}
		}
	}
}

// AffinityEntries implements Reader.
func (f *Fake) AffinityEntries() iter.Seq2[Entry[AffinityKey, AffinityValue], error] {
	return list(f, f.affinity, comparePins)
}

// Usage implements Reader.
func (f *Fake) Usage() (map[string]Usage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	runs := map[Run]struct{}{}
	for _, s := range f.services {
		runs[s.Internal], runs[s.External] = struct{}{}, struct{}{}
	}
	cells := uint32(0)
	for r := range runs {
		cells += r.Count
	}
	used := map[string]uint32{
		MapServices: uint32(len(f.services)), MapBackends: uint32(len(f.backends)), MapSlots: cells,
		MapAddresses: uint32(len(f.addresses)), MapServiceNames: uint32(len(f.names)),
		MapSourceRanges: uint32(len(f.ranges)), MapAffinity: uint32(len(f.affinity)),
	}
	usage := map[string]Usage{}
	for name, n := range used {
		usage[name] = Usage{Used: n, Capacity: f.capacity[name]}
	}
	return usage, nil
}
