// SPDX-License-Identifier: Apache-2.0

package maps

import "time"

// FlowState is how a flow stands, in a word for users.
type FlowState string

// The states of flows.
const (
	// FlowOpening has had no answer, or an answer that the client has not gone on after.
	FlowOpening FlowState = "opening"
	// FlowUnreplied and FlowReplied are those of UDP.
	FlowUnreplied   FlowState = "unreplied"
	FlowReplied     FlowState = "replied"
	FlowEstablished FlowState = "established"
	// FlowHalfClosed has been closed by one side, FlowClosing by both.
	FlowHalfClosed FlowState = "half-closed"
	FlowClosing    FlowState = "closing"
	FlowReset      FlowState = "reset"
	// FlowExpired has been idle for longer than its state allows: it has no effect, and gives way to the next flow.
	FlowExpired FlowState = "expired"
)

// Protocols, as packets have them.
const (
	protocolUDP  = 17
	protocolSCTP = 132
)

// Flow is both directions of a flow; one may be missing.
type Flow struct {
	Protocol uint8
	// Forward is client to frontend, Reply backend to client.
	Forward, Reply *ConntrackValue
}

// State tells how a flow stands at a time of CLOCK_MONOTONIC, and what is left of its time: what the programs would find
// (flow_timeout_ns and conntrack_state_of in bpf/conntrack.h).
func (f Flow) State(s PacketSettings, nowNs uint64) (FlowState, time.Duration) {
	state, timeout := f.timeout(s)
	idle := nowNs - min(nowNs, f.LastSeenNs())
	if idle >= timeout {
		return FlowExpired, 0
	}
	return state, time.Duration(timeout - idle)
}

// LastSeenNs is the time of the last packet of either direction.
func (f Flow) LastSeenNs() uint64 {
	var last uint64
	for _, v := range []*ConntrackValue{f.Forward, f.Reply} {
		if v != nil {
			last = max(last, v.LastSeenNs)
		}
	}
	return last
}

// Replied tells whether both directions have had packets.
func (f Flow) Replied() bool {
	return f.Forward != nil && f.Reply != nil && f.Forward.LastSeenNs != 0 && f.Reply.LastSeenNs != 0
}

// seen is what packets of either direction, and of both, have shown.
func (f Flow) seen() (either, both ConntrackSeen) {
	if f.Forward != nil {
		either |= f.Forward.Seen
	}
	if f.Reply != nil {
		either |= f.Reply.Seen
	}
	if f.Forward != nil && f.Reply != nil {
		both = f.Forward.Seen & f.Reply.Seen
	}
	return either, both
}

func (f Flow) timeout(s PacketSettings) (FlowState, uint64) {
	either, both := f.seen()
	switch {
	case f.Protocol == protocolUDP && f.Replied():
		return FlowReplied, s.UDPRepliedNs
	case f.Protocol == protocolUDP:
		return FlowUnreplied, s.UDPUnrepliedNs
	case either&ConntrackSeenReset != 0:
		return FlowReset, s.ResetNs
	case both&ConntrackSeenFin != 0:
		return FlowClosing, s.TCPClosingNs
	case !f.Replied() || f.Forward.Seen&ConntrackSeenData == 0:
		return FlowOpening, s.TCPSynNs
	case f.Protocol == protocolSCTP:
		return FlowEstablished, s.SCTPEstablishedNs
	case either&ConntrackSeenFin != 0:
		return FlowHalfClosed, s.TCPCloseWaitNs
	}
	return FlowEstablished, s.TCPEstablishedNs
}
