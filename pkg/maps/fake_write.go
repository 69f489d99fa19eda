// SPDX-License-Identifier: Apache-2.0

package maps

import "fmt"

var _ Writer = (*Fake)(nil)

// each does n operations, up to the first that fails.
func (f *Fake) each(n int, describe func(i int) Operation, do func(i int) error) (int, error) {
	for i := range n {
		op := describe(i)
		f.mu.Lock()
		op.Number = f.operations
		f.operations++
		f.mu.Unlock()
		if f.before != nil {
			if err := f.before(op); err != nil {
				return i, err
			}
		}
		f.mu.Lock()
		err := do(i)
		f.mu.Unlock()
		if err != nil {
			return i, err
		}
		if f.after != nil {
			f.after(op)
		}
	}
	return n, nil
}

func fakePut[K comparable, V any](f *Fake, name string, m map[K]V, keys []K, value func(i int) V) (int, error) {
	describe := func(i int) Operation { return Operation{Map: name, Key: keys[i]} }
	return f.each(len(keys), describe, func(i int) error {
		if _, replaces := m[keys[i]]; !replaces && len(m) >= int(f.capacity[name]) {
			return &FullError{Map: name, Size: f.capacity[name]}
		}
		m[keys[i]] = value(i)
		return nil
	})
}

func fakeDelete[K comparable, V any](f *Fake, name string, m map[K]V, keys []K) (int, error) {
	describe := func(i int) Operation { return Operation{Map: name, Delete: true, Key: keys[i]} }
	return f.each(len(keys), describe, func(i int) error {
		delete(m, keys[i])
		return nil
	})
}

// PutServices implements Writer.
func (f *Fake) PutServices(keys []Frontend, values []Service) (int, error) {
	return fakePut(f, MapServices, f.services, keys, func(i int) Service { return values[i] })
}

// DeleteServices implements Writer.
func (f *Fake) DeleteServices(keys []Frontend) (int, error) {
	return fakeDelete(f, MapServices, f.services, keys)
}

// PutBackends implements Writer.
func (f *Fake) PutBackends(backends []Backend) (int, error) {
	ids := make([]uint32, len(backends))
	for i := range backends {
		ids[i] = backends[i].BackendID
	}
	return fakePut(f, MapBackends, f.backends, ids, func(i int) Backend { return backends[i] })
}

// DeleteBackends implements Writer.
func (f *Fake) DeleteBackends(ids []uint32) (int, error) {
	return fakeDelete(f, MapBackends, f.backends, ids)
}

// PutSlots implements Writer.
func (f *Fake) PutSlots(base uint32, ids []uint32) error {
	describe := func(int) Operation { return Operation{Map: MapSlots, Key: Run{base, uint32(len(ids))}} }
	_, err := f.each(1, describe, func(int) error {
		if uint64(base)+uint64(len(ids)) > uint64(len(f.slots)) {
			return fmt.Errorf("run of %d cells at %d is beyond the %d cells of map slots", len(ids), base, len(f.slots))
		}
		copy(f.slots[base:], ids)
		return nil
	})
	return err
}

// PutAddresses implements Writer.
func (f *Fake) PutAddresses(keys []Address, values []AddressFlags) (int, error) {
	return fakePut(f, MapAddresses, f.addresses, keys, func(i int) AddressFlags { return values[i] })
}

// DeleteAddresses implements Writer.
func (f *Fake) DeleteAddresses(keys []Address) (int, error) {
	return fakeDelete(f, MapAddresses, f.addresses, keys)
}

// PutServiceNames implements Writer.
func (f *Fake) PutServiceNames(ids []uint32, names []ServiceName) (int, error) {
	return fakePut(f, MapServiceNames, f.names, ids, func(i int) ServiceName { return names[i] })
}

// DeleteServiceNames implements Writer.
func (f *Fake) DeleteServiceNames(ids []uint32) (int, error) {
	return fakeDelete(f, MapServiceNames, f.names, ids)
}

// PutSourceRanges implements Writer.
func (f *Fake) PutSourceRanges(ranges []SourceRange) (int, error) {
	return fakePut(f, MapSourceRanges, f.ranges, ranges, func(int) struct{} { return struct{}{} })
}

// DeleteSourceRanges implements Writer.
func (f *Fake) DeleteSourceRanges(ranges []SourceRange) (int, error) {
	return fakeDelete(f, MapSourceRanges, f.ranges, ranges)
}

// ResetServiceStats implements Writer.
func (f *Fake) ResetServiceStats(ids []uint32) (int, error) {
	f.mu.Lock()
	for _, id := range ids {
		delete(f.packets.stats, id)
	}
	f.mu.Unlock()
	return fakeDelete(f, MapServiceStats, f.stats, ids)
}

// PutMeta implements Writer.
func (f *Fake) PutMeta(m Meta) error {
	describe := func(int) Operation { return Operation{Map: MapMeta, Key: uint32(0)} }
	_, err := f.each(1, describe, func(int) error {
		f.meta = m
		return nil
	})
	return err
}

// Capacity implements Writer.
func (f *Fake) Capacity() map[string]uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(map[string]uint32, len(f.capacity))
	for name, size := range f.capacity {
		c[name] = size
	}
	return c
}
