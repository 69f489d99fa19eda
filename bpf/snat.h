/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Opens a flow: both elements of conntrack, and a source port with which the reply's tuple is no other flow's. The
 * client's own port is kept where it can be.
 */
#ifndef SHUNT_SNAT_H
#define SHUNT_SNAT_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "conntrack.h"
#include "packet.h"
#include "select.h"

enum snat_limit {
	PORT_ATTEMPTS = 32,
	/* Ports for a client that keeps its address, when its own port is taken. */
	CLIENT_PORT_FIRST = 1024,
	CLIENT_PORT_COUNT = 65536 - 1024,
};

enum opened {
	OPENED = 0,
	/* Another CPU has opened it meanwhile. */
	OPENED_ALREADY = 1,
	OPEN_TABLE_FULL = 2,
	OPEN_NO_PORT = 3,
};

/*
 * Whether a socket of the node has the flow for which the reply's tuple would be taken. A listener at the port counts
 * as well, so that what reads "node:10250 -> pod" in a capture is what it seems.
 */
__noinline int node_socket_has(struct __sk_buff *skb, const struct conntrack_key *reply)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sock;
	__u32 size = sizeof(tuple.ipv4);

	if (!reply)
		return true;
	if (address_is4(&reply->source)) {
		tuple.ipv4.saddr = address_word(&reply->source, 3);
		tuple.ipv4.daddr = address_word(&reply->destination, 3);
		tuple.ipv4.sport = port_to_be(reply->source_port);
		tuple.ipv4.dport = port_to_be(reply->destination_port);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &reply->source, sizeof(reply->source));
		__builtin_memcpy(tuple.ipv6.daddr, &reply->destination, sizeof(reply->destination));
		tuple.ipv6.sport = port_to_be(reply->source_port);
		tuple.ipv6.dport = port_to_be(reply->destination_port);
		size = sizeof(tuple.ipv6);
	}
	if (reply->protocol == IPPROTO_TCP)
		sock = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else if (reply->protocol == IPPROTO_UDP)
		sock = bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		return false;
	if (!sock)
		return false;
	bpf_sk_release(sock);
	return true;
}

/*
 * Takes the draft's reply tuple if it is free, or if who has it has ended. Otherwise notes how long its owner has
 * been idle.
 */
__noinline int reply_take(void)
{
	struct flow_draft *draft = flow_draft_get();
	struct conntrack_value *owner;
	__u64 last_ns;

	if (!draft)
		return false;
	draft->value.to.check = conntrack_check(&draft->reply, draft->now_ns);
	draft->value.to.destination_port = draft->forward.source_port;
	for (int i = 0; i < 2; i++) {
		/* An int: before 6.4 the kernel leaves the upper half of the result undefined. */
		int error =
			bpf_map_update_elem(&conntrack, &draft->reply, &draft->value, BPF_NOEXIST);

		if (!error)
			return true;
		if (error != -ERROR_EXISTS)
			return false;
		owner = conntrack_find(&draft->reply, &draft->other_to);
		if (!owner)
			continue;
		/* A half that this flow's predecessor, or another CPU at this moment, has left. */
		if (is_other_half(owner, &draft->forward))
			return !bpf_map_update_elem(&conntrack, &draft->reply, &draft->value,
						    BPF_ANY);
		last_ns = owner->last_seen_ns ?: owner->created_ns;
		if (conntrack_judge(&draft->reply, owner, &draft->other_to, draft->now_ns) !=
		    CONNTRACK_ENDED) {
			if (!draft->oldest_port || last_ns < draft->oldest_ns) {
				draft->oldest_ns = last_ns;
				draft->oldest_port = draft->reply.destination_port;
			}
			return false;
		}
		conntrack_remove(&draft->reply, &draft->other_to);
	}
	return false;
}

struct port_search {
	struct __sk_buff *skb;
	bool redirect;
	bool found;
};

static long port_try(__u32 attempt, struct port_search *search)
{
	struct flow_draft *draft = flow_draft_get();
	__u32 offset;

	if (!draft || !draft->port_count)
		return 1;
	offset = (draft->port_start + attempt) % draft->port_count;
	draft->reply.destination_port = draft->port_first + offset;
	if (search->redirect && node_socket_has(search->skb, &draft->reply))
		return 0;
	search->found = reply_take();
	return search->found;
}

/*
 * Takes the port of the flow that was idle longest of those in the way. One that was idle for less than an unanswered
 * datagram is remembered keeps its port, whoever needs one.
 */
static __always_inline bool port_replace(struct flow_draft *draft)
{
	const struct packet_settings *settings = packet_settings_get();

	if (!settings || !draft->oldest_port ||
	    age_ns(draft->now_ns, draft->oldest_ns) < settings->udp_unreplied_ns)
		return false;
	draft->reply.destination_port = draft->oldest_port;
	if (conntrack_find(&draft->reply, &draft->other_to))
		conntrack_remove(&draft->reply, &draft->other_to);
	if (!reply_take())
		return false;
	drop_count(REASON_PORT_REPLACED);
	return true;
}

static __always_inline bool port_search(struct __sk_buff *skb, struct flow_draft *draft,
					bool redirect)
{
	struct port_search search = {.skb = skb, .redirect = redirect};

	draft->port_start = bpf_get_prandom_u32();
	bpf_loop(PORT_ATTEMPTS, port_try, &search, 0);
	return search.found || port_replace(draft);
}

/* Fills the draft with the reply's element: what a packet from the backend becomes. */
static __always_inline void draft_begin(struct flow_draft *draft, const struct packet *packet,
					const struct backend *backend, const struct address *source,
					__u8 flags)
{
	__builtin_memset(draft, 0, sizeof(*draft));
	draft->now_ns = bpf_ktime_get_coarse_ns();
	draft->forward = packet->tuple;
	draft->reply.source = backend->address;
	draft->reply.destination = *source;
	draft->reply.source_port = backend->port;
	draft->reply.destination_port = packet->tuple.source_port;
	draft->reply.protocol = packet->tuple.protocol;
	draft->value.to.source = packet->tuple.destination;
	draft->value.to.destination = packet->tuple.source;
	draft->value.to.source_port = packet->tuple.destination_port;
	draft->value.to.destination_port = packet->tuple.source_port;
	draft->value.to.flags = flags | CONNTRACK_REPLY;
	draft->value.to.service_id = backend->service_id;
	draft->value.to.backend_id = backend->backend_id;
	draft->value.created_ns = draft->now_ns;
}

/* Turns the draft into the forward element, and notes the packet that opens the flow. */
static __always_inline void draft_forward(struct flow_draft *draft, const struct packet *packet,
					  __u8 flags)
{
	draft->value.to.check = conntrack_check(&draft->forward, draft->now_ns);
	draft->value.to.source = draft->reply.destination;
	draft->value.to.destination = draft->reply.source;
	draft->value.to.source_port = draft->reply.destination_port;
	draft->value.to.destination_port = draft->reply.source_port;
	draft->value.to.flags = flags;
	draft->value.last_seen_ns = draft->now_ns;
	draft->value.packets = 1;
	draft->value.bytes = packet->length;
	draft->value.seen = packet->seen;
}

static __always_inline bool port_choose(struct __sk_buff *skb, struct flow_draft *draft, __u8 flags)
{
	const struct packet_settings *settings = packet_settings_get();
	bool redirect = flags & CONNTRACK_REDIRECT;

	if (!settings)
		return false;
	draft->port_first = CLIENT_PORT_FIRST;
	draft->port_count = CLIENT_PORT_COUNT;
	if (redirect) {
		draft->port_first = settings->snat_port_min;
		draft->port_count = settings->snat_port_max - settings->snat_port_min + 1;
	} else if (reply_take()) {
		return true;
	}
	return port_search(skb, draft, redirect);
}

/*
 * Opens the flow of a packet to a backend. to says which address the backend is to see, and the flags; it is completed
 * here. First the reply's element, so that a packet is never translated to where its answer is not known.
 */
__noinline int flow_open(struct __sk_buff *skb, const struct packet *packet,
			 const struct backend *backend, struct translation *to)
{
	struct flow_draft *draft = flow_draft_get();
	__u8 flags;
	int error;

	if (!packet || !backend || !to)
		return OPEN_TABLE_FULL;
	if (!draft)
		return OPEN_TABLE_FULL;
	flags = to->flags;
	draft_begin(draft, packet, backend, &to->source, flags);
	if (conntrack_admit(draft))
		return OPEN_TABLE_FULL;
	if (!port_choose(skb, draft, flags))
		return OPEN_NO_PORT;
	draft_forward(draft, packet, flags);
	*to = draft->value.to;
	error = bpf_map_update_elem(&conntrack, &draft->forward, &draft->value, BPF_NOEXIST);
	if (!error)
		return OPENED;
	bpf_map_delete_elem(&conntrack, &draft->reply);
	if (error == -ERROR_EXISTS && conntrack_find(&draft->forward, to))
		return OPENED_ALREADY;
	return OPEN_TABLE_FULL;
}

#endif
