// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"iter"
)

// fakePackets is the packet path's part of a Fake.
type fakePackets struct {
	flows    map[ConntrackKey]ConntrackValue
	stats    map[uint32]PacketStats
	settings *PacketSettings
}

// EnablePackets puts the packet path's maps there.
func (f *Fake) EnablePackets(s PacketSettings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.packets = fakePackets{
		flows: map[ConntrackKey]ConntrackValue{}, stats: map[uint32]PacketStats{}, settings: &s,
	}
}

// PutFlow tracks one direction of a flow, as a program does.
func (f *Fake) PutFlow(k ConntrackKey, v ConntrackValue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.packets.flows[k] = v
}

// AddPacketStats counts, as a program does.
func (f *Fake) AddPacketStats(id uint32, s PacketStats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.packets.stats[id]
	sum.Add(s)
	f.packets.stats[id] = sum
}

// Flows implements Reader.
func (f *Fake) Flows() iter.Seq2[Entry[ConntrackKey, ConntrackValue], error] {
	return list(f, f.packets.flows, func(a, b ConntrackKey) int {
		return cmp.Or(compareAddresses(a.Source, b.Source), compareAddresses(a.Destination, b.Destination),
			cmp.Compare(a.SourcePort, b.SourcePort), cmp.Compare(a.DestinationPort, b.DestinationPort),
			cmp.Compare(a.Protocol, b.Protocol))
	})
}

// PacketStats implements Reader.
func (f *Fake) PacketStats(ids []uint32) ([]PacketStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.packets.settings == nil {
		return nil, nil
	}
	sums := make([]PacketStats, len(ids))
	for i, id := range ids {
		sums[i] = f.packets.stats[id]
	}
	return sums, nil
}

// PacketSettings implements Reader.
func (f *Fake) PacketSettings() (PacketSettings, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.packets.settings == nil {
		return PacketSettings{}, false, nil
	}
	return *f.packets.settings, true, nil
}
