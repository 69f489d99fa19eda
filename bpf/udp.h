/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Unconnected UDP sockets: a socket keeps its backend for a frontend, and each reply comes from the
 * frontend that its datagram was sent to. The kernel holds the socket's lock while it runs sendmsg
 * and recvmsg programs, so no two of them work on one socket's flows.
 */
#ifndef SHUNT_UDP_H
#define SHUNT_UDP_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "address.h"
#include "maps.h"
#include "select.h"
#include "settings.h"
#include "stats.h"

enum {
	/* A reply that takes longer is not told apart by order: the datagram counts as lost. */
	UDP_REPLY_MS = 4000,
	NS_PER_MS = 1000000,
};

static __always_inline struct udp_flows *udp_flows_of(struct bpf_sock *sk)
{
	return bpf_sk_storage_get(&udp_flows, sk, NULL, 0);
}

/* Notes that a datagram of a flow waits for its reply. */
static __always_inline void udp_send_push(struct udp_flows *flows, __u32 index, __u64 now)
{
	struct udp_send *send = &flows->sends[flows->next_send++ % UDP_SENDS];

	send->time_ms = now / NS_PER_MS;
	send->flow = index + 1;
}

/* Takes the datagram that waits longest, of the flows whose bit is set; its flow, or UDP_FLOWS. */
__noinline __u32 udp_send_take(struct udp_flows *flows, __u32 mask, __u64 now)
{
	__u32 now_ms = now / NS_PER_MS;

	if (!flows)
		return UDP_FLOWS;
	for (__u32 i = 0; i < UDP_SENDS; i++) {
		struct udp_send *send = &flows->sends[(flows->next_send + i) % UDP_SENDS];
		__u32 index = send->flow - 1;

		if (index >= UDP_FLOWS || !(mask & 1 << index))
			continue;
		send->flow = 0;
		if (now_ms - send->time_ms < UDP_REPLY_MS)
			return index;
	}
	return UDP_FLOWS;
}

__noinline __u32 udp_flow_find(const struct udp_flows *flows, const struct frontend *frontend,
			       enum flow_state state)
{
	if (!flows || !frontend)
		return UDP_FLOWS;
	for (__u32 i = 0; i < UDP_FLOWS; i++) {
		const struct socket_flow *flow = &flows->flows[i];

		if (flow->state == state && flow->frontend_port == frontend->port &&
		    address_equal(&flow->frontend, &frontend->address))
			return i;
	}
	return UDP_FLOWS;
}

/* The flows, as a mask, that use this backend address. */
__noinline __u32 udp_flows_with(const struct udp_flows *flows, const struct address *backend,
				__u16 port)
{
	__u32 mask = 0;

	if (!flows || !backend)
		return 0;
	for (__u32 i = 0; i < UDP_FLOWS; i++) {
		const struct socket_flow *flow = &flows->flows[i];

		if (flow->state != FLOW_FREE && flow->backend_port == port &&
		    address_equal(&flow->backend, backend))
			mask |= 1 << i;
	}
	return mask;
}

/* Of the flows whose bit is set the one used last or, with oldest, idle longest (a free cell is).
 */
__noinline __u32 udp_flow_by_age(const struct udp_flows *flows, __u32 mask, bool oldest)
{
	__u32 found = UDP_FLOWS;
	__u64 best = 0;

	if (!flows)
		return UDP_FLOWS;
	for (__u32 i = 0; i < UDP_FLOWS; i++) {
		__u64 used = flows->flows[i].last_used_ns;

		if (!(mask & 1 << i))
			continue;
		if (found == UDP_FLOWS || (oldest ? used < best : used >= best)) {
			found = i;
			best = used;
		}
	}
	return found;
}

/* Makes a cell free: an unused one, or that of the flow idle longest, whose datagrams are forgotten
 * with it. */
__noinline __u32 udp_flow_place(struct udp_flows *flows)
{
	__u32 index;

	if (!flows)
		return UDP_FLOWS;
	index = udp_flow_by_age(flows, (1 << UDP_FLOWS) - 1, true);
	if (index >= UDP_FLOWS || flows->flows[index].state == FLOW_FREE)
		return index;
	if (flows->flows[index].state == FLOW_ACTIVE)
		drop_count(REASON_UDP_FLOW_REPLACED);
	for (__u32 i = 0; i < UDP_SENDS; i++)
		if (flows->sends[i].flow == index + 1)
			flows->sends[i].flow = 0;
	return index;
}

/* Finds the backend that the socket uses for the frontend, if the flow is not idle and the backend
 * still eligible. */
static __noinline bool udp_flow_recall(struct udp_flows *flows, const struct frontend *frontend,
				       const struct service *service, struct backend *backend)
{
	__u32 index = udp_flow_find(flows, frontend, FLOW_ACTIVE);
	__u32 set = target_internal(service).set;
	__u64 now = bpf_ktime_get_ns();
	struct socket_flow *flow;

	if (index >= UDP_FLOWS)
		return false;
	flow = &flows->flows[index];
	if (flow->service_id == service->service_id &&
	    now - flow->last_used_ns < settings.udp_idle_ns &&
	    backend_recall(flow->backend_id, flow->service_id, set, backend)) {
		flow->last_used_ns = now;
		udp_send_push(flows, index, now);
		return true;
	}
	flow->state = FLOW_RETIRED;
	return false;
}

/* Remembers the new flow of a datagram. */
static __noinline int udp_flow_remember(struct bpf_sock *sk, const struct frontend *frontend,
					const struct backend *backend)
{
	struct udp_flows *flows =
		bpf_sk_storage_get(&udp_flows, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	__u64 now = bpf_ktime_get_ns();
	__u32 index;

	if (!flows)
		return drop_count(REASON_FLOW_NOT_REMEMBERED);
	index = udp_flow_place(flows);
	if (index >= UDP_FLOWS)
		return 0;
	flows->flows[index] = (struct socket_flow){
		.last_used_ns = now,
		.frontend = frontend->address,
		.backend = backend->address,
		.frontend_port = frontend->port,
		.backend_port = backend->port,
		.service_id = backend->service_id,
		.backend_id = backend->backend_id,
		.state = FLOW_ACTIVE,
	};
	udp_send_push(flows, index, now);
	return 0;
}

/*
 * Notes a datagram to an address that is no Service's but that a flow of this socket uses as its
 * backend: the reply to it comes from that address, not from the flow's frontend.
 */
static __noinline int udp_flow_direct(struct udp_flows *flows, const struct frontend *dialled)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 index;

	if (!udp_flows_with(flows, &dialled->address, dialled->port))
		return 0;
	index = udp_flow_find(flows, dialled, FLOW_DIRECT);
	if (index >= UDP_FLOWS)
		index = udp_flow_place(flows);
	if (index >= UDP_FLOWS)
		return 0;
	flows->flows[index] = (struct socket_flow){
		.last_used_ns = now,
		.frontend = dialled->address,
		.backend = dialled->address,
		.frontend_port = dialled->port,
		.backend_port = dialled->port,
		.state = FLOW_DIRECT,
	};
	udp_send_push(flows, index, now);
	return 0;
}

/*
 * Turns the source of a reply into the frontend that its datagram was sent to; false when no flow
 * has this source. With several such flows the datagram that waits longest is the one answered.
 */
static __noinline bool udp_flow_reply(struct udp_flows *flows, struct frontend *source)
{
	__u32 mask = udp_flows_with(flows, &source->address, source->port);
	__u64 now = bpf_ktime_get_ns();
	struct socket_flow *flow;
	__u32 index;

	if (!mask)
		return false;
	index = udp_send_take(flows, mask, now);
	if (index >= UDP_FLOWS)
		index = udp_flow_by_age(flows, mask, false);
	if (index >= UDP_FLOWS)
		return false;
	flow = &flows->flows[index];
	flow->last_used_ns = now;
	source->address = flow->frontend;
	source->port = flow->frontend_port;
	return true;
}

#endif
