// SPDX-License-Identifier: Apache-2.0

package maps

// MapTrace is the ring buffer of TraceEvents.
const MapTrace = "trace"

// EventKind is enum event_kind.
type EventKind uint8

// EventBindConflict tells that a process has taken a port that a node port uses.
const EventBindConflict EventKind = 1

// TraceEvent is one record of trace (struct trace_event).
type TraceEvent struct {
	TimeNs      uint64 // CLOCK_MONOTONIC
	NetnsCookie uint64
	Frontend    Frontend
	ServiceID   uint32
	PID         uint32
	Kind        EventKind
	Refused     uint8 // 1: the process got an error
	_           [2]uint8
	Command     [16]byte
}

// SocketFlow is one flow that a socket remembers (struct socket_flow).
type SocketFlow struct {
	LastUsedNs   uint64 // CLOCK_MONOTONIC
	Frontend     Address
	Backend      Address
	FrontendPort uint16
	BackendPort  uint16
	ServiceID    uint32
	BackendID    uint32
	State        uint32
}
