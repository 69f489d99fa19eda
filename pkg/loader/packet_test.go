// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"reflect"
	"regexp"
	"strconv"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// sharedByPackets are the structures of the packet path that C and Go both have.
var sharedByPackets = map[string]reflect.Type{
	"conntrack_key":   reflect.TypeFor[maps.ConntrackKey](),
	"translation":     reflect.TypeFor[maps.Translation](),
	"conntrack_value": reflect.TypeFor[maps.ConntrackValue](),
	"packet_stats":    reflect.TypeFor[maps.PacketStats](),
	"prefix":          reflect.TypeFor[maps.Prefix](),
	"packet_settings": reflect.TypeFor[maps.PacketSettings](),
	"device":          reflect.TypeFor[maps.Device](),
	"settings":        reflect.TypeFor[settings](),
}

func TestPacketStructuresAgreeMemberByMember(t *testing.T) {
	spec, err := PacketSpec()
	if err != nil {
		t.Fatal(err)
	}
	for name, goType := range sharedByPackets {
		t.Run(name, func(t *testing.T) {
			var cType *btf.Struct
			if err := spec.Types.TypeByName(name, &cType); err != nil {
				t.Fatal(err)
			}
			if uintptr(cType.Size) != goType.Size() || len(cType.Members) != goType.NumField() {
				t.Fatalf("%d bytes and %d members in C, %d and %d in Go", cType.Size, len(cType.Members), goType.Size(),
					goType.NumField())
			}
			for i, member := range cType.Members {
				compareMember(t, member, goType.Field(i))
			}
		})
	}
}

// packetFlags are the flags of the packet path in types.h that Go has.
var packetFlags = map[string]uint64{
	"CONNTRACK_REPLY":                    uint64(maps.ConntrackReply),
	"CONNTRACK_REDIRECT":                 uint64(maps.ConntrackRedirect),
	"CONNTRACK_FROM_NODE":                uint64(maps.ConntrackFromNode),
	"CONNTRACK_SEEN_DATA":                uint64(maps.ConntrackSeenData),
	"CONNTRACK_SEEN_FIN":                 uint64(maps.ConntrackSeenFin),
	"CONNTRACK_SEEN_RESET":               uint64(maps.ConntrackSeenReset),
	"PACKET_SETTING_NODE_PODS":           uint64(maps.PacketNodePods),
	"PACKET_SETTING_DEVICE_PODS":         uint64(maps.PacketDevicePods),
	"PACKET_SETTING_MASQUERADE_ALL":      uint64(maps.PacketMasqueradeAll),
	"PACKET_SETTING_NODE_CLIENTS":        uint64(maps.PacketNodeClients),
	"PACKET_SETTING_MASQUERADE_EXTERNAL": uint64(maps.PacketMasqueradeExternal),
	"DEVICE_PODS":                        uint64(maps.DevicePods),
	"DEVICE_BRIDGE_PORT":                 uint64(maps.DeviceBridgePort),
	"DEVICE_BEHIND_NODE":                 uint64(maps.DeviceBehindNode),
	"DEVICE_ETHERNET":                    uint64(maps.DeviceEthernet),
}

// The compiler leaves out of BTF the enums of which nothing but enumerators is used, so the header itself is read.
func TestPacketFlagsAgree(t *testing.T) {
	flag := regexp.MustCompile(`(?m)^\t((?:CONNTRACK|PACKET_SETTING|DEVICE)_\w+) = 1 << (\d+)`)
	found := 0
	for _, m := range flag.FindAllStringSubmatch(readHeaders(t), -1) {
		shift, err := strconv.Atoi(m[2])
		if got, known := packetFlags[m[1]]; err != nil || !known || got != 1<<shift {
			t.Errorf("%s is 1 << %s in C, %d in Go", m[1], m[2], got)
		}
		found++
	}
	if found != len(packetFlags) {
		t.Errorf("%d flags in C, %d in Go", found, len(packetFlags))
	}
}
