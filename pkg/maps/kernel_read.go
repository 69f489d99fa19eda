// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var _ Reader = (*Kernel)(nil)

// batchSize is how many elements one system call reads.
const batchSize = 1024

// Service implements Reader.
func (k *Kernel) Service(key Frontend) (s Service, ok bool, err error) {
	ok, err = lookup(k, MapServices, &key, &s)
	return s, ok, err
}

// Backend implements Reader.
func (k *Kernel) Backend(id uint32) (b Backend, ok bool, err error) {
	ok, err = lookup(k, MapBackends, &id, &b)
	return b, ok, err
}

// Slots implements Reader.
func (k *Kernel) Slots(r Run) ([]uint32, error) {
	if r.Count == 0 {
		return nil, nil
	}
	if err := k.checkRun(r.Base, int(r.Count)); err != nil {
		return nil, err
	}
	if k.readOnly {
		return k.lookupSlots(r)
	}
	cells, err := k.slots()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, cellStride*r.Count)
	if _, err := cells.ReadAt(buf, cellStride*int64(r.Base)); err != nil {
		return nil, fmt.Errorf("read map slots: %w", err)
	}
	ids := make([]uint32, r.Count)
	for i := range ids {
		ids[i] = binary.NativeEndian.Uint32(buf[cellStride*i:])
	}
	return ids, nil
}

// lookupSlots reads a run with a system call per cell: the kernel lets nobody map a map that is open for reading alone.
func (k *Kernel) lookupSlots(r Run) ([]uint32, error) {
	ids := make([]uint32, r.Count)
	for i := range ids {
		if err := k.maps[MapSlots].Lookup(r.Base+uint32(i), &ids[i]); err != nil {
			return nil, fmt.Errorf("read map slots: %w", err)
		}
	}
	return ids, nil
}

// Address implements Reader.
func (k *Kernel) Address(a Address) (f AddressFlags, ok bool, err error) {
	ok, err = lookup(k, MapAddresses, &a, &f)
	return f, ok, err
}

// ServiceName implements Reader.
func (k *Kernel) ServiceName(id uint32) (n ServiceName, ok bool, err error) {
	ok, err = lookup(k, MapServiceNames, &id, &n)
	return n, ok, err
}

// Affinity implements Reader.
func (k *Kernel) Affinity(key AffinityKey) (v AffinityValue, ok bool, err error) {
	ok, err = lookup(k, MapAffinity, &key, &v)
	return v, ok, err
}

// Meta implements Reader.
func (k *Kernel) Meta() (m Meta, err error) {
	_, err = lookup(k, MapMeta, new(uint32), &m)
	return m, err
}

// ServiceStats implements Reader.
func (k *Kernel) ServiceStats(ids []uint32) ([]ServiceStats, error) {
	sums := make([]ServiceStats, len(ids))
	if len(ids) == 0 {
		return sums, nil
	}
	last := slices.Max(ids)
	if size := k.maps[MapServiceStats].MaxEntries(); last >= size {
		return nil, fmt.Errorf("read map %s: id %d is beyond its %d elements", MapServiceStats, last, size)
	}
	// A batch reads from the beginning: worth it unless few ids are wanted.
	if len(ids) < 16 {
		for i, id := range ids {
			var cpus []ServiceStats
			if err := k.maps[MapServiceStats].Lookup(id, &cpus); err != nil {
				return nil, fmt.Errorf("read map %s: %w", MapServiceStats, err)
			}
			for _, c := range cpus {
				sums[i].add(c)
			}
		}
		return sums, nil
	}
	all := make([]ServiceStats, 0, last+batchSize)
	err := eachCPUs(k.maps[MapServiceStats], last+1, func(cpus []ServiceStats) {
		var sum ServiceStats
		for _, c := range cpus {
			sum.add(c)
		}
		all = append(all, sum)
	})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", MapServiceStats, err)
	}
	for i, id := range ids {
		sums[i] = all[id]
	}
	return sums, nil
}

func (s *ServiceStats) add(o ServiceStats) {
	s.Connections += o.Connections
	s.Refused += o.Refused
	s.NoBackend += o.NoBackend
}

// Drops implements Reader.
func (k *Kernel) Drops() ([]uint64, error) {
	var sums []uint64
	err := eachCPUs(k.maps[MapDrops], k.maps[MapDrops].MaxEntries(), func(cpus []uint64) {
		var sum uint64
		for _, c := range cpus {
			sum += c
		}
		sums = append(sums, sum)
	})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", MapDrops, err)
	}
	return sums, nil
}

// Services implements Reader.
func (k *Kernel) Services() iter.Seq2[Entry[Frontend, Service], error] {
	return entries[Frontend, Service](k, MapServices)
}

// Backends implements Reader.
func (k *Kernel) Backends() iter.Seq2[Backend, error] {
	return func(yield func(Backend, error) bool) {
		for e, err := range entries[uint32, Backend](k, MapBackends) {
			if !yield(e.Value, err) {
				return
			}
		}
	}
}

// Addresses implements Reader.
func (k *Kernel) Addresses() iter.Seq2[Entry[Address, AddressFlags], error] {
	return entries[Address, AddressFlags](k, MapAddresses)
}

// ServiceNames implements Reader.
func (k *Kernel) ServiceNames() iter.Seq2[Entry[uint32, ServiceName], error] {
	return entries[uint32, ServiceName](k, MapServiceNames)
}

// SourceRanges implements Reader. A trie can only be walked from key to key: the walk begins again when the key where it
// stands has been deleted, so what it has shown is remembered.
func (k *Kernel) SourceRanges() iter.Seq2[SourceRange, error] {
	return func(yield func(SourceRange, error) bool) {
		m := k.maps[MapSourceRanges]
		shown := map[SourceRange]struct{}{}
		for attempt := 1; ; attempt++ {
			var key SourceRange
			value := make([]byte, m.ValueSize())
			it := m.Iterate()
			for it.Next(&key, &value) {
				if _, again := shown[key]; again {
					continue
				}
				shown[key] = struct{}{}
				if !yield(key, nil) {
					return
				}
			}
			err := it.Err()
			if errors.Is(err, ebpf.ErrIterationAborted) && attempt < 10 {
				continue // it has begun again so often that it may have missed something
			}
			if err != nil {
				yield(SourceRange{}, fmt.Errorf("read map %s: %w", MapSourceRanges, err))
			}
			return
		}
	}
}

// AffinityEntries implements Reader.
func (k *Kernel) AffinityEntries() iter.Seq2[Entry[AffinityKey, AffinityValue], error] {
	return entries[AffinityKey, AffinityValue](k, MapAffinity)
}

// Usage implements Reader. It counts by reading, as the kernel keeps no count.
func (k *Kernel) Usage() (map[string]Usage, error) {
	usage := map[string]Usage{}
	var firstErr error
	set := func(name string, used int, err error) {
		usage[name] = Usage{Used: uint32(used), Capacity: k.maps[name].MaxEntries()}
		if firstErr == nil {
			firstErr = err
		}
	}
	runs := map[Run]struct{}{}
	services, err := count(k.Services(), func(e Entry[Frontend, Service]) {
		runs[e.Value.Internal], runs[e.Value.External] = struct{}{}, struct{}{}
	})
	set(MapServices, services, err)
	cells := 0
	for r := range runs {
		cells += int(r.Count)
	}
	set(MapSlots, cells, nil)
	backends, err := count(k.Backends(), nil)
	set(MapBackends, backends, err)
	addresses, err := count(k.Addresses(), nil)
	set(MapAddresses, addresses, err)
	names, err := count(k.ServiceNames(), nil)
	set(MapServiceNames, names, err)
	ranges, err := count(k.SourceRanges(), nil)
	set(MapSourceRanges, ranges, err)
	pins, err := count(k.AffinityEntries(), nil)
	set(MapAffinity, pins, err)
	if k.maps[MapConntrack] != nil {
		flows, err := count(k.Flows(), nil)
		set(MapConntrack, flows, err)
	}
	return usage, firstErr
}

func count[T any](all iter.Seq2[T, error], visit func(T)) (int, error) {
	n := 0
	for e, err := range all {
		if err != nil {
			return n, err
		}
		if visit != nil {
			visit(e)
		}
		n++
	}
	return n, nil
}

func lookup(k *Kernel, name string, key, value any) (bool, error) {
	err := k.maps[name].Lookup(key, value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read map %s: %w", name, err)
	}
	return true, nil
}

// entries reads a hash table bucket by bucket. Unlike a walk from key to key, that neither starts again nor ends
// early when the program deletes or evicts the element where the walk stands.
func entries[K, V any](k *Kernel, name string) iter.Seq2[Entry[K, V], error] {
	return func(yield func(Entry[K, V], error) bool) {
		m := k.maps[name]
		var cursor ebpf.MapBatchCursor
		size := min(batchSize, m.MaxEntries())
		keys, values := make([]K, size), make([]V, size)
		for {
			n, err := m.BatchLookup(&cursor, keys, values, nil)
			if errors.Is(err, unix.ENOSPC) && len(keys) < int(m.MaxEntries()) {
				// One bucket holds more than that. The cursor still stands before it.
				keys, values = make([]K, 2*len(keys)), make([]V, 2*len(values))
				continue
			}
			end := errors.Is(err, ebpf.ErrKeyNotExist)
			if err != nil && !end {
				yield(Entry[K, V]{}, fmt.Errorf("read map %s: %w", name, err))
				return
			}
			for i := range n {
				if !yield(Entry[K, V]{keys[i], values[i]}, nil) {
					return
				}
			}
			if end {
				return
			}
		}
	}
}

// eachCPUs reads the first n elements of a per-CPU array in order, each as its value on every CPU.
func eachCPUs[V any](m *ebpf.Map, n uint32, visit func(cpus []V)) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	var cursor ebpf.MapBatchCursor
	for read := uint32(0); read < n; {
		size := min(batchSize, n-read)
		keys, values := make([]uint32, size), make([]V, int(size)*cpus)
		got, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range got {
			visit(values[i*cpus : (i+1)*cpus])
		}
		read += uint32(got)
		if got == 0 {
			return fmt.Errorf("ended at element %d of %d", read, n)
		}
	}
	return nil
}
