// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// Resize is a pinned map that keeps its size although another one was asked for.
type Resize struct {
	Map            string
	Pinned, Wanted uint32
	// Cause is why: what is in it does not fit, or the kernel has no memory.
	Cause error
}

// String says it in a sentence.
func (r Resize) String() string {
	return fmt.Sprintf("map %s stays at %d elements, %d were asked for: %v", r.Map, r.Pinned, r.Wanted, r.Cause)
}

var errCellsInUse = errors.New("its cells are in use, it can only grow; `shunt cleanup` and a new start make it smaller")

// resize makes a map of another size beside the pinned one, with the same content, and pins it in its place. Programs
// that are attached go on with the old map, whose content nobody changes, until those of this Load replace them; what
// they count or bind meanwhile is lost. The lock sees to it that nobody writes.
func (d *Datapath) resize(spec *ebpf.MapSpec, pinned *ebpf.Map) (*ebpf.Map, error) {
	if spec.Type == ebpf.Array && spec.MaxEntries < pinned.MaxEntries() {
		return nil, errCellsInUse
	}
	if spec.Name == maps.MapServiceStats {
		if err := d.idsFit(spec.MaxEntries); err != nil {
			return nil, err
		}
	}
	fresh, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make it anew: %w", permission(err))
	}
	if err := errors.Join(copyMap(fresh, pinned), repin(fresh, filepath.Join(d.directory.Path, spec.Name))); err != nil {
		return nil, errors.Join(err, fresh.Close())
	}
	return fresh, nil
}

// idsFit refuses a number of counters that leaves out a service id in use. Ids are the lowest free ones, but those of a
// node that had more Services are not: their counters would be lost, and the ids never given up.
func (d *Datapath) idsFit(counters uint32) error {
	var id uint32
	var name maps.ServiceName
	names := d.Maps[maps.MapServiceNames].Iterate() // opened before: maps are in the order of their names
	for names.Next(&id, &name) {
		if id >= counters {
			return fmt.Errorf("service id %d is in use; `shunt cleanup` and a new start make it smaller", id)
		}
	}
	if err := names.Err(); err != nil {
		return fmt.Errorf("read which service ids are in use: %w", err)
	}
	return nil
}

func copyMap(to, from *ebpf.Map) error {
	switch from.Type() {
	case ebpf.Array:
		return copyMemory(to, from)
	case ebpf.PerCPUArray:
		return copyCounters(to, from)
	}
	var key, value []byte
	elements := from.Iterate()
	for elements.Next(&key, &value) {
		if err := to.Put(key, value); err != nil {
			return fmt.Errorf("carry its content over: %w", err)
		}
	}
	// LRU elements may be evicted under the iteration; it then ends early, and bindings are lost as when it is full.
	if err := elements.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read its content: %w", err)
	}
	return nil
}

// copyMemory copies an array that can be mapped, as slots is.
func copyMemory(to, from *ebpf.Map) error {
	source, err := from.Memory()
	if err != nil {
		return fmt.Errorf("map it into memory: %w", err)
	}
	target, err := to.Memory()
	if err != nil {
		return fmt.Errorf("map the new one into memory: %w", err)
	}
	content := make([]byte, source.Size())
	if _, err := source.ReadAt(content, 0); err != nil {
		return fmt.Errorf("read its content: %w", err)
	}
	if _, err := target.WriteAt(content, 0); err != nil {
		return fmt.Errorf("carry its content over: %w", err)
	}
	return nil
}

// copyCounters copies service_stats, as far as there are ids in the smaller one.
func copyCounters(to, from *ebpf.Map) error {
	for id := range min(to.MaxEntries(), from.MaxEntries()) {
		var counters []maps.ServiceStats
		if err := from.Lookup(id, &counters); err != nil {
			return fmt.Errorf("read its content: %w", err)
		}
		if err := to.Put(id, counters); err != nil {
			return fmt.Errorf("carry its content over: %w", err)
		}
	}
	return nil
}

// repin puts a map in the place of a pinned one, in one step.
func repin(m *ebpf.Map, path string) error {
	fresh := path + "-new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove half-made pin: %w", err)
	}
	if err := m.Pin(fresh); err != nil {
		return fmt.Errorf("pin the new one: %w", permission(err))
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("pin the new one: %w", err)
	}
	return nil
}
