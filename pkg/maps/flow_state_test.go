// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"
	"time"
)

func TestStatesOfFlows(t *testing.T) {
	t.Parallel()
	const now = uint64(time.Hour)
	seen := func(s ConntrackSeen) *ConntrackValue {
		return &ConntrackValue{Seen: s, LastSeenNs: now - uint64(5*time.Second)}
	}
	none := &ConntrackValue{}
	data := ConntrackSeenData
	for _, c := range []struct {
		name           string
		protocol       uint8
		forward, reply *ConntrackValue
		want           FlowState
		left           time.Duration
	}{
		{"SYN", 6, seen(0), none, FlowOpening, 55 * time.Second},
		{"SYN ACK", 6, seen(0), seen(0), FlowOpening, 55 * time.Second},
		{"handshake", 6, seen(data), seen(0), FlowEstablished, 24*time.Hour - 5*time.Second},
		{"one side has closed", 6, seen(data | ConntrackSeenFin), seen(data), FlowHalfClosed, time.Hour - 5*time.Second},
		{"both have", 6, seen(data | ConntrackSeenFin), seen(data | ConntrackSeenFin), FlowClosing, 115 * time.Second},
		{"reset", 6, seen(data), seen(ConntrackSeenReset), FlowReset, 5 * time.Second},
		{"datagram", 17, seen(data), none, FlowUnreplied, 25 * time.Second},
		{"answer", 17, seen(data), seen(data), FlowReplied, 115 * time.Second},
		{"half a flow", 17, nil, seen(data), FlowUnreplied, 25 * time.Second},
		{"half a connection", 6, nil, seen(data), FlowOpening, 55 * time.Second},
		{"association", 132, seen(data), seen(data), FlowEstablished, 24*time.Hour - 5*time.Second},
		{"idle for long", 17, &ConntrackValue{Seen: data, LastSeenNs: 1}, none, FlowExpired, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			flow := Flow{Protocol: c.protocol, Forward: c.forward, Reply: c.reply}
			if got, left := flow.State(DefaultPacketSettings(), now); got != c.want || left != c.left {
				t.Errorf("%s for another %s, want %s, %s", got, left, c.want, c.left)
			}
		})
	}
}
