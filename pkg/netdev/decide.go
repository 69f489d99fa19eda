// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"net"
	"path"
	"slices"
	"strings"
)

// Device is what is known of one device of the node.
type Device struct {
	Index int
	Name  string
	// Kind is the kernel's word for a virtual device (veth, bridge, vxlan), "device" for any other.
	Kind string
	// Encapsulation is the kernel's word for its link layer: ether, none, ipip.
	Encapsulation string
	MAC           net.HardwareAddr
	Loopback, Up  bool
	// Networks tells that the device has an address with a network behind it: not a host's own /32 or /128 alone.
	Networks bool
	// MasterIndex is the device that this one is a port of, 0 for none. Master is what is known of it.
	MasterIndex int
	Master      *Device
}

// Port is what the packet path does with a device.
type Port struct {
	Device
	// Ethernet: its packets have an Ethernet header.
	Ethernet bool
	// BridgePort: frames to the bridge's MAC address, which is MAC then, are for this node.
	BridgePort bool
	// BehindNode: who is behind it has no way to this node but through it.
	BehindNode bool
}

// Patterns choose devices by name (--devices): shell patterns, of which one with ! in front excludes. Without one that
// includes, devices are chosen by their kind.
type Patterns []string

// match tells whether the patterns choose a name, and whether any includes at all. pkg/config has found no fault in them.
func (p Patterns) match(name string) (included, excluded, includes bool) {
	for _, pattern := range p {
		negative := strings.HasPrefix(pattern, "!")
		ok, _ := path.Match(strings.TrimPrefix(pattern, "!"), name)
		included = included || ok && !negative
		excluded = excluded || ok && negative
		includes = includes || !negative
	}
	return included, excluded, includes
}

// ethernetKinds are the devices that carry clients or backends in Ethernet frames; "device" is all hardware.
var ethernetKinds = []string{
	"device", "veth", "netkit", "vlan", "vxlan", "geneve", "gretap", "ip6gretap", "bond", "team", "tun", "tuntap",
	"macvlan", "macvtap", "openvswitch", "hsr", "batadv",
}

// packetKinds are those whose packets have no such header.
var packetKinds = []string{
	"device", "wireguard", "tun", "tuntap", "ipip", "sit", "gre", "ip6gre", "ip6tnl", "vti", "vti6", "xfrm", "netkit",
	"ppp",
}

// packetLayers are the link layers without a header, in the words of the netlink library, which has none for IP6GRE (823)
// and raw IP (519).
var packetLayers = []string{"none", "ipip", "tunnel6", "sit", "gre", "unknown823", "ppp", "unknown519"}

// podKinds are the devices behind which something of this node's own is, a pod or a virtual machine.
var podKinds = []string{"veth", "netkit", "tun", "tuntap"}

// gatheringKinds are the masters that see all that their ports see.
var gatheringKinds = []string{"bond", "team", "openvswitch"}

// ovsDatapath is the device that all ports of Open vSwitch have for a master. It carries no packets.
const ovsDatapath = "ovs-system"

// Decide tells whether the packet path is attached to a device, and as what.
//
// A packet must meet the programs once where it enters and once where it leaves. Of a bridge it is the ports that have
// them, for what goes from port to port never meets the bridge itself; of a bond it is the bond, whose ports' packets all
// go through it. A VLAN's own device has them beside the device that carries it, because the programs leave tagged
// frames alone.
func Decide(d Device, patterns Patterns) (Port, bool) {
	included, excluded, includes := patterns.match(d.Name)
	if excluded || includes && !included || d.Loopback {
		return Port{}, false
	}
	p := Port{Device: d, Ethernet: d.Encapsulation == "ether"}
	if !p.Ethernet && !slices.Contains(packetLayers, d.Encapsulation) {
		return Port{}, false
	}
	if !includes && !p.usual() {
		return Port{}, false
	}
	if m := d.Master; m != nil && m.Kind == "bridge" {
		p.BridgePort, p.MAC = true, m.MAC
	}
	p.BehindNode = slices.Contains(podKinds, d.Kind) && !d.Networks
	return p, true
}

// usual tells whether a device gets the programs when nobody chooses.
func (p Port) usual() bool {
	if p.Name == ovsDatapath || p.Master != nil && slices.Contains(gatheringKinds, p.Master.Kind) {
		return false
	}
	if p.Ethernet {
		return slices.Contains(ethernetKinds, p.Kind)
	}
	// A tunnel that is down may be one of those that the kernel puts into each namespace.
	return p.Up && slices.Contains(packetKinds, p.Kind)
}
