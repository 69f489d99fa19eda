/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Translates ICMP errors. An error travels the way of the answers to the packet that it quotes; its tuple is that of
 * such an answer (packet.h). The quoted packet goes the other way: what the answer's source becomes, its destination
 * becomes, so that who gets the error finds the packet as it sent it.
 */
#ifndef SHUNT_ICMP_H
#define SHUNT_ICMP_H

#include <linux/bpf.h>
#include <linux/udp.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "checksum.h"
#include "nat.h"
#include "packet.h"

/*
 * Brings the quoted transport checksum up to date, if it is among the bytes quoted, and adds its change to difference.
 */
static __noinline int quoted_checksum_update(struct __sk_buff *skb, const struct packet *packet,
					     __s64 change, __s64 *difference)
{
	__u32 offset = checksum_offset(packet->tuple.protocol);
	__u32 from = 0, to;
	__s64 checksum_change;

	if (!offset || !packet_has(packet, packet->inner_l4 + offset, sizeof(__u16)) ||
	    bpf_skb_load_bytes(skb, packet->inner_l4 + offset, &from, sizeof(__u16)))
		return 0;
	if (!from && packet->tuple.protocol == IPPROTO_UDP)
		return 0;
	to = (__u16)~sum_fold((__u64)(__u16)~from + (__u32)change);
	checksum_change = bpf_csum_diff(&from, sizeof(from), &to, sizeof(to), 0);
	*difference = bpf_csum_diff(&from, sizeof(from), &to, sizeof(to), *difference);
	if (checksum_change < 0)
		return -1;
	return bpf_skb_store_bytes(skb, packet->inner_l4 + offset, &to, sizeof(__u16), 0);
}

/* Rewrites the quoted addresses. difference: what changes in the sum over the quoted IP header. */
static __noinline int quoted_addresses(struct __sk_buff *skb, const struct packet *packet,
				       const struct address from[2], const struct address to[2],
				       __s64 *change)
{
	const __u32 size = 2 * sizeof(struct address);
	__be32 to4[2];

	*change = bpf_csum_diff((__be32 *)from, size, (__be32 *)to, size, 0);
	if (is_ipv6(packet))
		return bpf_skb_store_bytes(skb, packet->inner_l3 + offsetof(struct ipv6hdr, saddr),
					   to, size, 0);
	to4[0] = address_word(&to[0], 3);
	to4[1] = address_word(&to[1], 3);
	if (bpf_l3_csum_replace(skb, packet->inner_l3 + offsetof(struct iphdr, check), 0, *change,
				0))
		return -1;
	return bpf_skb_store_bytes(skb, packet->inner_l3 + offsetof(struct iphdr, saddr), to4,
				   sizeof(to4), 0);
}

static __noinline int quoted_apply(struct __sk_buff *skb, const struct packet *packet,
				   const struct translation *to)
{
	struct address from_pair[2] = {packet->tuple.destination, packet->tuple.source};
	struct address to_pair[2] = {to->destination, to->source};
	__u32 from_ports = ports_word(packet->tuple.destination_port, packet->tuple.source_port);
	__u32 to_ports = ports_word(to->destination_port, to->source_port);
	__s64 change, difference;

	if (quoted_addresses(skb, packet, from_pair, to_pair, &change))
		return -1;
	/* An IPv4 header's own checksum has made up for its addresses. */
	difference = is_ipv6(packet) ? change : 0;
	change =
		bpf_csum_diff(&from_ports, sizeof(from_ports), &to_ports, sizeof(to_ports), change);
	difference = bpf_csum_diff(&from_ports, sizeof(from_ports), &to_ports, sizeof(to_ports),
				   difference);
	if (bpf_skb_store_bytes(skb, packet->inner_l4, &to_ports, sizeof(to_ports), 0))
		return -1;
	if (quoted_checksum_update(skb, packet, change, &difference))
		return -1;
	return bpf_l4_csum_replace(skb, packet->l4 + offsetof(struct icmp_header, checksum), 0,
				   difference, 0);
}

static __noinline int outer_load(struct __sk_buff *skb, const struct packet *packet,
				 struct address pair[2])
{
	__be32 pair4[2];

	if (is_ipv6(packet))
		return bpf_skb_load_bytes(skb, packet->l3 + offsetof(struct ipv6hdr, saddr), pair,
					  2 * sizeof(struct address));
	if (bpf_skb_load_bytes(skb, packet->l3 + offsetof(struct iphdr, saddr), pair4,
			       sizeof(pair4)))
		return -1;
	address_set4(&pair[0], pair4[0]);
	address_set4(&pair[1], pair4[1]);
	return 0;
}

/*
 * Translates the error and what it quotes. The sender's own address is replaced only if it is the flow's: a router on
 * the way keeps its name. Nonzero: it could not be translated.
 */
__noinline int icmp_apply(struct __sk_buff *skb, const struct packet *packet,
			  const struct translation *to)
{
	struct address from_pair[2], to_pair[2];

	if (!packet || !to)
		return -1;
	if (outer_load(skb, packet, from_pair))
		return -1;
	if (!address_equal(&from_pair[1], &packet->tuple.destination))
		return -1;
	to_pair[0] = from_pair[0];
	if (address_equal(&from_pair[0], &packet->tuple.source))
		to_pair[0] = to->source;
	to_pair[1] = to->destination;
	if (quoted_apply(skb, packet, to))
		return -1;
	return is_ipv6(packet) ? nat_addresses6(skb, packet, from_pair, to_pair)
			       : nat_addresses4(skb, packet, from_pair, to_pair);
}

#endif
