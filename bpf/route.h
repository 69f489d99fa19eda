/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sends a packet on where the kernel's routes lead, without the kernel's own forwarding in between. */
#ifndef SHUNT_ROUTE_H
#define SHUNT_ROUTE_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "address.h"
#include "packet.h"
#include "settings.h"

enum route_family {
	FAMILY_IPV4 = 2, /* AF_INET */
	FAMILY_IPV6 = 10, /* AF_INET6 */
};

enum routed {
	ROUTED = 0,
	/* To the node itself: the kernel delivers it. */
	ROUTED_HERE = 1,
	ROUTED_NOWHERE = 2,
	ROUTED_TOO_BIG = 3,
	ROUTED_HOP_LIMIT = 4,
};

struct route {
	struct bpf_redir_neigh hop;
	__u32 device;
	__u32 mtu;
};

/* The size that counts for the MTU: of a large offloaded packet, that of the segments it will become. */
static __noinline __u32 segment_length(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 headers = packet->l4 - packet->l3;
	__u8 offset = 0;

	if (!skb->gso_size)
		return packet->length;
	if (packet->l4_protocol != IPPROTO_TCP)
		return headers + 8 + skb->gso_size;
	bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct tcp_start, offset), &offset,
			   sizeof(offset));
	return headers + (offset >> 4) * 4 + skb->gso_size;
}

static __always_inline void fib_begin(struct bpf_fib_lookup *fib, const struct __sk_buff *skb,
				      const struct address *source,
				      const struct address *destination)
{
	fib->ifindex = skb->ifindex;
	if (address_is4(destination)) {
		fib->family = FAMILY_IPV4;
		fib->ipv4_src = address_word(source, 3);
		fib->ipv4_dst = address_word(destination, 3);
		return;
	}
	fib->family = FAMILY_IPV6;
	__builtin_memcpy(fib->ipv6_src, source, sizeof(*source));
	__builtin_memcpy(fib->ipv6_dst, destination, sizeof(*destination));
}

static __always_inline void hop_of(struct route *route, const struct bpf_fib_lookup *fib)
{
	route->device = fib->ifindex;
	route->hop.nh_family = fib->family;
	/* A gateway replaces the destination; it may be an IPv6 one of an IPv4 route. */
	if (fib->family == FAMILY_IPV4)
		route->hop.ipv4_nh = fib->ipv4_dst;
	else
		__builtin_memcpy(route->hop.ipv6_nh, fib->ipv6_dst, sizeof(fib->ipv6_dst));
}

static __always_inline enum routed routed_of(long result)
{
	switch (result) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH: /* the redirect resolves it */
		return ROUTED;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return ROUTED_HERE;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return ROUTED_TOO_BIG;
	}
	return ROUTED_NOWHERE;
}

/* Finds the way of a packet that will have these addresses. */
__noinline int route_find(struct __sk_buff *skb, const struct packet *packet,
			  const struct translation *to, struct route *route)
{
	struct bpf_fib_lookup fib = {};
	enum routed routed;

	if (!packet || !to || !route)
		return ROUTED_NOWHERE;
	if (packet->hop_limit <= 1)
		return ROUTED_HOP_LIMIT;
	fib_begin(&fib, skb, &to->source, &to->destination);
	fib.l4_protocol = packet->l4_protocol;
	fib.sport = port_to_be(to->source_port);
	fib.dport = port_to_be(to->destination_port);
	fib.tot_len = segment_length(skb, packet);
	routed = routed_of(bpf_fib_lookup(skb, &fib, sizeof(fib), 0));
	if (routed == ROUTED)
		hop_of(route, &fib);
	if (routed == ROUTED_TOO_BIG)
		route->mtu = fib.mtu_result;
	return routed;
}

/*
 * The node's address for packets to a backend: the one that the kernel would take for its own. Kernels before 6.7
 * know no such question (unless the distribution has added it): then the node's address of the family.
 */
__noinline int route_source(struct __sk_buff *skb, const struct address *backend,
			    struct address *source)
{
	struct bpf_fib_lookup fib = {};
	enum routed routed;
	long result;

	if (!backend || !source)
		return ROUTED_NOWHERE;
	address_set_unspecified(source, backend);
	fib_begin(&fib, skb, source, backend);
	result = bpf_fib_lookup(skb, &fib, sizeof(fib), BPF_FIB_LOOKUP_SRC);
	if (result < 0) {
		*source = address_is4(backend) ? settings.node_address4 : settings.node_address6;
		result = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
		routed = routed_of(result);
	} else {
		routed = routed_of(result);
		if (routed != ROUTED)
			return routed;
		if (address_is4(backend))
			address_set4(source, fib.ipv4_src);
		else
			__builtin_memcpy(source, fib.ipv6_src, sizeof(*source));
	}
	return routed == ROUTED && address_is_unspecified(source) ? ROUTED_NOWHERE : routed;
}

/* The device to which the kernel would send a packet for this address; 0: it has none, or delivers it itself. */
static __noinline __u32 route_device(struct __sk_buff *skb, const struct address *source,
				     const struct address *destination)
{
	struct bpf_fib_lookup fib = {};

	fib_begin(&fib, skb, source, destination);
	if (routed_of(bpf_fib_lookup(skb, &fib, sizeof(fib), 0)) != ROUTED)
		return 0;
	return fib.ifindex;
}

static __noinline int hop_limit_decrement(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 ttl = packet->hop_limit - 1;

	if (is_ipv6(packet))
		return bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct ipv6hdr, hop_limit),
					   &ttl, sizeof(ttl), BPF_F_RECOMPUTE_CSUM);
	/* The hop limit is the upper byte of its word of the sum. */
	if (bpf_l3_csum_replace(skb, packet->l3 + offsetof(struct iphdr, check),
				bpf_htons((__u16)packet->hop_limit << 8),
				bpf_htons((__u16)ttl << 8), sizeof(__u16)))
		return -1;
	return bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct iphdr, ttl), &ttl, sizeof(ttl),
				   0);
}

#endif
