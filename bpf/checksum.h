/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Checksums, brought up to date from what has changed. */
#ifndef SHUNT_CHECKSUM_H
#define SHUNT_CHECKSUM_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_helpers.h>

#include "packet.h"

enum checksum_limit {
	CRC32C_POLYNOMIAL = 0x82f63b78, /* bits reversed: the highest is x^0 */
	CRC32C_ONE = 0x80000000,
	CRC32C_POWERS = 16,
};

/* x^(8 * 2^k) modulo the polynomial: multiplying by it appends 2^k zero bytes. */
static const __u32 crc32c_powers[CRC32C_POWERS] = {
	0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a,
	0xb82be955, 0xb8fdb1e7, 0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a,
	0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
};

/* Product of two polynomials. Global, so that the verifier walks the loop once; without branches for the same. */
__noinline __u32 crc32c_multiply(__u32 a, __u32 b)
{
	__u32 product = 0;

	for (int i = 0; i < 32; i++) {
		product ^= b & -(a >> 31);
		a <<= 1;
		b = b >> 1 ^ (CRC32C_POLYNOMIAL & -(b & 1));
	}
	return product;
}

/*
 * How the CRC32c of length bytes changes when the first four change by difference (their exclusive or, loaded little
 * endian). The CRC is linear: it changes by the CRC of the difference followed by zeros, that is by difference times
 * x^(8 * length).
 */
static __always_inline __u32 crc32c_change(__u32 difference, __u32 length)
{
	__u32 change = difference;

	for (int k = 0; k < CRC32C_POWERS; k++) {
		if (length >> k & 1)
			change = crc32c_multiply(change, crc32c_powers[k]);
	}
	return change;
}

/* Where the transport checksum stands behind the transport header's beginning; 0: it has none that is a sum. */
static __always_inline __u32 checksum_offset(__u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
		return offsetof(struct tcphdr, check);
	case IPPROTO_UDP:
		return offsetof(struct udphdr, check);
	case IPPROTO_ICMPV6:
		return offsetof(struct icmp6hdr, icmp6_cksum);
	}
	return 0;
}

static __always_inline __u16 sum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

#endif
