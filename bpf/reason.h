/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Why something was refused, dropped, or not done as usual: the index of its counter in drops. */
#ifndef SHUNT_REASON_H
#define SHUNT_REASON_H

/*
 * The numbers are kept for ever: they index a pinned map. A new reason goes to the end. The name
 * without REASON_, in lower case, is the metric label, with dashes the word of the command line;
 * pkg/loader tests that Go knows each.
 */
enum reason {
	/* Refused: no endpoint is usable anywhere. */
	REASON_NO_BACKEND = 0,
	/* Dropped: endpoints exist, the traffic policy excludes them all. */
	REASON_LOCAL_POLICY_DROP = 1,
	/* Refused: a ClusterIP, and a port that its Service does not have. */
	REASON_UNDEFINED_PORT = 2,
	/* Dropped: the client is not in loadBalancerSourceRanges. */
	REASON_SOURCE_RANGE = 3,
	/* Refused: what was read kept changing under the program, in each attempt. */
	REASON_UNSETTLED = 4,
	/* Not a drop: the flow that was idle longest gave way to a new one of the same UDP socket.
	 */
	REASON_UDP_FLOW_REPLACED = 5,
	/* Not a drop: no memory to remember the flow with the socket; replies show the backend's
	 * address. */
	REASON_FLOW_NOT_REMEMBERED = 6,
	/* Not a drop: left alone, because source ranges apply and the client's address cannot be
	 * known. */
	REASON_CLIENT_UNKNOWN = 7,
	/* Not a drop: a process has taken a port that a node port uses. */
	REASON_BIND_CONFLICT = 8,
	/* Refused: the same, with the switch that forbids it. */
	REASON_BIND_REFUSED = 9,
	/* Not a drop: the trace buffer was full, an event is lost. */
	REASON_TRACE_LOST = 10,
	/* Passed untouched: a packet whose headers contradict each other or its length. */
	REASON_MALFORMED = 11,
	/* Dropped: an address of the service range that is no Service's. */
	REASON_UNALLOCATED_ADDRESS = 12,
	/* Dropped: a new flow, and conntrack is full of flows in use. */
	REASON_CONNTRACK_FULL = 13,
	/* Not a drop: a half-open or closing flow gave way to a new one, because conntrack is full.
	 */
	REASON_CONNTRACK_REPLACED = 14,
	/* Not a drop: one direction of a flow was missing in conntrack and was made again. */
	REASON_CONNTRACK_HEALED = 15,
	/* Dropped: a new flow, and each source port tried for it is in use. */
	REASON_PORTS_EXHAUSTED = 16,
	/* Not a drop: the flow that was idle longest gave its source port to a new one. */
	REASON_PORT_REPLACED = 17,
	/* Passed untouched: a later fragment whose first one has not come, and no room to hold it. */
	REASON_FRAGMENT_UNKNOWN = 18,
	/* Dropped: the kernel has no route to where the packet must go. */
	REASON_NO_ROUTE = 19,
	/* Answered with an ICMP error: the hop limit ends here. */
	REASON_HOP_LIMIT = 20,
	/* Answered with an ICMP error: larger than the next hop's MTU. */
	REASON_TOO_BIG = 21,
	/* Dropped: to be answered with an error, and the rate of answers is reached. */
	REASON_ANSWER_LIMITED = 22,
	/* Dropped: the packet could not be rewritten (no memory, or a checksum that its fragments
	 * do not allow). */
	REASON_REWRITE_FAILED = 23,
	/* Held back until the first fragment of the datagram comes; if it never does, lost. */
	REASON_FRAGMENT_HELD = 24,
	/* Not a drop: a fragment that was held back goes on, the first one has come. */
	REASON_FRAGMENT_RELEASED = 25,
};

/* The size of drops: larger than the enum, so that a new reason does not change the pinned map. */
enum reason_capacity {
	REASON_CAPACITY = 64,
};

#endif
