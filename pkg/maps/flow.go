// SPDX-License-Identifier: Apache-2.0

package maps

import "time"

// The names of the packet path's maps, which are also those of their pins.
const (
	MapConntrack      = "conntrack"
	MapConntrackRing  = "conntrack_ring"
	MapFragments      = "fragments"
	MapPacketStats    = "packet_stats"
	MapPacketSettings = "packet_settings"
	MapDevices        = "devices"
)

// ConntrackKey is the key of conntrack (struct conntrack_key): a packet's own tuple.
type ConntrackKey struct {
	Source          Address
	Destination     Address
	SourcePort      uint16
	DestinationPort uint16
	Protocol        uint8
	_               [3]uint8
}

// ConntrackFlags is enum conntrack_flag.
type ConntrackFlags uint8

// The bits of ConntrackFlags.
const (
	ConntrackReply ConntrackFlags = 1 << iota
	ConntrackRedirect
	ConntrackFromNode
)

// ConntrackSeen is enum conntrack_seen.
type ConntrackSeen uint8

// The bits of ConntrackSeen.
const (
	ConntrackSeenData ConntrackSeen = 1 << iota
	ConntrackSeenFin
	ConntrackSeenReset
)

// Translation is what the tuple of a packet becomes (struct translation).
type Translation struct {
	Check           uint64
	Source          Address
	Destination     Address
	SourcePort      uint16
	DestinationPort uint16
	Flags           ConntrackFlags
	_               [3]uint8
	ServiceID       uint32
	BackendID       uint32
}

// ConntrackValue is the value of conntrack (struct conntrack_value): one direction of a flow. Times are those of
// CLOCK_MONOTONIC.
type ConntrackValue struct {
	To         Translation
	CreatedNs  uint64
	LastSeenNs uint64
	Packets    uint64
	Bytes      uint64
	Seen       ConntrackSeen
	_          [7]uint8
}

// Other returns the key of the flow's other direction.
func (k ConntrackKey) Other(to Translation) ConntrackKey {
	return ConntrackKey{
		Source:          to.Destination,
		Destination:     to.Source,
		SourcePort:      to.DestinationPort,
		DestinationPort: to.SourcePort,
		Protocol:        k.Protocol,
	}
}

// PacketStats is one CPU's, or the sum of all CPUs', counters of a service port on the packet path
// (struct packet_stats).
type PacketStats struct {
	Flows          uint64
	PacketsForward uint64
	BytesForward   uint64
	PacketsReply   uint64
	BytesReply     uint64
	Rejected       uint64
	Dropped        uint64
}

// Prefix is a range of addresses (struct prefix). Bits counts those of the v4-mapped address; 0 is no prefix.
type Prefix struct {
	Address Address
	Bits    uint32
}

// PacketFlags is enum packet_setting_flag.
type PacketFlags uint32

// The bits of PacketFlags.
const (
	PacketNodePods PacketFlags = 1 << iota
	PacketDevicePods
	PacketMasqueradeAll
	PacketNodeClients
	PacketMasqueradeExternal
)

// PacketPrefixes is how many prefixes of each kind PacketSettings has room for.
const PacketPrefixes = 8

// PacketSettings is the element of packet_settings (struct packet_settings).
type PacketSettings struct {
	TCPSynNs          uint64
	TCPEstablishedNs  uint64
	TCPCloseWaitNs    uint64
	TCPClosingNs      uint64
	ResetNs           uint64
	UDPUnrepliedNs    uint64
	UDPRepliedNs      uint64
	SCTPEstablishedNs uint64
	RejectRate        uint32
	SNATPortMin       uint16
	SNATPortMax       uint16
	Flags             PacketFlags
	FlowCapacity      uint32
	Services          [PacketPrefixes]Prefix
	Pods              [PacketPrefixes]Prefix
}

// DefaultPacketSettings has the timeouts of the kernel's connection tracking under kube-proxy.
func DefaultPacketSettings() PacketSettings {
	return PacketSettings{
		TCPSynNs:          uint64(60 * time.Second),
		TCPEstablishedNs:  uint64(24 * time.Hour),
		TCPCloseWaitNs:    uint64(time.Hour),
		TCPClosingNs:      uint64(120 * time.Second),
		ResetNs:           uint64(10 * time.Second),
		UDPUnrepliedNs:    uint64(30 * time.Second),
		UDPRepliedNs:      uint64(120 * time.Second),
		SCTPEstablishedNs: uint64(24 * time.Hour),
		RejectRate:        1000,
		SNATPortMin:       61000,
		SNATPortMax:       65535,
	}
}

// DeviceFlags is enum device_flag.
type DeviceFlags uint32

// The bits of DeviceFlags.
const (
	DevicePods DeviceFlags = 1 << iota
	DeviceBridgePort
	DeviceBehindNode
	DeviceEthernet
)

// Device is the value of devices (struct device).
type Device struct {
	Flags DeviceFlags
	MAC   [6]uint8
	_     [2]uint8
}
