// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
)

// packetShapes are the maps that are there only once the packet path has been on.
func packetShapes() map[string]shape {
	size := func(v any) uintptr { return uintptr(binary.Size(v)) }
	word := size(uint32(0))
	return map[string]shape{
		MapConntrack:      {size(ConntrackKey{}), size(ConntrackValue{})},
		MapPacketStats:    {word, size(PacketStats{})},
		MapPacketSettings: {word, size(PacketSettings{})},
	}
}

// openPacketPins opens those of the packet path's maps that are pinned.
func (k *Kernel) openPacketPins(dir string, o Options) error {
	for name, s := range packetShapes() {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), &ebpf.LoadPinOptions{ReadOnly: o.ReadOnly})
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open map %s: %w", name, err)
		}
		k.maps[name] = m
		if err := s.check(name, m); err != nil {
			return err
		}
	}
	return nil
}

// Flows implements Reader.
func (k *Kernel) Flows() iter.Seq2[Entry[ConntrackKey, ConntrackValue], error] {
	if k.maps[MapConntrack] == nil {
		return func(func(Entry[ConntrackKey, ConntrackValue], error) bool) {}
	}
	return entries[ConntrackKey, ConntrackValue](k, MapConntrack)
}

// PacketSettings implements Reader.
func (k *Kernel) PacketSettings() (s PacketSettings, ok bool, err error) {
	if k.maps[MapPacketSettings] == nil {
		return s, false, nil
	}
	ok, err = lookup(k, MapPacketSettings, new(uint32), &s)
	return s, ok, err
}

// PacketStats implements Reader.
func (k *Kernel) PacketStats(ids []uint32) ([]PacketStats, error) {
	m := k.maps[MapPacketStats]
	if m == nil || len(ids) == 0 {
		return nil, nil
	}
	last := min(slices.Max(ids), m.MaxEntries()-1)
	all := make([]PacketStats, 0, last+1)
	err := eachCPUs(m, last+1, func(cpus []PacketStats) {
		var sum PacketStats
		for _, c := range cpus {
			sum.Add(c)
		}
		all = append(all, sum)
	})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", MapPacketStats, err)
	}
	sums := make([]PacketStats, len(ids))
	for i, id := range ids {
		if id <= last {
			sums[i] = all[id]
		}
	}
	return sums, nil
}

// Add adds counters.
func (s *PacketStats) Add(o PacketStats) {
	s.Flows += o.Flows
	s.PacketsForward += o.PacketsForward
	s.BytesForward += o.BytesForward
	s.PacketsReply += o.PacketsReply
	s.BytesReply += o.BytesReply
	s.Rejected += o.Rejected
	s.Dropped += o.Dropped
}

// resetPacketStats sets the counters of an id to zero.
func (k *Kernel) resetPacketStats(id uint32, cpus int) error {
	m := k.maps[MapPacketStats]
	if m == nil || id >= m.MaxEntries() {
		return nil
	}
	if err := m.Put(id, make([]PacketStats, cpus)); err != nil {
		return k.writeError(MapPacketStats, err)
	}
	return nil
}
