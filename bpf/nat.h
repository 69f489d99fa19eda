/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Rewrites addresses and ports, and the checksums that cover them. */
#ifndef SHUNT_NAT_H
#define SHUNT_NAT_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "address.h"
#include "checksum.h"
#include "packet.h"

/*
 * Each update of a transport checksum says what has changed, because the kernel keeps it in one of three forms: a
 * finished checksum, one of the pseudo header alone with the rest left to the device, or a sum over the whole packet
 * as it was received. BPF_F_PSEUDO_HDR: an address. IPv6 addresses are stored with BPF_F_RECOMPUTE_CSUM, for the same:
 * no header checksum makes up for them in that sum.
 */
static __always_inline __u64 checksum_flags(__u8 protocol)
{
	return protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

static __always_inline bool has_transport_sum(const struct packet *packet)
{
	return checksum_offset(packet->l4_protocol) && !(packet->flags & PACKET_LATER_FRAGMENT);
}

static __always_inline int addresses_changed(struct __sk_buff *skb, const struct packet *packet,
					     __s64 difference)
{
	if (!has_transport_sum(packet))
		return 0;
	return bpf_l4_csum_replace(skb, packet->l4 + checksum_offset(packet->l4_protocol), 0,
				   difference,
				   BPF_F_PSEUDO_HDR | checksum_flags(packet->l4_protocol));
}

/* Source and destination stand one behind the other in a tuple and in a translation, as in each IP header. */
static __noinline int nat_addresses4(struct __sk_buff *skb, const struct packet *packet,
				     const struct address from[2], const struct address to[2])
{
	__be32 from4[2] = {address_word(&from[0], 3), address_word(&from[1], 3)};
	__be32 to4[2] = {address_word(&to[0], 3), address_word(&to[1], 3)};
	__s64 difference = bpf_csum_diff(from4, sizeof(from4), to4, sizeof(to4), 0);

	if (addresses_changed(skb, packet, difference))
		return -1;
	if (bpf_l3_csum_replace(skb, packet->l3 + offsetof(struct iphdr, check), 0, difference, 0))
		return -1;
	return bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct iphdr, saddr), to4,
				   sizeof(to4), 0);
}

static __noinline int nat_addresses6(struct __sk_buff *skb, const struct packet *packet,
				     const struct address from[2], const struct address to[2])
{
	const __u32 size = 2 * sizeof(struct address);
	__s64 difference = bpf_csum_diff((__be32 *)from, size, (__be32 *)to, size, 0);

	if (addresses_changed(skb, packet, difference))
		return -1;
	return bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct ipv6hdr, saddr), to, size,
				   BPF_F_RECOMPUTE_CSUM);
}

/* A checksum of zero is one that the device will fill in: it stays. */
static __always_inline int sctp_checksum_update(struct __sk_buff *skb, const struct packet *packet,
						__u32 difference)
{
	__u32 offset = packet->l4 + offsetof(struct sctp_start, checksum);
	__u32 length = packet->length - (packet->l4 - packet->l3);
	__u32 checksum;

	/* It covers the fragments that are not here. */
	if (packet->flags & PACKET_FIRST_FRAGMENT)
		return -1;
	if (bpf_skb_load_bytes(skb, offset, &checksum, sizeof(checksum)))
		return -1;
	if (!checksum)
		return 0;
	checksum ^= crc32c_change(difference, length);
	return bpf_skb_store_bytes(skb, offset, &checksum, sizeof(checksum), BPF_F_RECOMPUTE_CSUM);
}

/* Ports as they stand in the header: both in one word. */
static __always_inline __u32 ports_word(__u16 source, __u16 destination)
{
	__be16 ports[2] = {port_to_be(source), port_to_be(destination)};
	__u32 word;

	__builtin_memcpy(&word, ports, sizeof(word));
	return word;
}

static __noinline int nat_ports(struct __sk_buff *skb, const struct packet *packet, __u32 from,
				__u32 to)
{
	__u64 flags = 0;

	if (packet->l4_protocol == IPPROTO_SCTP) {
		if (sctp_checksum_update(skb, packet, from ^ to))
			return -1;
		flags = BPF_F_RECOMPUTE_CSUM;
	} else if (packet->flags & PACKET_NO_CHECKSUM) {
		flags = BPF_F_RECOMPUTE_CSUM;
	} else if (bpf_l4_csum_replace(skb, packet->l4 + checksum_offset(packet->l4_protocol), from,
				       to, sizeof(to) | checksum_flags(packet->l4_protocol))) {
		return -1;
	}
	return bpf_skb_store_bytes(skb, packet->l4, &to, sizeof(to), flags);
}

/* Rewrites a packet of the flow. Nonzero: it could not be, and must not travel as it is now. */
__noinline int nat_apply(struct __sk_buff *skb, const struct packet *packet,
			 const struct translation *to)
{
	__u32 from_ports, to_ports;

	if (!packet || !to)
		return -1;
	from_ports = ports_word(packet->tuple.source_port, packet->tuple.destination_port);
	to_ports = ports_word(to->source_port, to->destination_port);
	if (is_ipv6(packet) ? nat_addresses6(skb, packet, &packet->tuple.source, &to->source)
			    : nat_addresses4(skb, packet, &packet->tuple.source, &to->source))
		return -1;
	if (packet->flags & PACKET_LATER_FRAGMENT || from_ports == to_ports)
		return 0;
	return nat_ports(skb, packet, from_ports, to_ports);
}

#endif
