// SPDX-License-Identifier: Apache-2.0

// Package maps proves pkg/maps and pkg/writer on real maps in a bpffs of their own.
package maps

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// size is the number of elements of each map of a test.
const size = 1 << 13

// bpffs mounts a bpffs for one test and returns the directory for the pins in it.
func bpffs(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("makes BPF maps and mounts a bpffs: run as root")
	}
	root := t.TempDir()
	if err := unix.Mount("bpf", root, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755"); err != nil {
		t.Fatalf("mount bpffs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount bpffs: %v", err)
		}
	})
	dir := filepath.Join(root, "shunt")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func specs(capacity map[string]uint32) []*ebpf.MapSpec {
	all := []*ebpf.MapSpec{
		{Name: maps.MapServices, Type: ebpf.Hash, KeySize: sizeOf(maps.Frontend{}), ValueSize: sizeOf(maps.Service{})},
		{Name: maps.MapBackends, Type: ebpf.Hash, KeySize: 4, ValueSize: sizeOf(maps.Backend{})},
		{Name: maps.MapSlots, Type: ebpf.Array, KeySize: 4, ValueSize: 4, Flags: unix.BPF_F_MMAPABLE},
		{Name: maps.MapAddresses, Type: ebpf.Hash, KeySize: sizeOf(maps.Address{}), ValueSize: 4},
		{Name: maps.MapAffinity, Type: ebpf.LRUHash, KeySize: sizeOf(maps.AffinityKey{}),
			ValueSize: sizeOf(maps.AffinityValue{})},
		{Name: maps.MapSourceRanges, Type: ebpf.LPMTrie, KeySize: sizeOf(maps.SourceRange{}), ValueSize: 4,
			Flags: unix.BPF_F_NO_PREALLOC},
		{Name: maps.MapServiceNames, Type: ebpf.Hash, KeySize: 4, ValueSize: sizeOf(maps.ServiceName{}),
			Flags: unix.BPF_F_NO_PREALLOC},
		{Name: maps.MapServiceStats, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: sizeOf(maps.ServiceStats{})},
		{Name: maps.MapDrops, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 5},
		{Name: maps.MapMeta, Type: ebpf.Array, KeySize: 4, ValueSize: sizeOf(maps.Meta{}), MaxEntries: 1},
	}
	for _, s := range all {
		if c, ok := capacity[s.Name]; ok {
			s.MaxEntries = c
		} else if s.MaxEntries == 0 {
			s.MaxEntries = size
		}
	}
	return all
}

func sizeOf(v any) uint32 { return uint32(binary.Size(v)) }

// pin makes the maps and pins them in dir; it returns them, as a program would have them.
func pin(t testing.TB, dir string, capacity map[string]uint32) map[string]*ebpf.Map {
	t.Helper()
	made := map[string]*ebpf.Map{}
	for _, s := range specs(capacity) {
		m, err := ebpf.NewMap(s)
		if err != nil {
			t.Fatalf("make map %s: %v", s.Name, err)
		}
		t.Cleanup(func() { m.Close() })
		if err := m.Pin(filepath.Join(dir, s.Name)); err != nil {
			t.Fatalf("pin map %s: %v", s.Name, err)
		}
		made[s.Name] = m
	}
	meta := maps.Meta{LayoutVersion: maps.LayoutVersion}
	if err := made[maps.MapMeta].Put(uint32(0), &meta); err != nil {
		t.Fatal(err)
	}
	return made
}

func open(t testing.TB, dir string, o maps.Options) *maps.Kernel {
	t.Helper()
	k, err := maps.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// kernel is new maps, opened for writing.
func kernel(t testing.TB, capacity map[string]uint32) (*maps.Kernel, map[string]*ebpf.Map) {
	t.Helper()
	dir := bpffs(t)
	made := pin(t, dir, capacity)
	return open(t, dir, maps.Options{}), made
}
