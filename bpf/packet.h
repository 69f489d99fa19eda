/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A packet, parsed once. All reads of headers, and all checks of their lengths, are here. */
#ifndef SHUNT_PACKET_H
#define SHUNT_PACKET_H

#include <linux/bpf.h>
#include <linux/icmpv6.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "address.h"
#include "types.h"

/* Where a program is attached. */
enum hook_flag {
	HOOK_ETHERNET = 1 << 0, /* the device's frames have an Ethernet header */
	HOOK_EGRESS = 1 << 1,
};

enum packet_flag {
	PACKET_IPV6 = 1 << 0,
	/* A fragment that has the transport header, and one that has not. */
	PACKET_FIRST_FRAGMENT = 1 << 1,
	PACKET_LATER_FRAGMENT = 1 << 2,
	/*
	 * An ICMP error. The tuple is that of the packet in it, turned round: the error travels the way of that
	 * packet's answers and is translated as one.
	 */
	PACKET_ICMP_ERROR = 1 << 3,
	/* IPv4 options or IPv6 extension headers are in front of the transport header. */
	PACKET_EXTENDED = 1 << 4,
	/* Opens a flow: a TCP SYN, an SCTP INIT, any UDP datagram. */
	PACKET_OPENS = 1 << 5,
	PACKET_DONT_FRAGMENT = 1 << 6,
	/* A UDP datagram whose sender computed no checksum. */
	PACKET_NO_CHECKSUM = 1 << 7,
};

struct packet {
	struct conntrack_key tuple;
	__u32 length; /* of the IP packet */
	__u32 fragment_id;
	__u16 l3; /* offsets in the frame */
	__u16 l4;
	__u16 inner_l3; /* of the packet in an ICMP error */
	__u16 inner_l4;
	__u8 flags; /* enum packet_flag */
	__u8 seen; /* enum conntrack_seen */
	__u8 hop_limit;
	__u8 l4_protocol; /* as tuple.protocol, but for ICMP errors */
};

/* linux/icmp.h cannot be included where the C library has no 32-bit headers. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 rest;
};

enum icmp_type {
	ICMP_DEST_UNREACH = 3,
	ICMP_SOURCE_QUENCH = 4,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETERPROB = 12,
};

enum icmp_code {
	ICMP_EXC_TTL = 0,
	ICMP_PORT_UNREACH = 3,
	ICMP_FRAG_NEEDED = 4,
};

enum parsed {
	PARSED = 0,
	/* Nothing that a Service can have. */
	PARSED_OTHER = 1,
	/* Headers that contradict each other. */
	PARSED_MALFORMED = 2,
};

enum packet_limit {
	EXTENSION_HEADERS = 6,
	QUOTED_BYTES = 8, /* of the transport header, at least, in an ICMP error */
	VLAN_ID_MASK = 0x0fff,
	IPV4_DF = 0x4000,
	IPV4_MF = 0x2000,
	IPV4_OFFSET_MASK = 0x1fff,
	IPV6_MF = 0x0001,
	IPV6_OFFSET_MASK = 0xfff8,
};

struct tcp_start {
	__be16 source;
	__be16 destination;
	__be32 sequence;
	__be32 acknowledgement;
	__u8 offset; /* in words, in the upper four bits */
	__u8 flags;
};

enum tcp_flag {
	TCP_FIN = 0x01,
	TCP_SYN = 0x02,
	TCP_RST = 0x04,
	TCP_ACK = 0x10,
};

struct sctp_start {
	__be16 source;
	__be16 destination;
	__be32 tag;
	__le32 checksum;
	__u8 chunk;
	__u8 chunk_flags;
	__be16 chunk_length;
};

enum sctp_chunk {
	SCTP_INIT = 1,
	SCTP_ABORT = 6,
	SCTP_SHUTDOWN = 7,
	SCTP_SHUTDOWN_ACK = 8,
	SCTP_SHUTDOWN_COMPLETE = 14,
};

/* Where an IP header ends and what it carries. */
struct ip_end {
	__u32 offset;
	__u32 fragment_id;
	__u8 protocol;
	bool first_fragment;
	bool later_fragment;
	bool extended;
};

static __always_inline bool is_ipv6(const struct packet *packet)
{
	return packet->flags & PACKET_IPV6;
}

/* Walks IPv6 extension headers. A routing header with hops left has another destination than the header says. */
static __noinline enum parsed ipv6_walk(struct __sk_buff *skb, struct ip_end *end)
{
	struct {
		__u8 next;
		__u8 length;
		__be16 offset;
		__be32 id;
	} header;

	for (int i = 0; i < EXTENSION_HEADERS; i++) {
		switch (end->protocol) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_DSTOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_FRAGMENT:
			break;
		default:
			return PARSED;
		}
		if (bpf_skb_load_bytes(skb, end->offset, &header, sizeof(header)))
			return PARSED_MALFORMED;
		end->extended = true;
		if (end->protocol == IPPROTO_FRAGMENT) {
			__u16 offset = bpf_ntohs(header.offset);

			end->fragment_id = header.id;
			end->later_fragment = offset & IPV6_OFFSET_MASK;
			end->first_fragment = !end->later_fragment && offset & IPV6_MF;
			end->offset += sizeof(header);
			end->protocol = header.next;
			/* What follows a later fragment's header is not a header. */
			if (end->later_fragment)
				return PARSED;
			continue;
		}
		/* The fourth byte of a routing header: hops left. */
		if (end->protocol == IPPROTO_ROUTING && header.offset & bpf_htons(0x00ff))
			return PARSED_OTHER;
		end->offset += 8 + 8 * (__u32)header.length;
		end->protocol = header.next;
	}
	return PARSED_OTHER;
}

static __always_inline enum parsed ipv4_parse(struct __sk_buff *skb, struct packet *packet,
					      struct ip_end *end)
{
	struct iphdr ip;
	__u16 fragment;
	__u32 here = skb->len - packet->l3;

	if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
		return PARSED_MALFORMED;
	if (ip.version != 4 || ip.ihl < sizeof(ip) / 4)
		return PARSED_MALFORMED;
	packet->length = bpf_ntohs(ip.tot_len);
	/* The kernel leaves the length of a large offloaded packet (BIG TCP) at zero. */
	if (!packet->length && skb->gso_size)
		packet->length = here;
	if (packet->length < ip.ihl * 4U || packet->length > here)
		return PARSED_MALFORMED;
	fragment = bpf_ntohs(ip.frag_off);
	packet->hop_limit = ip.ttl;
	if (fragment & IPV4_DF)
		packet->flags |= PACKET_DONT_FRAGMENT;
	address_set4(&packet->tuple.source, ip.saddr);
	address_set4(&packet->tuple.destination, ip.daddr);
	end->fragment_id = ip.id;
	end->later_fragment = fragment & IPV4_OFFSET_MASK;
	end->first_fragment = !end->later_fragment && fragment & IPV4_MF;
	end->extended = ip.ihl > sizeof(ip) / 4;
	end->offset = packet->l3 + ip.ihl * 4U;
	end->protocol = ip.protocol;
	return PARSED;
}

static __always_inline enum parsed ipv6_parse(struct __sk_buff *skb, struct packet *packet,
					      struct ip_end *end)
{
	struct ipv6hdr ip;
	__u32 here = skb->len - packet->l3;

	if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
		return PARSED_MALFORMED;
	if (ip.version != 6)
		return PARSED_MALFORMED;
	packet->length = sizeof(ip) + bpf_ntohs(ip.payload_len);
	if (!ip.payload_len && skb->gso_size)
		packet->length = here;
	if (packet->length > here)
		return PARSED_MALFORMED;
	packet->hop_limit = ip.hop_limit;
	packet->flags |= PACKET_IPV6 | PACKET_DONT_FRAGMENT;
	__builtin_memcpy(&packet->tuple.source, &ip.saddr, sizeof(ip.saddr));
	__builtin_memcpy(&packet->tuple.destination, &ip.daddr, sizeof(ip.daddr));
	/* A v4-mapped address on the wire would be taken for IPv4 in every key. */
	if (address_is4(&packet->tuple.source) || address_is4(&packet->tuple.destination))
		return PARSED_OTHER;
	end->offset = packet->l3 + sizeof(ip);
	end->protocol = ip.nexthdr;
	return ipv6_walk(skb, end);
}

static __always_inline enum parsed tcp_parse(struct __sk_buff *skb, struct packet *packet)
{
	struct tcp_start tcp;
	__u8 flags;

	if (bpf_skb_load_bytes(skb, packet->l4, &tcp, sizeof(tcp)) || tcp.offset >> 4 < 5)
		return PARSED_MALFORMED;
	packet->tuple.source_port = port_from_be(tcp.source);
	packet->tuple.destination_port = port_from_be(tcp.destination);
	flags = tcp.flags & (TCP_SYN | TCP_RST | TCP_FIN | TCP_ACK);
	if (flags == TCP_SYN)
		packet->flags |= PACKET_OPENS;
	if (!(flags & TCP_SYN))
		packet->seen |= CONNTRACK_SEEN_DATA;
	if (flags & TCP_FIN)
		packet->seen |= CONNTRACK_SEEN_FIN;
	if (flags & TCP_RST)
		packet->seen |= CONNTRACK_SEEN_RESET;
	return PARSED;
}

static __always_inline enum parsed udp_parse(struct __sk_buff *skb, struct packet *packet)
{
	struct {
		__be16 source;
		__be16 destination;
		__be16 length;
		__be16 checksum;
	} udp;

	if (bpf_skb_load_bytes(skb, packet->l4, &udp, sizeof(udp)))
		return PARSED_MALFORMED;
	packet->tuple.source_port = port_from_be(udp.source);
	packet->tuple.destination_port = port_from_be(udp.destination);
	packet->flags |= PACKET_OPENS;
	packet->seen |= CONNTRACK_SEEN_DATA;
	if (!udp.checksum)
		packet->flags |= PACKET_NO_CHECKSUM;
	return PARSED;
}

static __always_inline enum parsed sctp_parse(struct __sk_buff *skb, struct packet *packet)
{
	struct sctp_start sctp;

	if (bpf_skb_load_bytes(skb, packet->l4, &sctp, sizeof(sctp)))
		return PARSED_MALFORMED;
	packet->tuple.source_port = port_from_be(sctp.source);
	packet->tuple.destination_port = port_from_be(sctp.destination);
	switch (sctp.chunk) {
	case SCTP_INIT:
		packet->flags |= PACKET_OPENS;
		break;
	case SCTP_ABORT:
		packet->seen |= CONNTRACK_SEEN_RESET;
		break;
	case SCTP_SHUTDOWN:
	case SCTP_SHUTDOWN_ACK:
	case SCTP_SHUTDOWN_COMPLETE:
		packet->seen |= CONNTRACK_SEEN_FIN;
		break;
	default:
		packet->seen |= CONNTRACK_SEEN_DATA;
	}
	return PARSED;
}

/* Whether so many bytes from an offset are the packet's: behind it a frame may have padding that looks like more. */
static __always_inline bool packet_has(const struct packet *packet, __u32 offset, __u32 bytes)
{
	return offset + bytes <= packet->l3 + packet->length;
}

static __always_inline bool icmp_is_error(__u8 protocol, __u8 type)
{
	if (protocol == IPPROTO_ICMPV6)
		return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
	return type == ICMP_DEST_UNREACH || type == ICMP_SOURCE_QUENCH ||
	       type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
}

static __always_inline enum parsed inner4_parse(struct __sk_buff *skb, struct packet *packet,
						struct ip_end *end)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, packet->inner_l3, &ip, sizeof(ip)))
		return PARSED_OTHER;
	if (ip.version != 4 || ip.ihl < sizeof(ip) / 4 || ip.frag_off & bpf_htons(IPV4_OFFSET_MASK))
		return PARSED_OTHER;
	address_set4(&packet->tuple.destination, ip.saddr);
	address_set4(&packet->tuple.source, ip.daddr);
	end->offset = packet->inner_l3 + ip.ihl * 4U;
	end->protocol = ip.protocol;
	return PARSED;
}

static __always_inline enum parsed inner6_parse(struct __sk_buff *skb, struct packet *packet,
						struct ip_end *end)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, packet->inner_l3, &ip, sizeof(ip)) || ip.version != 6)
		return PARSED_OTHER;
	__builtin_memcpy(&packet->tuple.destination, &ip.saddr, sizeof(ip.saddr));
	__builtin_memcpy(&packet->tuple.source, &ip.daddr, sizeof(ip.daddr));
	if (address_is4(&packet->tuple.source) || address_is4(&packet->tuple.destination))
		return PARSED_OTHER;
	end->offset = packet->inner_l3 + sizeof(ip);
	end->protocol = ip.nexthdr;
	if (ipv6_walk(skb, end) != PARSED || end->later_fragment)
		return PARSED_OTHER;
	return PARSED;
}

static __noinline enum parsed icmp_parse(struct __sk_buff *skb, struct packet *packet,
					 struct ip_end *end)
{
	enum parsed parsed;
	__be16 ports[2];
	__u8 type;

	if (bpf_skb_load_bytes(skb, packet->l4, &type, sizeof(type)) ||
	    !icmp_is_error(packet->l4_protocol, type))
		return PARSED_OTHER;
	packet->flags |= PACKET_ICMP_ERROR;
	packet->inner_l3 = packet->l4 + sizeof(struct icmp_header);
	parsed = is_ipv6(packet) ? inner6_parse(skb, packet, end) : inner4_parse(skb, packet, end);
	if (parsed != PARSED)
		return parsed;
	if (end->protocol != IPPROTO_TCP && end->protocol != IPPROTO_UDP &&
	    end->protocol != IPPROTO_SCTP)
		return PARSED_OTHER;
	packet->inner_l4 = end->offset;
	if (!packet_has(packet, packet->inner_l4, QUOTED_BYTES) ||
	    bpf_skb_load_bytes(skb, packet->inner_l4, ports, sizeof(ports)))
		return PARSED_OTHER;
	packet->tuple.protocol = end->protocol;
	packet->tuple.destination_port = port_from_be(ports[0]);
	packet->tuple.source_port = port_from_be(ports[1]);
	return PARSED;
}

static __always_inline __u32 transport_bytes(__u8 protocol)
{
	if (protocol == IPPROTO_TCP)
		return sizeof(struct tcphdr);
	return protocol == IPPROTO_UDP ? sizeof(struct udphdr) : sizeof(struct sctp_start);
}

static __always_inline enum parsed transport_parse(struct __sk_buff *skb, struct packet *packet,
						   struct ip_end *end)
{
	switch (packet->l4_protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		break;
	case IPPROTO_ICMP:
		if (is_ipv6(packet) || end->first_fragment || end->later_fragment)
			return PARSED_OTHER;
		return icmp_parse(skb, packet, end);
	case IPPROTO_ICMPV6:
		if (!is_ipv6(packet) || end->first_fragment || end->later_fragment)
			return PARSED_OTHER;
		return icmp_parse(skb, packet, end);
	default:
		return PARSED_OTHER;
	}
	packet->tuple.protocol = packet->l4_protocol;
	/* Ports of later fragments are those of the first (fragment.h). */
	if (packet->flags & PACKET_LATER_FRAGMENT)
		return PARSED;
	if (!packet_has(packet, packet->l4, transport_bytes(packet->l4_protocol)))
		return PARSED_MALFORMED;
	if (packet->l4_protocol == IPPROTO_TCP)
		return tcp_parse(skb, packet);
	if (packet->l4_protocol == IPPROTO_UDP)
		return udp_parse(skb, packet);
	return sctp_parse(skb, packet);
}

/*
 * Parses the frame, which begins with an Ethernet header at a hook with HOOK_ETHERNET. Frames with a VLAN tag are left to the VLAN
 * device, where they appear without it; the tag of VLAN 0 says a priority only.
 */
__noinline int packet_parse(struct __sk_buff *skb, struct packet *packet, __u32 hook)
{
	struct ip_end end = {};
	enum parsed parsed;

	if (!packet)
		return PARSED_OTHER;
	packet->l3 = hook & HOOK_ETHERNET ? ETH_HLEN : 0;
	if (skb->vlan_present && skb->vlan_tci & VLAN_ID_MASK)
		return PARSED_OTHER;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		parsed = ipv4_parse(skb, packet, &end);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		parsed = ipv6_parse(skb, packet, &end);
	else
		return PARSED_OTHER;
	if (parsed != PARSED)
		return parsed;
	packet->l4 = end.offset;
	packet->l4_protocol = end.protocol;
	packet->fragment_id = end.fragment_id;
	if (end.first_fragment)
		packet->flags |= PACKET_FIRST_FRAGMENT;
	if (end.later_fragment)
		packet->flags |= PACKET_LATER_FRAGMENT;
	if (end.extended)
		packet->flags |= PACKET_EXTENDED;
	return transport_parse(skb, packet, &end);
}

#endif
