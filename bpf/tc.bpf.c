// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The packet path: translates where a client's packets enter the node, and undoes it where they leave towards the
 * client. In between the kernel routes a flow client -> backend like any other. Where the client's address has to be
 * replaced as well, both directions are translated where they enter, and sent on from there.
 *
 * A flow in progress takes one lookup in conntrack, and a UDP flow one in backends: when its backend is gone, another
 * one is selected with the next datagram.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "address.h"
#include "affinity.h"
#include "client.h"
#include "conntrack.h"
#include "fragment.h"
#include "frontend.h"
#include "icmp.h"
#include "maps.h"
#include "nat.h"
#include "packet.h"
#include "reject.h"
#include "route.h"
#include "select.h"
#include "snat.h"
#include "packet_stats.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum verdict {
	/* Leave the packet to the next program of the hook: TCX_NEXT, and the next filter of clsact. */
	VERDICT_NEXT = TC_ACT_UNSPEC,
	VERDICT_DROP = TC_ACT_SHOT,
	/* Not for the kernel: the flow is open, translate the packet. */
	VERDICT_TRANSLATE = 0x100,
};

enum packet_type {
	TYPE_HOST = 0, /* PACKET_HOST */
	TYPE_OTHERHOST = 3, /* PACKET_OTHERHOST */
};

static __noinline int packet_translate(struct __sk_buff *skb, const struct packet *packet,
				       const struct translation *to)
{
	int failed = packet->flags & PACKET_ICMP_ERROR ? icmp_apply(skb, packet, to)
						       : nat_apply(skb, packet, to);

	if (!failed)
		return VERDICT_NEXT;
	packet_count_drop(to->service_id, REASON_REWRITE_FAILED, false);
	return VERDICT_DROP;
}

/* Translates a packet and sends it on by the kernel's routes. */
__noinline int packet_redirect(struct __sk_buff *skb, const struct packet *packet,
			       const struct translation *to, __u32 hook)
{
	struct route route = {};

	if (!packet || !to)
		return VERDICT_DROP;
	switch (route_find(skb, packet, to, &route)) {
	case ROUTED:
		break;
	case ROUTED_HERE:
		return packet_translate(skb, packet, to);
	case ROUTED_TOO_BIG:
		packet_count_drop(to->service_id, REASON_TOO_BIG, false);
		return reject_too_big(skb, packet, route.mtu, hook);
	case ROUTED_HOP_LIMIT:
		packet_count_drop(to->service_id, REASON_HOP_LIMIT, false);
		return reject_hop_limit(skb, packet, hook);
	case ROUTED_NOWHERE:
		packet_count_drop(to->service_id, REASON_NO_ROUTE, false);
		return VERDICT_DROP;
	}
	if (packet_translate(skb, packet, to) == VERDICT_DROP)
		return VERDICT_DROP;
	/* What the node itself sends has not yet made a hop. */
	if ((!(hook & HOOK_EGRESS) && hop_limit_decrement(skb, packet)) ||
	    (skb->vlan_present && bpf_skb_vlan_pop(skb))) {
		packet_count_drop(to->service_id, REASON_REWRITE_FAILED, false);
		return VERDICT_DROP;
	}
	/* The redirect takes an Ethernet header off, whether there was one or not. */
	if (!(hook & HOOK_ETHERNET) && bpf_skb_change_head(skb, ETH_HLEN, 0)) {
		packet_count_drop(to->service_id, REASON_REWRITE_FAILED, false);
		return VERDICT_DROP;
	}
	return bpf_redirect_neigh(route.device, &route.hop, sizeof(route.hop), 0);
}

/*
 * Gives the answer to a process of the node. It comes in by the device to which the frontend's address is routed, for
 * rp_filter looks at its source.
 */
__noinline int packet_deliver(struct __sk_buff *skb, const struct packet *packet,
			      const struct translation *to, __u32 hook)
{
	const struct device *device;
	__u32 index;

	if (!packet || !to)
		return VERDICT_DROP;
	index = route_device(skb, &to->destination, &to->source);
	if (packet_translate(skb, packet, to) == VERDICT_DROP)
		return VERDICT_DROP;
	if (!index || index == skb->ifindex || !(hook & HOOK_ETHERNET))
		return VERDICT_NEXT;
	device = bpf_map_lookup_elem(&devices, &index);
	if (!device || !(device->flags & DEVICE_ETHERNET))
		return VERDICT_NEXT;
	if (bpf_skb_store_bytes(skb, 0, device->mac, sizeof(device->mac), 0))
		return VERDICT_DROP;
	return bpf_redirect(index, BPF_F_INGRESS);
}

static __always_inline int packet_send(struct __sk_buff *skb, const struct packet *packet,
				       const struct translation *to, __u32 hook)
{
	if (to->flags & CONNTRACK_FROM_NODE && to->flags & CONNTRACK_REPLY)
		return packet_deliver(skb, packet, to, hook);
	if (to->flags & (CONNTRACK_REDIRECT | CONNTRACK_FROM_NODE))
		return packet_redirect(skb, packet, to, hook);
	return packet_translate(skb, packet, to);
}

/* What a new flow is given. */
struct choice {
	struct backend backend;
	__u32 service_id;
	__u32 reason; /* enum reason; meaningful when refused or dropped */
	bool masked;
};

enum chosen {
	CHOSEN = 0,
	CHOSEN_NOT_OURS = 1,
	CHOSEN_REJECT = 2,
	CHOSEN_DROP = 3,
};

static __always_inline enum chosen choice_answer(struct choice *choice, enum chosen chosen,
						 enum reason reason)
{
	choice->reason = reason;
	return chosen;
}

static __noinline enum chosen backend_of(struct __sk_buff *skb, const struct packet *packet,
					 const struct service *service, struct choice *choice,
					 __u32 hook)
{
	struct client client = {.address = packet->tuple.source};
	/* The node's own processes are in the cluster, as its pods. */
	bool pod = hook & HOOK_EGRESS || client_is_pod(skb, &client.address);
	struct target target = pod ? target_internal(service) : target_external(service);

	choice->service_id = service->service_id;
	if (service->flags & SERVICE_SOURCE_RANGES &&
	    !source_range_allows(service->service_id, &client.address))
		return choice_answer(choice, CHOSEN_DROP, REASON_SOURCE_RANGE);
	if (!target.run.count)
		return choice_answer(
			choice, target.empty == REASON_NO_BACKEND ? CHOSEN_REJECT : CHOSEN_DROP,
			target.empty);
	if (!backend_choose(service, &target, &client, &choice->backend))
		return choice_answer(choice, CHOSEN_DROP, REASON_UNSETTLED);
	choice->masked = hook & HOOK_EGRESS ||
			 client_is_masked(skb, service, &choice->backend, &client.address, pod);
	return CHOSEN;
}

__noinline int flow_choose(struct __sk_buff *skb, const struct packet *packet,
			   struct choice *choice, __u32 hook)
{
	struct frontend dialled = {};
	struct service service;

	if (!packet || !choice)
		return CHOSEN_NOT_OURS;
	dialled.address = packet->tuple.destination;
	dialled.port = packet->tuple.destination_port;
	dialled.protocol = packet->tuple.protocol;
	switch (frontend_match(&dialled, false, &service)) {
	case MATCH_SERVICE:
		return backend_of(skb, packet, &service, choice, hook);
	case MATCH_UNDEFINED_PORT:
		return choice_answer(choice, CHOSEN_REJECT, REASON_UNDEFINED_PORT);
	case MATCH_UNSETTLED:
		return choice_answer(choice, CHOSEN_DROP, REASON_UNSETTLED);
	case MATCH_NONE:
		break;
	}
	/* A node-local DNS cache has its Service's address on a device: such an address has none in
	 * the maps, and is not unallocated.
	 */
	if (is_service_address(&dialled.address) &&
	    !(address_flags(&dialled.address) & ADDRESS_ON_NODE))
		return choice_answer(choice, CHOSEN_DROP, REASON_UNALLOCATED_ADDRESS);
	return CHOSEN_NOT_OURS;
}

/* Says which address the backend is to see. */
static __always_inline enum routed source_choose(struct __sk_buff *skb, const struct packet *packet,
						 const struct choice *choice, __u32 hook,
						 struct translation *to)
{
	enum routed routed;

	*to = (struct translation){.source = packet->tuple.source};
	if (hook & HOOK_EGRESS)
		to->flags = CONNTRACK_FROM_NODE;
	if (!choice->masked)
		return ROUTED;
	routed = route_source(skb, &choice->backend.address, &to->source);
	if (routed == ROUTED_HERE) {
		/* From outside, or from a pod, the kernel will deliver it; to itself the node cannot send it from here. */
		to->source = packet->tuple.source;
		return hook & HOOK_EGRESS ? ROUTED_NOWHERE : ROUTED;
	}
	if (routed == ROUTED && !address_equal(&to->source, &packet->tuple.source))
		to->flags |= CONNTRACK_REDIRECT;
	return routed;
}

/* Opens the flow to the chosen backend; returns a reason if it cannot, else 0. */
static __noinline __u32 choice_open(struct __sk_buff *skb, const struct packet *packet,
				    const struct choice *choice, __u32 hook, struct translation *to)
{
	if (source_choose(skb, packet, choice, hook, to) != ROUTED)
		return REASON_NO_ROUTE;
	switch (flow_open(skb, packet, &choice->backend, to)) {
	case OPENED:
		packet_count_flow(choice->service_id, packet->length);
		return 0;
	case OPENED_ALREADY:
		return 0;
	case OPEN_TABLE_FULL:
		return REASON_CONNTRACK_FULL;
	case OPEN_NO_PORT:
		break;
	}
	return REASON_PORTS_EXHAUSTED;
}

/* Opens the flow of a packet that belongs to none, if what it dials is ours: to is its translation then. */
__noinline int flow_begin(struct __sk_buff *skb, const struct packet *packet,
			  struct translation *to, __u32 hook)
{
	struct choice choice = {};
	enum chosen chosen;

	if (!packet || !to)
		return VERDICT_DROP;
	chosen = flow_choose(skb, packet, &choice, hook);
	if (chosen == CHOSEN_NOT_OURS)
		return VERDICT_NEXT;
	if (chosen == CHOSEN_REJECT) {
		packet_count_drop(choice.service_id, choice.reason, true);
		return reject_flow(skb, packet, hook);
	}
	if (chosen == CHOSEN)
		choice.reason = choice_open(skb, packet, &choice, hook, to);
	if (choice.reason) {
		packet_count_drop(choice.service_id, choice.reason, false);
		return VERDICT_DROP;
	}
	return VERDICT_TRANSLATE;
}

/* Whether a SYN or INIT is for a new flow although its tuple has one: that one has closed. */
static __noinline bool flow_closed(const struct packet *packet, const struct conntrack_value *value,
				   const struct translation *to)
{
	const struct conntrack_value *other;
	struct conntrack_key other_key;
	struct flow_age age;

	conntrack_other(&other_key, &packet->tuple, to);
	other = bpf_map_lookup_elem(&conntrack, &other_key);
	flow_age_of(&age, value, other);
	return age.seen_any & CONNTRACK_SEEN_RESET || age.seen_both & CONNTRACK_SEEN_FIN;
}

/* Whether a packet that may open a flow has to open one instead of following the flow that it belongs to. */
static __always_inline bool flow_outdated(const struct packet *packet,
					  const struct conntrack_value *value,
					  const struct translation *to)
{
	struct backend backend;

	if (!(packet->flags & PACKET_OPENS))
		return false;
	if (!backend_recall(to->backend_id, to->service_id, BACKEND_CLUSTER | BACKEND_LOCAL,
			    &backend))
		return true;
	return packet->tuple.protocol != IPPROTO_UDP && flow_closed(packet, value, to);
}

/* A frame for another host, which a bridge passes on or a promiscuous device shows. */
static __noinline bool frame_is_foreign(struct __sk_buff *skb)
{
	const struct device *device;
	__u32 index = skb->ifindex;
	__u8 mac[ETH_ALEN];

	if (skb->pkt_type == TYPE_HOST)
		return false;
	if (skb->pkt_type != TYPE_OTHERHOST)
		return true;
	/* The port of a bridge knows its own MAC address only; frames for the node have the bridge's. */
	device = bpf_map_lookup_elem(&devices, &index);
	if (!device || !(device->flags & DEVICE_BRIDGE_PORT) ||
	    bpf_skb_load_bytes(skb, 0, mac, sizeof(mac)))
		return true;
	for (int i = 0; i < ETH_ALEN; i++) {
		if (mac[i] != device->mac[i])
			return true;
	}
	return false;
}

/* Parses the packet; true if it may be one of ours. */
static __always_inline bool packet_read(struct __sk_buff *skb, struct packet *packet, __u32 hook)
{
	enum parsed parsed = packet_parse(skb, packet, hook);

	if (parsed == PARSED_MALFORMED)
		drop_count(REASON_MALFORMED);
	if (parsed != PARSED)
		return false;
	return true;
}

/* Whether the datagram of a later fragment may be one to translate: then its first fragment is worth waiting for. */
static __always_inline bool fragment_is_ours(const struct packet *packet)
{
	return address_flags(&packet->tuple.destination);
}

static __always_inline int flow_follow(struct __sk_buff *skb, const struct packet *packet,
				       struct conntrack_value *value, const struct translation *to,
				       __u32 hook)
{
	conntrack_note(value, packet, to);
	return packet_send(skb, packet, to, hook);
}

/* Translates a packet of a flow, or begins one. */
static __always_inline int flow_handle(struct __sk_buff *skb, const struct packet *packet,
				       struct conntrack_value *value, struct translation *to,
				       __u32 hook)
{
	int verdict;

	if (value && conntrack_alive(packet, value, to)) {
		if (to->flags & CONNTRACK_REPLY || !flow_outdated(packet, value, to))
			return flow_follow(skb, packet, value, to, hook);
		conntrack_remove(&packet->tuple, to);
	}
	if (!(packet->flags & PACKET_OPENS) || (value && to->flags & CONNTRACK_REPLY))
		return VERDICT_NEXT;
	verdict = flow_begin(skb, packet, to, hook);
	return verdict == VERDICT_TRANSLATE ? packet_send(skb, packet, to, hook) : verdict;
}

/* Where each direction of a flow is translated. */
static __always_inline bool is_for_hook(const struct translation *to, __u32 hook)
{
	bool egress = hook & HOOK_EGRESS;

	if (to->flags & CONNTRACK_FROM_NODE)
		return egress == !(to->flags & CONNTRACK_REPLY);
	if (to->flags & CONNTRACK_REDIRECT)
		return !egress;
	return egress == !!(to->flags & CONNTRACK_REPLY);
}

static __always_inline int ingress(struct __sk_buff *skb, __u32 hook)
{
	struct packet packet = {};
	struct conntrack_value *value;
	struct translation to = {};
	__u32 held;

	if (hook & HOOK_ETHERNET && frame_is_foreign(skb))
		return VERDICT_NEXT;
	if (!packet_read(skb, &packet, hook))
		return VERDICT_NEXT;
	if (packet.flags & PACKET_FIRST_FRAGMENT) {
		held = fragment_remember(&packet);
		if (held && !fragment_release(skb, &packet, held)) {
			drop_count(REASON_REWRITE_FAILED);
			return VERDICT_DROP;
		}
	}
	if (packet.flags & PACKET_LATER_FRAGMENT && !fragment_recall(&packet)) {
		if (!fragment_is_ours(&packet))
			return VERDICT_NEXT;
		if (fragment_hold(skb, &packet))
			return VERDICT_DROP;
		if (!fragment_recall(&packet)) {
			drop_count(REASON_FRAGMENT_UNKNOWN);
			return VERDICT_NEXT;
		}
	}
	value = conntrack_find(&packet.tuple, &to);
	if (value && !is_for_hook(&to, hook))
		return VERDICT_NEXT;
	return flow_handle(skb, &packet, value, &to, hook);
}

/*
 * Whether a packet that leaves may open a flow of the node's own: those of others have been seen where they entered.
 */
static __always_inline bool is_from_node(const struct packet *packet)
{
	const struct packet_settings *settings = packet_settings_get();

	if (!(packet->flags & PACKET_OPENS) || !settings)
		return false;
	if (packet->tuple.protocol != IPPROTO_SCTP &&
	    !(settings->flags & PACKET_SETTING_NODE_CLIENTS))
		return false;
	return address_flags(&packet->tuple.source) & ADDRESS_ON_NODE;
}

static __always_inline int egress(struct __sk_buff *skb, __u32 hook)
{
	struct packet packet = {};
	struct conntrack_value *value;
	struct translation to = {};

	if (!packet_read(skb, &packet, hook))
		return VERDICT_NEXT;
	if (packet.flags & PACKET_FIRST_FRAGMENT)
		fragment_remember(&packet);
	if (packet.flags & PACKET_LATER_FRAGMENT && !fragment_recall(&packet))
		return VERDICT_NEXT;
	value = conntrack_find(&packet.tuple, &to);
	if (value ? !is_for_hook(&to, hook) : !is_from_node(&packet))
		return VERDICT_NEXT;
	return flow_handle(skb, &packet, value, &to, hook);
}

SEC("tc")
int tc_ingress(struct __sk_buff *skb)
{
	return ingress(skb, HOOK_ETHERNET);
}

SEC("tc")
int tc_egress(struct __sk_buff *skb)
{
	return egress(skb, HOOK_ETHERNET | HOOK_EGRESS);
}

/* For devices whose packets have no Ethernet header. */
SEC("tc")
int tc_ingress_l3(struct __sk_buff *skb)
{
	return ingress(skb, 0);
}

SEC("tc")
int tc_egress_l3(struct __sk_buff *skb)
{
	return egress(skb, HOOK_EGRESS);
}
