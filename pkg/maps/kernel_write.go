// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

var _ Writer = (*Kernel)(nil)

// PutServices implements Writer.
func (k *Kernel) PutServices(keys []Frontend, values []Service) (int, error) {
	return put(k, MapServices, keys, values)
}

// DeleteServices implements Writer.
func (k *Kernel) DeleteServices(keys []Frontend) (int, error) { return remove(k, MapServices, keys) }

// PutBackends implements Writer.
func (k *Kernel) PutBackends(backends []Backend) (int, error) {
	ids := make([]uint32, len(backends))
	for i := range backends {
		ids[i] = backends[i].BackendID
	}
	return put(k, MapBackends, ids, backends)
}

// DeleteBackends implements Writer.
func (k *Kernel) DeleteBackends(ids []uint32) (int, error) { return remove(k, MapBackends, ids) }

// PutSlots implements Writer.
func (k *Kernel) PutSlots(base uint32, ids []uint32) error {
	if len(ids) == 0 {
		return nil
	}
	if err := k.checkRun(base, len(ids)); err != nil {
		return err
	}
	cells, err := k.slots()
	if err != nil {
		return err
	}
	buf := make([]byte, cellStride*len(ids))
	for i, id := range ids {
		binary.NativeEndian.PutUint32(buf[cellStride*i:], id)
	}
	if _, err := cells.WriteAt(buf, cellStride*int64(base)); err != nil {
		return fmt.Errorf("write map slots: %w", err)
	}
	return nil
}

// PutAddresses implements Writer.
func (k *Kernel) PutAddresses(keys []Address, values []AddressFlags) (int, error) {
	return put(k, MapAddresses, keys, values)
}

// DeleteAddresses implements Writer.
func (k *Kernel) DeleteAddresses(keys []Address) (int, error) { return remove(k, MapAddresses, keys) }

// PutServiceNames implements Writer.
func (k *Kernel) PutServiceNames(ids []uint32, names []ServiceName) (int, error) {
	return put(k, MapServiceNames, ids, names)
}

// DeleteServiceNames implements Writer.
func (k *Kernel) DeleteServiceNames(ids []uint32) (int, error) {
	return remove(k, MapServiceNames, ids)
}

// PutSourceRanges implements Writer.
func (k *Kernel) PutSourceRanges(ranges []SourceRange) (int, error) {
	// The value means nothing; its size is the map's.
	none := make([]byte, k.maps[MapSourceRanges].ValueSize())
	for i := range ranges {
		if err := k.maps[MapSourceRanges].Put(&ranges[i], none); err != nil {
			return i, k.writeError(MapSourceRanges, err)
		}
	}
	return len(ranges), nil
}

// DeleteSourceRanges implements Writer.
func (k *Kernel) DeleteSourceRanges(ranges []SourceRange) (int, error) {
	return remove(k, MapSourceRanges, ranges)
}

// ResetServiceStats implements Writer.
func (k *Kernel) ResetServiceStats(ids []uint32) (int, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	zero := make([]ServiceStats, cpus)
	for i, id := range ids {
		if err := k.maps[MapServiceStats].Put(id, zero); err != nil {
			return i, k.writeError(MapServiceStats, err)
		}
		if err := k.resetPacketStats(id, cpus); err != nil {
			return i, err
		}
	}
	return len(ids), nil
}

// PutMeta implements Writer.
func (k *Kernel) PutMeta(m Meta) error {
	if err := k.maps[MapMeta].Put(uint32(0), &m); err != nil {
		return k.writeError(MapMeta, err)
	}
	return nil
}

func (k *Kernel) writeError(name string, err error) error {
	if full(err) {
		return &FullError{Map: name, Size: k.maps[name].MaxEntries()}
	}
	return fmt.Errorf("write map %s: %w", name, err)
}

// put writes elements in as few system calls as the kernel allows. A batch stops at its first failure, and what it
// says of how far it came is not reliable for every failure; so that element is tried alone, and its answer counts.
func put[K, V any](k *Kernel, name string, keys []K, values []V) (int, error) {
	m, done := k.maps[name], 0
	for done < len(keys) {
		if rest := len(keys) - done; rest > 1 {
			n, err := m.BatchUpdate(keys[done:], values[done:], nil)
			if err == nil {
				return len(keys), nil
			}
			if n < rest {
				done += n
			}
		}
		if err := m.Put(&keys[done], &values[done]); err != nil {
			return done, k.writeError(name, err)
		}
		done++
	}
	return done, nil
}

// remove is put for deletions. A batch stops at the first key that is not there.
func remove[K any](k *Kernel, name string, keys []K) (int, error) {
	m, done := k.maps[name], 0
	for done < len(keys) {
		if rest := len(keys) - done; rest > 1 {
			n, err := m.BatchDelete(keys[done:], nil)
			if err == nil {
				return len(keys), nil
			}
			if n < rest {
				done += n
			}
		}
		if err := m.Delete(&keys[done]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return done, k.writeError(name, err)
		}
		done++
	}
	return done, nil
}
