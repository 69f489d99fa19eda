// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"net"
	"strings"
	"testing"
)

func TestProgramsGoWherePacketsPassOnce(t *testing.T) {
	t.Parallel()
	bridgeMAC := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	bridge := &Device{Name: "cni0", Kind: "bridge", MAC: bridgeMAC}
	uplink := Device{Kind: "device", Encapsulation: "ether", Networks: true}
	pod := Device{Kind: "veth", Encapsulation: "ether"}
	with := func(d Device, change func(*Device)) Device { change(&d); return d }
	for name, c := range map[string]struct {
		device   Device
		patterns string
		want     string // properties, "-": not attached
	}{
		"hardware":                     {device: uplink, want: "ethernet"},
		"end of a pod's veth":          {device: pod, want: "ethernet behind"},
		"veth as the way out":          {device: with(pod, func(d *Device) { d.Networks = true }), want: "ethernet"},
		"port of a bridge":             {device: with(pod, func(d *Device) { d.Master = bridge }), want: "ethernet behind port"},
		"hardware in a bridge":         {device: with(uplink, func(d *Device) { d.Master = bridge }), want: "ethernet port"},
		"bridge":                       {device: Device{Kind: "bridge", Encapsulation: "ether"}, want: "-"},
		"bond":                         {device: Device{Kind: "bond", Encapsulation: "ether"}, want: "ethernet"},
		"port of a bond":               {device: with(uplink, func(d *Device) { d.Master = &Device{Kind: "bond"} }), want: "-"},
		"port of a team":               {device: with(uplink, func(d *Device) { d.Master = &Device{Kind: "team"} }), want: "-"},
		"member of a VRF":              {device: with(uplink, func(d *Device) { d.Master = &Device{Kind: "vrf"} }), want: "ethernet"},
		"VRF":                          {device: Device{Kind: "vrf", Encapsulation: "ether"}, want: "-"},
		"VLAN":                         {device: Device{Kind: "vlan", Encapsulation: "ether"}, want: "ethernet"},
		"VXLAN":                        {device: Device{Kind: "vxlan", Encapsulation: "ether"}, want: "ethernet"},
		"Geneve":                       {device: Device{Kind: "geneve", Encapsulation: "ether"}, want: "ethernet"},
		"WireGuard":                    {device: Device{Kind: "wireguard", Encapsulation: "none", Up: true}, want: ""},
		"tun":                          {device: Device{Kind: "tuntap", Encapsulation: "none", Up: true}, want: "behind"},
		"tap":                          {device: Device{Kind: "tuntap", Encapsulation: "ether"}, want: "ethernet behind"},
		"IPIP":                         {device: Device{Kind: "ipip", Encapsulation: "ipip", Up: true}, want: ""},
		"IPIP, as the kernel makes it": {device: Device{Kind: "ipip", Encapsulation: "ipip"}, want: "-"},
		"loopback":                     {device: Device{Kind: "device", Encapsulation: "loopback", Loopback: true}, want: "-"},
		"dummy":                        {device: Device{Name: "kube-ipvs0", Kind: "dummy", Encapsulation: "ether"}, want: "-"},
		"node-local DNS":               {device: Device{Name: "nodelocaldns", Kind: "dummy", Encapsulation: "ether"}, want: "-"},
		"ifb":                          {device: Device{Kind: "ifb", Encapsulation: "ether"}, want: "-"},
		"Open vSwitch's datapath":      {device: Device{Name: "ovs-system", Kind: "openvswitch", Encapsulation: "ether"}, want: "-"},
		"Open vSwitch's internal port": {device: Device{Name: "mp0", Kind: "openvswitch", Encapsulation: "ether"}, want: "ethernet"},
		"port of Open vSwitch":         {device: with(pod, func(d *Device) { d.Master = &Device{Kind: "openvswitch"} }), want: "-"},
		"link layer unheard of":        {device: Device{Kind: "device", Encapsulation: "infiniband"}, want: "-"},

		"chosen by name":              {device: with(uplink, func(d *Device) { d.Name = "eth0" }), patterns: "eth*", want: "ethernet"},
		"not chosen by name":          {device: with(uplink, func(d *Device) { d.Name = "ens3" }), patterns: "eth*", want: "-"},
		"excluded by name":            {device: with(uplink, func(d *Device) { d.Name = "eth1" }), patterns: "!eth1", want: "-"},
		"another is excluded by name": {device: with(uplink, func(d *Device) { d.Name = "eth0" }), patterns: "!eth1", want: "ethernet"},
		"chosen but excluded":         {device: with(uplink, func(d *Device) { d.Name = "eth1" }), patterns: "eth*,!eth1", want: "-"},
		"a kind that is not usual, chosen": {
			device: Device{Name: "br0", Kind: "bridge", Encapsulation: "ether"}, patterns: "br0", want: "ethernet",
		},
		"loopback, chosen": {device: Device{Name: "lo", Encapsulation: "loopback", Loopback: true}, patterns: "*", want: "-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var patterns Patterns
			if c.patterns != "" {
				patterns = strings.Split(c.patterns, ",")
			}
			port, ok := Decide(c.device, patterns)
			got := "-"
			if ok {
				got = properties(port)
			}
			if got != c.want {
				t.Errorf("decided %q, want %q", got, c.want)
			}
			if port.BridgePort && port.MAC.String() != bridgeMAC.String() {
				t.Errorf("frames for the node go to %s, want the bridge's address", port.MAC)
			}
		})
	}
}

func properties(p Port) string {
	var words []string
	for _, property := range []struct {
		has  bool
		word string
	}{{p.Ethernet, "ethernet"}, {p.BehindNode, "behind"}, {p.BridgePort, "port"}} {
		if property.has {
			words = append(words, property.word)
		}
	}
	return strings.Join(words, " ")
}
