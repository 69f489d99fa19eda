// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/netdev"
)

func TestSourcePortsAreBesideTheKernelsOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                   string
		low, high, first, last uint16
	}{
		{"the kernel's default", 32768, 60999, 1024, 32767},
		{"up to the end", 32768, 65535, 1024, 32767},
		{"all of them", 1024, 65535, 49152, 65535},
		{"few above", 2048, 65000, 1024, 2047},
		{"more above", 4096, 49151, 49152, 65535},
		{"few above and below", 1100, 65000, 49152, 65535},
		{"low ones", 1024, 4999, 5000, 65535},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if first, last := snatPorts(c.low, c.high); first != c.first || last != c.last {
				t.Errorf("%d to %d, want %d to %d", first, last, c.first, c.last)
			}
		})
	}
}

func TestModesDecideWhoIsAPod(t *testing.T) {
	t.Parallel()
	bridge := &netdev.Device{Name: "cni0", Kind: "bridge"}
	port := netdev.Port{Device: netdev.Device{Name: "veth1", Master: bridge}, BridgePort: true}
	alone := netdev.Port{Device: netdev.Device{Name: "cali1"}}
	for _, c := range []struct {
		name          string
		mode          config.LocalMode
		bridge        string
		prefix        string
		port, alone   bool
		flags         maps.PacketFlags
		prefixesCount int
	}{
		{name: "by range", mode: config.LocalModeClusterCIDR, prefixesCount: 2},
		{name: "by the node's range", mode: config.LocalModeNodeCIDR, flags: maps.PacketNodePods},
		{name: "by bridge", mode: config.LocalModeBridgeInterface, bridge: "cni0", port: true,
			flags: maps.PacketNodePods | maps.PacketDevicePods},
		{name: "by another bridge", mode: config.LocalModeBridgeInterface, bridge: "br0",
			flags: maps.PacketNodePods | maps.PacketDevicePods},
		{name: "by prefix", mode: config.LocalModeInterfaceNamePrefix, prefix: "cali", alone: true,
			flags: maps.PacketNodePods | maps.PacketDevicePods},
		{name: "by a bridge's prefix", mode: config.LocalModeInterfaceNamePrefix, prefix: "cni", port: true,
			flags: maps.PacketNodePods | maps.PacketDevicePods},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := config.Default()
			cfg.DetectLocalMode, cfg.PodBridgeInterface, cfg.PodInterfaceNamePrefix = c.mode, c.bridge, c.prefix
			cfg.ClusterCIDRs = []string{"10.244.0.0/16", "fd00:10:244::/48"}
			if got := hasPods(&cfg, port); got != c.port {
				t.Errorf("pods behind a port of cni0: %v, want %v", got, c.port)
			}
			if got := hasPods(&cfg, alone); got != c.alone {
				t.Errorf("pods behind cali1: %v, want %v", got, c.alone)
			}
			s, err := packetSettings(&cfg)
			if err != nil {
				t.Fatal(err)
			}
			if s.Flags != c.flags {
				t.Errorf("flags %b, want %b", s.Flags, c.flags)
			}
			count := 0
			for _, p := range s.Pods {
				if p.Bits > 0 {
					count++
				}
			}
			if count != c.prefixesCount {
				t.Errorf("%d ranges of pods, want %d", count, c.prefixesCount)
			}
		})
	}
}

func TestPrefixesCountTheBitsOfMappedAddresses(t *testing.T) {
	t.Parallel()
	got := prefixArray([]netip.Prefix{netip.MustParsePrefix("10.96.1.2/16"), netip.MustParsePrefix("fd00::/112")})
	want := [maps.PacketPrefixes]maps.Prefix{
		{Address: maps.AddressOf(netip.MustParseAddr("10.96.0.0")), Bits: 112},
		{Address: maps.AddressOf(netip.MustParseAddr("fd00::")), Bits: 112},
	}
	if got != want {
		t.Errorf("%v, want %v", got, want)
	}
	many := make([]netip.Prefix, maps.PacketPrefixes+1)
	for i := range many {
		many[i] = netip.MustParsePrefix("10.0.0.0/8")
	}
	if last := prefixArray(many)[maps.PacketPrefixes-1]; last.Bits != 104 {
		t.Errorf("of more prefixes than there is room for, the last is %v", last)
	}
}
