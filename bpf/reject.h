/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Makes a packet into the answer that refuses it, and sends it back out of the device it came in by. */
#ifndef SHUNT_REJECT_H
#define SHUNT_REJECT_H

#include <linux/bpf.h>
#include <linux/icmpv6.h>
#include <linux/tcp.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "checksum.h"
#include "maps.h"
#include "packet.h"
#include "packet_stats.h"

enum reject_limit {
	ANSWER_HOP_LIMIT = 64,
	/* An ICMP error has at most 576 bytes, an ICMPv6 error 1280. */
	QUOTE4_BYTES = 576 - sizeof(struct iphdr) - sizeof(struct icmp_header),
	QUOTE6_BYTES = 1280 - sizeof(struct ipv6hdr) - sizeof(struct icmp_header),
	SUM_CHUNK_BYTES = 32,
	SUM_CHUNKS = 40,
};

static __noinline bool answer_allowed(void)
{
	const __u64 second_ns = 1000000000;
	const struct packet_settings *limits;
	struct reject_budget *budget;
	__u64 now_ns = bpf_ktime_get_coarse_ns();
	__u32 zero = 0;

	limits = bpf_map_lookup_elem(&packet_settings, &zero);
	budget = bpf_map_lookup_elem(&reject_budget, &zero);
	if (!limits || !budget)
		return false;
	if (now_ns - budget->second_began_ns >= second_ns) {
		budget->second_began_ns = now_ns;
		budget->sent = 0;
	}
	return budget->sent++ < limits->reject_rate;
}

/* Nobody is answered who is not one host. */
static __always_inline bool answerable(const struct address *client)
{
	__u32 addr4 = bpf_ntohl(address_word(client, 3));

	if (address_is_unspecified(client) || address_is_loopback(client))
		return false;
	if (address_is4(client))
		return addr4 >> 24 && addr4 >> 28 < 14; /* not 0/8, multicast, 240/4 */
	return client->bytes[0] != 0xff;
}

/*
 * Sends the frame back to who sent it: out of the device that it came in by. One that the node itself sends goes in by
 * the device that it was to leave by.
 */
static __noinline int frame_return(struct __sk_buff *skb, __u32 hook)
{
	__u8 macs[2 * ETH_ALEN], swapped[2 * ETH_ALEN];

	if (hook & HOOK_ETHERNET) {
		if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)))
			return TC_ACT_SHOT;
		__builtin_memcpy(swapped, macs + ETH_ALEN, ETH_ALEN);
		__builtin_memcpy(swapped + ETH_ALEN, macs, ETH_ALEN);
		if (bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0))
			return TC_ACT_SHOT;
	}
	return bpf_redirect(skb->ifindex, hook & HOOK_EGRESS ? BPF_F_INGRESS : 0);
}

/* Writes the IP header of an answer with this much behind it. */
static __noinline int answer_ip4(struct __sk_buff *skb, const struct packet *packet,
				 const struct address from_to[2], __u32 payload, __u8 protocol)
{
	struct iphdr ip = {
		.version = 4,
		.ihl = sizeof(ip) / 4,
		.tot_len = bpf_htons(sizeof(ip) + payload),
		.frag_off = bpf_htons(IPV4_DF),
		.ttl = ANSWER_HOP_LIMIT,
		.protocol = protocol,
		.saddr = address_word(&from_to[0], 3),
		.daddr = address_word(&from_to[1], 3),
	};

	ip.check = ~sum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0));
	return bpf_skb_store_bytes(skb, packet->l3, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

static __noinline int answer_ip6(struct __sk_buff *skb, const struct packet *packet,
				 const struct address from_to[2], __u32 payload, __u8 protocol)
{
	struct ipv6hdr ip = {
		.version = 6,
		.payload_len = bpf_htons(payload),
		.nexthdr = protocol,
		.hop_limit = ANSWER_HOP_LIMIT,
	};

	__builtin_memcpy(&ip.saddr, &from_to[0], sizeof(ip.saddr));
	__builtin_memcpy(&ip.daddr, &from_to[1], sizeof(ip.daddr));
	return bpf_skb_store_bytes(skb, packet->l3, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

/* The sum over the pseudo header. v4-mapped addresses add two 0xffff, which are zero in this arithmetic. */
static __always_inline __s64 pseudo_sum(const struct address from_to[2], __u32 length,
					__u8 protocol)
{
	__be32 rest[2] = {bpf_htonl(length), bpf_htonl(protocol)};
	__s64 sum = bpf_csum_diff(NULL, 0, (__be32 *)from_to, 2 * sizeof(struct address), 0);

	return bpf_csum_diff(NULL, 0, rest, sizeof(rest), sum);
}

/*
 * Whether the device is to fill in the transport checksum: then the kernel ignores a change of the payload's sum. The
 * only way to ask.
 */
static __noinline bool checksum_is_partial(struct __sk_buff *skb, __u32 offset)
{
	__be16 before = 0, after = 0;

	if (bpf_skb_load_bytes(skb, offset, &before, sizeof(before)) ||
	    bpf_l4_csum_replace(skb, offset, 0, bpf_htons(1), sizeof(__u16)) ||
	    bpf_skb_load_bytes(skb, offset, &after, sizeof(after)))
		return false;
	return before == after;
}

/* The RST that refuses a SYN: it acknowledges the SYN and what came with it. */
static __noinline int rst_write(struct __sk_buff *skb, const struct packet *packet,
				const struct address from_to[2])
{
	__u32 offset = packet->l4 + offsetof(struct tcphdr, check);
	bool partial = checksum_is_partial(skb, offset);
	struct tcphdr rst = {};
	struct tcp_start syn;
	__u32 payload;
	__s64 sum;

	if (bpf_skb_load_bytes(skb, packet->l4, &syn, sizeof(syn)))
		return -1;
	payload = packet->length - (packet->l4 - packet->l3) - (syn.offset >> 4) * 4U;
	if (bpf_skb_change_tail(skb, packet->l4 + sizeof(rst), 0))
		return -1;
	rst.source = syn.destination;
	rst.dest = syn.source;
	rst.ack_seq = bpf_htonl(bpf_ntohl(syn.sequence) + 1 + payload);
	rst.doff = sizeof(rst) / 4;
	rst.rst = 1;
	rst.ack = 1;
	sum = pseudo_sum(from_to, sizeof(rst), IPPROTO_TCP);
	rst.check = partial ? sum_fold(sum)
			    : ~sum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&rst, sizeof(rst), sum));
	return bpf_skb_store_bytes(skb, packet->l4, &rst, sizeof(rst), BPF_F_RECOMPUTE_CSUM);
}

__noinline int answer_rst(struct __sk_buff *skb, const struct packet *packet, __u32 hook)
{
	struct address from_to[2];

	if (!packet)
		return TC_ACT_SHOT;
	from_to[0] = packet->tuple.destination;
	from_to[1] = packet->tuple.source;
	if (rst_write(skb, packet, from_to))
		return TC_ACT_SHOT;
	if (is_ipv6(packet) ? answer_ip6(skb, packet, from_to, sizeof(struct tcphdr), IPPROTO_TCP)
			    : answer_ip4(skb, packet, from_to, sizeof(struct tcphdr), IPPROTO_TCP))
		return TC_ACT_SHOT;
	return frame_return(skb, hook);
}

/*
 * The CRC32c of four words, the third of them zero: the sum of what each word contributes (crc32c_change), and of what
 * the register had in it at the beginning, all ones.
 */
static __always_inline __u32 crc32c_of_abort(const __u32 words[4])
{
	__u32 crc = crc32c_multiply(0xffffffff, crc32c_powers[4]);

	crc ^= crc32c_change(words[0], 16);
	crc ^= crc32c_change(words[1], 12);
	crc ^= crc32c_change(words[3], 4);
	return ~crc;
}

/* What an INIT tells: the tag that answers to it must have. */
enum sctp_offset {
	SCTP_INIT_TAG = 16,
};

/* The ABORT that refuses an INIT. A port unreachable is no reason for a Linux client to give up. */
__noinline int answer_abort(struct __sk_buff *skb, const struct packet *packet, __u32 hook)
{
	struct address from_to[2];
	struct sctp_start abort = {};
	__u32 checksum;

	if (!packet)
		return TC_ACT_SHOT;
	from_to[0] = packet->tuple.destination;
	from_to[1] = packet->tuple.source;
	if (bpf_skb_load_bytes(skb, packet->l4 + SCTP_INIT_TAG, &abort.tag, sizeof(abort.tag)) ||
	    bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct sctp_start, checksum), &checksum,
			       sizeof(checksum)) ||
	    bpf_skb_change_tail(skb, packet->l4 + sizeof(abort), 0))
		return TC_ACT_SHOT;
	abort.source = port_to_be(packet->tuple.destination_port);
	abort.destination = port_to_be(packet->tuple.source_port);
	abort.chunk = SCTP_ABORT;
	abort.chunk_length = bpf_htons(sizeof(abort) - offsetof(struct sctp_start, chunk));
	/* Zero is left to the device, as in nat.h. */
	if (checksum)
		abort.checksum = crc32c_of_abort((const __u32 *)&abort);
	if (bpf_skb_store_bytes(skb, packet->l4, &abort, sizeof(abort), BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	if (is_ipv6(packet) ? answer_ip6(skb, packet, from_to, sizeof(abort), IPPROTO_SCTP)
			    : answer_ip4(skb, packet, from_to, sizeof(abort), IPPROTO_SCTP))
		return TC_ACT_SHOT;
	return frame_return(skb, hook);
}

struct quote_sum {
	struct __sk_buff *skb;
	__u32 offset;
	__u32 left;
	__s64 sum;
};

static long quote_add(__u32 chunk, struct quote_sum *quote)
{
	__be32 bytes[SUM_CHUNK_BYTES / 4] = {};
	__u32 size = quote->left;

	(void)chunk;
	if (!size)
		return 1;
	if (size > sizeof(bytes))
		size = sizeof(bytes);
	/* Verifiers before 6.14 forget that it is not zero. */
	asm volatile("" : "+r"(size));
	size = ((size - 1) & (sizeof(bytes) - 1)) + 1;
	if (bpf_skb_load_bytes(quote->skb, quote->offset, bytes, size))
		return 1;
	quote->sum = bpf_csum_diff(NULL, 0, bytes, sizeof(bytes), quote->sum);
	quote->offset += size;
	quote->left -= size;
	return 0;
}

/* What an ICMP error says. */
struct answer {
	__u8 type;
	__u8 code;
	__be32 rest; /* its second word */
};

/* Puts the ICMP header behind the room for the IP header, in front of the quoted packet. */
static __noinline int icmp_write(struct __sk_buff *skb, const struct packet *packet,
				 const struct answer *answer, const struct address from_to[2],
				 __u32 quoted)
{
	__u32 offset =
		packet->l3 + (is_ipv6(packet) ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	struct icmp_header icmp = {
		.type = answer->type, .code = answer->code, .rest = answer->rest};
	struct quote_sum quote = {.skb = skb, .offset = offset + sizeof(icmp), .left = quoted};

	if (is_ipv6(packet))
		quote.sum = pseudo_sum(from_to, sizeof(icmp) + quoted, IPPROTO_ICMPV6);
	quote.sum = bpf_csum_diff(NULL, 0, (__be32 *)&icmp, sizeof(icmp), quote.sum);
	bpf_loop(SUM_CHUNKS, quote_add, &quote, 0);
	if (quote.left)
		return -1;
	icmp.checksum = ~sum_fold(quote.sum);
	return bpf_skb_store_bytes(skb, offset, &icmp, sizeof(icmp), BPF_F_RECOMPUTE_CSUM);
}

__noinline int answer_icmp(struct __sk_buff *skb, const struct packet *packet,
			   const struct answer *answer, __u32 hook)
{
	struct address from_to[2];
	__u32 quoted, limit, room;

	if (!packet || !answer)
		return TC_ACT_SHOT;
	from_to[0] = packet->tuple.destination;
	from_to[1] = packet->tuple.source;
	limit = is_ipv6(packet) ? QUOTE6_BYTES : QUOTE4_BYTES;
	quoted = packet->length < limit ? packet->length : limit;
	room = 8 + (is_ipv6(packet) ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (skb->len != packet->l3 + quoted && bpf_skb_change_tail(skb, packet->l3 + quoted, 0))
		return TC_ACT_SHOT;
	if (bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, 0))
		return TC_ACT_SHOT;
	if (icmp_write(skb, packet, answer, from_to, quoted))
		return TC_ACT_SHOT;
	if (is_ipv6(packet) ? answer_ip6(skb, packet, from_to, 8 + quoted, IPPROTO_ICMPV6)
			    : answer_ip4(skb, packet, from_to, 8 + quoted, IPPROTO_ICMP))
		return TC_ACT_SHOT;
	return frame_return(skb, hook);
}

static __always_inline bool may_answer(const struct packet *packet)
{
	if (packet->flags & (PACKET_ICMP_ERROR | PACKET_LATER_FRAGMENT) ||
	    !answerable(&packet->tuple.source))
		return false;
	if (answer_allowed())
		return true;
	drop_count(REASON_ANSWER_LIMITED);
	return false;
}

/*
 * Refuses a packet that opens a flow: RST for TCP, ABORT for SCTP, ICMP port unreachable for UDP, and for those two
 * behind options.
 */
static __noinline int reject_flow(struct __sk_buff *skb, const struct packet *packet, __u32 hook)
{
	struct answer answer = {.type = ICMP_DEST_UNREACH, .code = ICMP_PORT_UNREACH};

	if (!may_answer(packet))
		return TC_ACT_SHOT;
	if (!(packet->flags & (PACKET_EXTENDED | PACKET_FIRST_FRAGMENT))) {
		if (packet->l4_protocol == IPPROTO_TCP)
			return answer_rst(skb, packet, hook);
		if (packet->l4_protocol == IPPROTO_SCTP &&
		    packet_has(packet, packet->l4 + SCTP_INIT_TAG, sizeof(__be32)))
			return answer_abort(skb, packet, hook);
	}
	if (is_ipv6(packet))
		answer = (struct answer){.type = ICMPV6_DEST_UNREACH, .code = ICMPV6_PORT_UNREACH};
	return answer_icmp(skb, packet, &answer, hook);
}

/* Tells the sender that its packet is too large for the way it would take from here. */
static __noinline int reject_too_big(struct __sk_buff *skb, const struct packet *packet, __u32 mtu,
				     __u32 hook)
{
	struct answer answer = {
		.type = ICMP_DEST_UNREACH,
		.code = ICMP_FRAG_NEEDED,
		.rest = bpf_htonl(mtu),
	};

	if (!may_answer(packet))
		return TC_ACT_SHOT;
	if (is_ipv6(packet)) {
		answer.type = ICMPV6_PKT_TOOBIG;
		answer.code = 0;
	}
	return answer_icmp(skb, packet, &answer, hook);
}

static __noinline int reject_hop_limit(struct __sk_buff *skb, const struct packet *packet,
				       __u32 hook)
{
	struct answer answer = {.type = ICMP_TIME_EXCEEDED, .code = ICMP_EXC_TTL};

	if (!may_answer(packet))
		return TC_ACT_SHOT;
	if (is_ipv6(packet))
		answer = (struct answer){.type = ICMPV6_TIME_EXCEED, .code = ICMPV6_EXC_HOPLIMIT};
	return answer_icmp(skb, packet, &answer, hook);
}

#endif
