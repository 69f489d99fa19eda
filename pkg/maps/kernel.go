// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The errors of Open that a caller may want to tell apart.
var (
	ErrNotPinned    = errors.New("nothing is pinned here: shunt is not running on this node, or --bpffs is wrong")
	ErrNoPermission = errors.New("no permission: run this as root, or with CAP_BPF and access to the bpffs")
)

// LayoutError tells that the pinned maps belong to a shunt with other structures.
type LayoutError struct {
	Pinned, Known uint32
}

// Error says what to do.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("the maps have layout %d and this shunt knows layout %d: use the version that the agent runs, "+
		"or restart the agent with this one", e.Pinned, e.Known)
}

// Options are how the maps are opened.
type Options struct {
	// ReadOnly is for the commands: the kernel refuses each write.
	ReadOnly bool
}

// Kernel is the pinned maps. Its reading methods may be called from several goroutines at once, and while one
// goroutine writes.
type Kernel struct {
	maps     map[string]*ebpf.Map
	readOnly bool
	mu       sync.Mutex // guards cells, which is mapped at its first use
	// cells is slots, mapped into this process: a run is written without a system call per cell.
	cells *ebpf.Memory
}

// shape is what a map must look like for this package's structures.
type shape struct {
	key, value uintptr // value 0: any
}

func shapes() map[string]shape {
	size := func(v any) uintptr { return uintptr(binary.Size(v)) }
	word := size(uint32(0))
	return map[string]shape{
		MapServices:     {size(Frontend{}), size(Service{})},
		MapBackends:     {word, size(Backend{})},
		MapSlots:        {word, word},
		MapAddresses:    {size(Address{}), word},
		MapAffinity:     {size(AffinityKey{}), size(AffinityValue{})},
		MapSourceRanges: {size(SourceRange{}), 0},
		MapServiceNames: {word, size(ServiceName{})},
		MapServiceStats: {word, size(ServiceStats{})},
		MapDrops:        {word, size(uint64(0))},
		MapMeta:         {word, size(Meta{})},
	}
}

// Open opens the maps pinned in dir, which is <bpffs>/shunt.
func Open(dir string, o Options) (*Kernel, error) {
	k := &Kernel{maps: map[string]*ebpf.Map{}, readOnly: o.ReadOnly}
	if err := k.open(dir, o); err != nil {
		k.Close()
		return nil, fmt.Errorf("open maps in %s: %w", dir, err)
	}
	return k, nil
}

func (k *Kernel) open(dir string, o Options) error {
	// First meta: with another layout the other maps may be missing or different.
	if err := k.openPin(dir, MapMeta, o); err != nil {
		return err
	}
	meta, err := k.Meta()
	if err != nil {
		return err
	}
	if meta.LayoutVersion != LayoutVersion {
		return &LayoutError{Pinned: meta.LayoutVersion, Known: LayoutVersion}
	}
	for name := range shapes() {
		if err := k.openPin(dir, name, o); err != nil {
			return err
		}
	}
	return k.openPacketPins(dir, o)
}

func (k *Kernel) openPin(dir, name string, o Options) error {
	if k.maps[name] != nil {
		return nil
	}
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), &ebpf.LoadPinOptions{ReadOnly: o.ReadOnly})
	switch {
	case err == nil:
	case errors.Is(err, os.ErrNotExist) && len(k.maps) == 0:
		return ErrNotPinned
	case errors.Is(err, fs.ErrPermission):
		return ErrNoPermission
	default:
		return fmt.Errorf("open map %s: %w", name, err)
	}
	k.maps[name] = m
	return checkShape(name, m)
}

func checkShape(name string, m *ebpf.Map) error { return shapes()[name].check(name, m) }

func (s shape) check(name string, m *ebpf.Map) error {
	if m.KeySize() != uint32(s.key) || s.value != 0 && m.ValueSize() != uint32(s.value) {
		return fmt.Errorf("map %s has keys of %d and values of %d bytes, not %d and %d: another program's pin, or "+
			"another version's", name, m.KeySize(), m.ValueSize(), s.key, s.value)
	}
	return nil
}

// Close closes the maps; they stay pinned.
func (k *Kernel) Close() {
	for _, m := range k.maps {
		m.Close()
	}
}

// Capacity implements Writer.
func (k *Kernel) Capacity() map[string]uint32 {
	c := make(map[string]uint32, len(k.maps))
	for name, m := range k.maps {
		c[name] = m.MaxEntries()
	}
	return c
}

// cellStride is the distance of two cells of slots in the mapping: the kernel rounds a value's 4 bytes up.
const cellStride = 8

// slots returns the mapped cells. The kernel shares no mapping of a map that is open for reading only.
func (k *Kernel) slots() (*ebpf.Memory, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cells == nil {
		cells, err := k.maps[MapSlots].Memory()
		if err != nil {
			return nil, fmt.Errorf("map slots into memory: %w", err)
		}
		k.cells = cells
	}
	return k.cells, nil
}

// checkRun refuses cells beyond the end of slots.
func (k *Kernel) checkRun(base uint32, count int) error {
	if size := k.maps[MapSlots].MaxEntries(); uint64(base)+uint64(count) > uint64(size) {
		return fmt.Errorf("run of %d cells at %d is beyond the %d cells of map slots", count, base, size)
	}
	return nil
}

// full tells whether err is the kernel's answer for a map without room: hash tables and tries have one each.
func full(err error) bool {
	return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC)
}
