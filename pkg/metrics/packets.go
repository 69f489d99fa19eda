// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// packetMetrics are the metrics of the packet path. Bytes are those of IP packets.
var packetMetrics = struct{ flows, packets, bytes, rejected, dropped mapFamily }{
	flows: mapFamily{"shunt_service_packet_flows_total",
		"Flows that the packet path has opened to a backend of the service port.", dto.MetricType_COUNTER, serviceLabels},
	packets: mapFamily{"shunt_service_packets_total",
		"Packets of the service port that the packet path has translated, by direction.", dto.MetricType_COUNTER,
		directionLabels},
	bytes: mapFamily{"shunt_service_packet_bytes_total",
		"Bytes of the IP packets that the packet path has translated, by direction.", dto.MetricType_COUNTER,
		directionLabels},
	rejected: mapFamily{"shunt_service_packet_rejected_total",
		"New flows to the service port that the packet path has answered with an error.", dto.MetricType_COUNTER,
		serviceLabels},
	dropped: mapFamily{"shunt_service_packet_dropped_total",
		"Packets to the service port that the packet path has dropped.", dto.MetricType_COUNTER, serviceLabels},
}

var directionLabels = append([]string{"direction"}, serviceLabels...)

// directed returns the labels of a service port with a direction in front: the exposition sorts labels by name.
func directed(direction string, labels []*dto.LabelPair) []*dto.LabelPair {
	return append([]*dto.LabelPair{pair("direction", direction)}, labels...)
}

// packetFamilies sums up rows whose ids still have the row's name, those alone that the packet path has seen: in most
// clusters that is a small part.
func packetFamilies(rows []row, stats []maps.PacketStats, names map[uint32]maps.ServiceName) []*dto.MetricFamily {
	if len(stats) == 0 {
		return nil
	}
	flows := newSeries(packetMetrics.flows, len(rows))
	packets := newSeries(packetMetrics.packets, 2*len(rows))
	bytes := newSeries(packetMetrics.bytes, 2*len(rows))
	rejected := newSeries(packetMetrics.rejected, len(rows))
	dropped := newSeries(packetMetrics.dropped, len(rows))
	next := 0
	for _, r := range rows {
		var sum maps.PacketStats
		same := true
		for _, id := range r.ids {
			sum.Add(stats[next])
			next++
			name, ok := names[id]
			same = same && ok && name == r.name
		}
		if !same || sum == (maps.PacketStats{}) {
			continue
		}
		forward, reply := directed("forward", r.labels), directed("reply", r.labels)
		flows.add(r.labels, float64(sum.Flows))
		packets.add(forward, float64(sum.PacketsForward))
		packets.add(reply, float64(sum.PacketsReply))
		bytes.add(forward, float64(sum.BytesForward))
		bytes.add(reply, float64(sum.BytesReply))
		rejected.add(r.labels, float64(sum.Rejected))
		dropped.add(r.labels, float64(sum.Dropped))
	}
	return present(flows, packets, bytes, rejected, dropped)
}
