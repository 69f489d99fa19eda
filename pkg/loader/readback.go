// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// Settings are what a program in the kernel was loaded with: what its behaviour depends on beside the maps.
type Settings struct {
	// NetnsCookie is that of the node's network namespace.
	NetnsCookie uint64
	// NodeAddress4 and NodeAddress6 are invalid when there is none.
	NodeAddress4, NodeAddress6 netip.Addr
	LoopbackNodePorts          bool
	HostOnly                   bool
	RefuseBind                 bool
	Features                   Features
}

// ReadSettings reads the settings of a program that is in the kernel, whoever loaded it: they are in its map of
// constants.
func ReadSettings(id ebpf.ProgramID) (Settings, error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return Settings{}, fmt.Errorf("open program %d: %w", id, permission(err))
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return Settings{}, fmt.Errorf("read program %d: %w", id, permission(err))
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		if s, err := readConstants(id); err == nil || !errors.Is(err, errOtherMap) {
			return s, err
		}
	}
	return Settings{}, fmt.Errorf("read program %d: it has no settings: another version of shunt loaded it", id)
}

var errOtherMap = errors.New("not the constants of a program")

func readConstants(id ebpf.MapID) (Settings, error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return Settings{}, fmt.Errorf("open map %d: %w", id, permission(err))
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return Settings{}, fmt.Errorf("read map %d: %w", id, err)
	}
	var s settings
	if !strings.HasSuffix(info.Name, "rodata") || m.ValueSize() != uint32(binary.Size(s)) {
		return Settings{}, errOtherMap
	}
	value, err := m.LookupBytes(uint32(0))
	if err != nil {
		return Settings{}, fmt.Errorf("read settings: %w", err)
	}
	if err := binary.Read(bytes.NewReader(value), binary.NativeEndian, &s); err != nil {
		return Settings{}, fmt.Errorf("read settings: %w", err)
	}
	return s.readback(), nil
}

func (s settings) readback() Settings {
	has := func(f settingFlags) bool { return s.Flags&f != 0 }
	return Settings{
		NetnsCookie:       s.NodeNetnsCookie,
		NodeAddress4:      addressOrInvalid(s.NodeAddress4),
		NodeAddress6:      addressOrInvalid(s.NodeAddress6),
		LoopbackNodePorts: has(settingLoopbackNodePorts),
		HostOnly:          has(settingHostOnly),
		RefuseBind:        has(settingRefuseBind),
		Features:          Features{SetRetval: has(settingSetRetval), ReadKernel: has(settingReadKernel)},
	}
}

func addressOrInvalid(a maps.Address) netip.Addr {
	if a == (maps.Address{}) {
		return netip.Addr{}
	}
	return a.Addr()
}
