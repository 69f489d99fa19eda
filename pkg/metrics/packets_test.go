// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
)

func TestServicePortsOfThePacketPathHaveItsCounters(t *testing.T) {
	n := newNode(t)
	n.servicePort(1, "web", "")
	n.servicePort(2, "idle", "")
	n.want("the packet path is off", "shunt_service_packet")
	n.EnablePackets(maps.PacketSettings{})
	n.AddPacketStats(1, maps.PacketStats{Flows: 1, PacketsForward: 2, BytesForward: 3, PacketsReply: 4, BytesReply: 5,
		Rejected: 6, Dropped: 7})
	const web = `family="IPv4",namespace="default",port="",protocol="TCP",service="web"}`
	n.want("one has seen packets", "shunt_service_packet",
		`shunt_service_packet_bytes_total{direction="forward",`+web+` 3`,
		`shunt_service_packet_bytes_total{direction="reply",`+web+` 5`,
		`shunt_service_packet_dropped_total{`+web+` 7`,
		`shunt_service_packet_flows_total{`+web+` 1`,
		`shunt_service_packet_rejected_total{`+web+` 6`,
		`shunt_service_packets_total{direction="forward",`+web+` 2`,
		`shunt_service_packets_total{direction="reply",`+web+` 4`)
	n.servicePort(1, "web", "")
	n.want("the id is given again", "shunt_service_packet")
}
