// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// ErrLayout is what each LayoutError is.
var ErrLayout = errors.New("pinned maps have another layout")

// LayoutError tells that a pinned map cannot be used by these programs: another version of shunt made it, or another
// program did.
type LayoutError struct {
	Path   string
	Detail string
}

// Error names the map and what to do.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("use map %s: %s: start the version of shunt that made it, or run `shunt cleanup` and start this "+
		"one (no Service works in between)", e.Path, e.Detail)
}

// Is makes a LayoutError an ErrLayout.
func (e *LayoutError) Is(target error) bool { return target == ErrLayout }

// openMaps opens or makes and pins each map of the spec, meta first: it tells the layout of the others.
func (d *Datapath) openMaps(spec *ebpf.CollectionSpec) error {
	if err := d.openMeta(spec.Maps[maps.MapMeta]); err != nil {
		return err
	}
	for _, name := range sortedNames(spec.Maps) {
		if name == maps.MapMeta || !pinned(name) {
			continue
		}
		if _, err := d.openMap(spec.Maps[name]); err != nil {
			return err
		}
	}
	return nil
}

// pinned leaves out the constants and variables of the programs (.rodata), which belong to one loading.
func pinned(name string) bool { return !strings.HasPrefix(name, ".") }

// openMeta makes meta, or finds it and refuses what it tells of another layout.
func (d *Datapath) openMeta(spec *ebpf.MapSpec) error {
	path := filepath.Join(d.directory.Path, maps.MapMeta)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := d.refuseStrangers(); err != nil {
			return err
		}
		return d.makeMeta(spec, path)
	}
	meta, err := d.openMap(spec)
	if err != nil {
		return err
	}
	var value maps.Meta
	if err := meta.Lookup(uint32(0), &value); err != nil {
		return fmt.Errorf("read map meta: %w", err)
	}
	if value.LayoutVersion != maps.LayoutVersion {
		return &LayoutError{path, fmt.Sprintf("its layout is %d, this version's is %d", value.LayoutVersion,
			maps.LayoutVersion)}
	}
	return nil
}

// refuseStrangers refuses maps without a meta that vouches for them: meta is made first and removed last.
func (d *Datapath) refuseStrangers() error {
	entries, err := os.ReadDir(d.directory.Path)
	if err != nil {
		return fmt.Errorf("read pin directory: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			return &LayoutError{filepath.Join(d.directory.Path, e.Name()), "map meta is missing beside it"}
		}
	}
	return nil
}

// makeMeta pins meta only when its content is there. Ids begin with 1: 0 is none.
func (d *Datapath) makeMeta(spec *ebpf.MapSpec, path string) error {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return fmt.Errorf("make map meta: %w", permission(err))
	}
	d.Maps[maps.MapMeta] = m
	d.Fresh = true
	if err := m.Put(uint32(0), maps.Meta{LayoutVersion: maps.LayoutVersion, NextBackendID: 1}); err != nil {
		return fmt.Errorf("write map meta: %w", err)
	}
	if err := m.Pin(path); err != nil {
		return fmt.Errorf("pin map meta: %w", permission(err))
	}
	return nil
}

func (d *Datapath) openMap(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	path := filepath.Join(d.directory.Path, spec.Name)
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return d.makeMap(spec, path)
	}
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", path, permission(err))
	}
	d.Maps[spec.Name] = m
	if m.Type() != spec.Type || m.KeySize() != spec.KeySize || m.ValueSize() != spec.ValueSize ||
		m.Flags() != spec.Flags {
		return nil, &LayoutError{path, fmt.Sprintf("it is a %v with keys of %d and values of %d bytes and flags %#x, "+
			"not a %v with %d, %d and %#x", m.Type(), m.KeySize(), m.ValueSize(), m.Flags(), spec.Type, spec.KeySize,
			spec.ValueSize, spec.Flags)}
	}
	if m.MaxEntries() != spec.MaxEntries {
		d.fit(spec, m)
	}
	return d.Maps[spec.Name], nil
}

// fit gives the pinned map the size of the spec if that was asked for and is possible, else the spec that of the map.
func (d *Datapath) fit(spec *ebpf.MapSpec, pinned *ebpf.Map) {
	if !d.asked[spec.Name] {
		spec.MaxEntries = pinned.MaxEntries()
		return
	}
	fresh, err := d.resize(spec, pinned)
	if err != nil {
		d.Resized = append(d.Resized, Resize{spec.Name, pinned.MaxEntries(), spec.MaxEntries, err})
		spec.MaxEntries = pinned.MaxEntries()
		return
	}
	d.Maps[spec.Name] = fresh
	pinned.Close()
}

func (d *Datapath) makeMap(spec *ebpf.MapSpec, path string) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make map %s of %d elements: %w", spec.Name, spec.MaxEntries, permission(err))
	}
	d.Maps[spec.Name] = m
	if err := m.Pin(path); err != nil {
		return nil, fmt.Errorf("pin map %s: %w", path, permission(err))
	}
	return m, nil
}

// RemovePins removes all pinned maps, meta last, and then the directory if it is empty. Programs that are still
// attached keep their maps.
func RemovePins(d *Directory) error {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return fmt.Errorf("read pin directory: %w", err)
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && e.Name() != maps.MapMeta {
			names = append(names, e.Name())
		}
	}
	for _, name := range append(names, maps.MapMeta) {
		if err := os.Remove(filepath.Join(d.Path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove pin: %w", permission(err))
		}
	}
	if err := os.Remove(d.Path); err != nil {
		return fmt.Errorf("remove pin directory: %w", err)
	}
	return nil
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
