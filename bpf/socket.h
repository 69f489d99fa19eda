/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The decision for a socket: whose is what it dials, who is the client, which backend; and what the
 * socket remembers. */
#ifndef SHUNT_SOCKET_H
#define SHUNT_SOCKET_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "affinity.h"
#include "dial.h"
#include "frontend.h"
#include "netns.h"
#include "select.h"
#include "settings.h"
#include "stats.h"
#include "udp.h"

enum socket_limit {
	/* A run is replaced while its old backends leave: the service is then read again. */
	SOCKET_ATTEMPTS = 3,
};

static __always_inline enum verdict socket_refuse(__u32 service_id, enum reason reason)
{
	service_count_refusal(service_id, reason);
	return reason == REASON_LOCAL_POLICY_DROP || reason == REASON_SOURCE_RANGE ? VERDICT_DROP
										   : VERDICT_REJECT;
}

/*
 * Who the socket's client is. The node's own processes are one client, known by the namespace. A
 * pod is known by its address, which is also what the packet path sees of it: the one the socket is
 * bound to, or that of its namespace.
 */
static __noinline int client_read(struct bpf_sock_addr *ctx, const struct dial *dial,
				  struct client *client)
{
	bool is4 = address_is4(&dial->frontend.address);

	*client = (struct client){.netns_cookie = bpf_get_netns_cookie(ctx)};
	if (client->netns_cookie == settings.node_netns_cookie)
		return 0;
	if (!address_is_unspecified(&dial->bound))
		client->address = dial->bound;
	else if (!setting(SETTING_READ_KERNEL) || !netns_address(ctx, is4, &client->address))
		return 0;
	client->netns_cookie = 0;
	return 0;
}

/* The address by which source ranges judge the client; all zero when it is not known. */
static __noinline int client_address(struct bpf_sock_addr *ctx, const struct dial *dial,
				     const struct client *client, struct address *address)
{
	bool is4 = address_is4(&dial->frontend.address);

	*address = client->address;
	if (client->netns_cookie != settings.node_netns_cookie)
		return 0;
	/* Member by member: settings is volatile, which a structure assignment would not respect.
	 */
#pragma unroll
	for (int i = 0; i < 16; i++)
		address->bytes[i] =
			is4 ? settings.node_address4.bytes[i] : settings.node_address6.bytes[i];
	if (address_is_zero(address) && setting(SETTING_READ_KERNEL))
		netns_address(ctx, is4, address);
	return 0;
}

/* What source ranges say; VERDICT_TRANSLATE: go on. */
static __noinline enum verdict socket_filter(struct bpf_sock_addr *ctx, const struct dial *dial,
					     const struct client *client, __u32 service_id)
{
	struct address address;

	client_address(ctx, dial, client, &address);
	if (address_is_zero(&address)) {
		drop_count(REASON_CLIENT_UNKNOWN);
		return VERDICT_PASS;
	}
	if (source_range_allows(service_id, &address))
		return VERDICT_TRANSLATE;
	return socket_refuse(service_id, REASON_SOURCE_RANGE);
}

static __always_inline enum match socket_match(struct bpf_sock_addr *ctx, const struct dial *dial,
					       struct service *service)
{
	bool loopback = setting(SETTING_LOOPBACK_NODE_PORTS) &&
			address_is_loopback(&dial->frontend.address) && dial_is_node(ctx);

	return frontend_match(&dial->frontend, loopback, service);
}

/* A new flow of a service: filter and choose. VERDICT_TRANSLATE with an id of 0: no backend of the
 * run was there. */
static __noinline enum verdict socket_choose(struct bpf_sock_addr *ctx, const struct dial *dial,
					     const struct service *service, struct backend *backend)
{
	struct target target = target_internal(service);
	struct client client = {};
	enum verdict verdict;

	backend->backend_id = 0;
	if (service->affinity_timeout_s || service->flags & SERVICE_SOURCE_RANGES)
		client_read(ctx, dial, &client);
	if (service->flags & SERVICE_SOURCE_RANGES) {
		verdict = socket_filter(ctx, dial, &client, service->service_id);
		if (verdict != VERDICT_TRANSLATE)
			return verdict;
	}
	if (!target.run.count)
		return socket_refuse(service->service_id, target.empty);
	if (!backend_choose(service, &target, &client, backend)) {
		backend->backend_id = 0;
		return VERDICT_TRANSLATE;
	}
	/* From loopback no packet reaches a pod: what such a socket dials is left to the kernel. */
	if (address_is_loopback(&dial->bound) && !address_is_loopback(&backend->address))
		return VERDICT_PASS;
	service_count_connection(service->service_id);
	return VERDICT_TRANSLATE;
}

/*
 * Decides what a socket's dial becomes. flows, if any, are those of an unconnected UDP socket;
 * *fresh tells whether the backend was chosen now.
 */
static __noinline enum verdict socket_translate(struct bpf_sock_addr *ctx, const struct dial *dial,
						struct udp_flows *flows, struct backend *backend,
						bool *fresh)
{
	struct service service = {};
	enum verdict verdict;

	for (int i = 0; i < SOCKET_ATTEMPTS; i++) {
		switch (socket_match(ctx, dial, &service)) {
		case MATCH_NONE:
			return VERDICT_PASS;
		case MATCH_UNDEFINED_PORT:
			return socket_refuse(0, REASON_UNDEFINED_PORT);
		case MATCH_UNSETTLED:
			continue;
		case MATCH_SERVICE:
			break;
		}
		*fresh = false;
		if (flows && udp_flow_recall(flows, &dial->frontend, &service, backend))
			return VERDICT_TRANSLATE;
		*fresh = true;
		verdict = socket_choose(ctx, dial, &service, backend);
		if (verdict != VERDICT_TRANSLATE || backend->backend_id)
			return verdict;
	}
	return socket_refuse(0, REASON_UNSETTLED);
}

/*
 * The flow of the MPTCP socket around a TCP socket, if there is one. connect programs see the inner
 * socket, getpeername programs the outer one. Before 5.19 the two cannot be told to belong together,
 * and getpeername of an MPTCP socket shows the backend.
 */
static __always_inline struct socket_flow *mptcp_flow(struct bpf_sock *sk)
{
	struct mptcp_sock *outer;

	if (!bpf_core_type_exists(struct mptcp_sock) ||
	    !bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_skc_to_mptcp_sock))
		return NULL;
	outer = bpf_skc_to_mptcp_sock(sk);
	if (!outer)
		return NULL;
	return bpf_sk_storage_get(&socket_flows, outer, NULL, BPF_SK_STORAGE_GET_F_CREATE);
}

/* Remembers what a connected socket dialled, for getpeername and, with UDP, recvmsg. */
static __noinline int flow_remember(struct bpf_sock *sk, const struct frontend *frontend,
				    const struct backend *backend)
{
	struct socket_flow *flow =
		bpf_sk_storage_get(&socket_flows, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	struct socket_flow *outer;

	if (!flow)
		return drop_count(REASON_FLOW_NOT_REMEMBERED);
	*flow = (struct socket_flow){
		.last_used_ns = bpf_ktime_get_ns(),
		.frontend = frontend->address,
		.backend = backend->address,
		.frontend_port = frontend->port,
		.backend_port = backend->port,
		.service_id = backend->service_id,
		.backend_id = backend->backend_id,
		.state = FLOW_ACTIVE,
	};
	outer = mptcp_flow(sk);
	if (outer)
		*outer = *flow;
	return 0;
}

static __noinline enum verdict socket_connect(struct bpf_sock_addr *ctx, const struct dial *dial,
					      struct backend *backend)
{
	bool fresh = false;
	enum verdict verdict = socket_translate(ctx, dial, NULL, backend, &fresh);

	if (verdict == VERDICT_TRANSLATE)
		flow_remember(ctx->sk, &dial->frontend, backend);
	/* A socket may have been connected to a frontend before. Now it is not; but a refused
	 * connect leaves a UDP socket as it was. */
	if (verdict == VERDICT_PASS)
		bpf_sk_storage_delete(&socket_flows, ctx->sk);
	return verdict;
}

/*
 * The backend of a connected UDP socket that names in a send what it is connected to. It receives
 * from that backend alone: the reply of another one would be lost.
 */
static __noinline bool socket_sends_to_peer(struct bpf_sock_addr *ctx, const struct dial *dial,
					    struct backend *backend)
{
	const struct socket_flow *flow = bpf_sk_storage_get(&socket_flows, ctx->sk, NULL, 0);

	if (!flow || ctx->sk->state != BPF_TCP_ESTABLISHED ||
	    flow->frontend_port != dial->frontend.port ||
	    !address_equal(&flow->frontend, &dial->frontend.address))
		return false;
	backend->address = flow->backend;
	backend->port = flow->backend_port;
	return true;
}

static __noinline enum verdict socket_sendmsg(struct bpf_sock_addr *ctx, const struct dial *dial,
					      struct backend *backend)
{
	struct udp_flows *flows;
	enum verdict verdict;
	bool fresh = false;

	if (socket_sends_to_peer(ctx, dial, backend))
		return VERDICT_TRANSLATE;
	flows = udp_flows_of(ctx->sk);
	verdict = socket_translate(ctx, dial, flows, backend, &fresh);
	if (verdict == VERDICT_TRANSLATE && fresh)
		udp_flow_remember(ctx->sk, &dial->frontend, backend);
	else if (verdict == VERDICT_PASS && flows)
		udp_flow_direct(flows, &dial->frontend);
	return verdict;
}

/* Turns a connected socket's peer into what it dialled; false when the peer is not the backend of
 * its flow. */
static __noinline bool socket_peer(struct bpf_sock_addr *ctx, struct frontend *peer)
{
	const struct socket_flow *flow = bpf_sk_storage_get(&socket_flows, ctx->sk, NULL, 0);

	if (!flow || flow->backend_port != peer->port ||
	    !address_equal(&flow->backend, &peer->address))
		return false;
	peer->address = flow->frontend;
	peer->port = flow->frontend_port;
	return true;
}

/*
 * Turns the source of a received datagram into the frontend it answers for. A connected socket
 * receives from its peer alone; one that was connected once and is not now (connect to AF_UNSPEC
 * runs no program) still has the old flow.
 */
static __noinline bool socket_recvmsg(struct bpf_sock_addr *ctx, struct frontend *source)
{
	struct udp_flows *flows;

	if (ctx->sk->state == BPF_TCP_ESTABLISHED)
		return socket_peer(ctx, source);
	flows = udp_flows_of(ctx->sk);
	return flows && udp_flow_reply(flows, source);
}

#endif
