// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"net/netip"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// settings is struct settings of bpf/settings.h.
type settings struct {
	NodeNetnsCookie uint64
	UDPIdleNs       uint64
	NodeAddress4    maps.Address
	NodeAddress6    maps.Address
	Flags           settingFlags
	_               uint32
}

// settingFlags is enum setting_flag.
type settingFlags uint32

const (
	settingSetRetval settingFlags = 1 << iota
	settingReadKernel
	settingLoopbackNodePorts
	settingHostOnly
	settingRefuseBind
)

func settingsOf(o Options, has Features) (settings, error) {
	s := settings{
		NodeNetnsCookie: o.NetnsCookie,
		UDPIdleNs:       uint64(o.UDPIdle),
		NodeAddress4:    addressOrZero(o.NodeAddress4),
		NodeAddress6:    addressOrZero(o.NodeAddress6),
	}
	if s.UDPIdleNs == 0 {
		s.UDPIdleNs = uint64(DefaultUDPIdle)
	}
	if s.NodeNetnsCookie == 0 {
		cookie, err := netnsCookie()
		if err != nil {
			return settings{}, fmt.Errorf("find the node's network namespace: %w", err)
		}
		s.NodeNetnsCookie = cookie
	}
	for flag, on := range map[settingFlags]bool{
		settingSetRetval:         has.SetRetval,
		settingReadKernel:        has.ReadKernel,
		settingLoopbackNodePorts: o.LoopbackNodePorts,
		settingHostOnly:          o.HostOnly,
		settingRefuseBind:        o.RefuseBind,
	} {
		if on {
			s.Flags |= flag
		}
	}
	return s, nil
}

func addressOrZero(a netip.Addr) maps.Address {
	if !a.IsValid() {
		return maps.Address{}
	}
	return maps.AddressOf(a)
}
