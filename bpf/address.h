/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* 128-bit addresses and port byte order: the only place that swaps bytes. */
#ifndef SHUNT_ADDRESS_H
#define SHUNT_ADDRESS_H

#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "types.h"

/* Word i of an address, in network order. */
static __always_inline __u32 address_word(const struct address *address, int i)
{
	return ((const __u32 *)address->bytes)[i];
}

static __always_inline void address_set(struct address *address, __u32 w0, __u32 w1, __u32 w2,
					__u32 w3)
{
	__u32 *words = (__u32 *)address->bytes;

	words[0] = w0;
	words[1] = w1;
	words[2] = w2;
	words[3] = w3;
}

/* addr4 is in network order, as everywhere in the kernel. */
static __always_inline void address_set4(struct address *address, __u32 addr4)
{
	address_set(address, 0, 0, bpf_htonl(0xffff), addr4);
}

static __always_inline bool address_is4(const struct address *address)
{
	return !address_word(address, 0) && !address_word(address, 1) &&
	       address_word(address, 2) == bpf_htonl(0xffff);
}

static __always_inline bool address_equal(const struct address *a, const struct address *b)
{
	return address_word(a, 0) == address_word(b, 0) &&
	       address_word(a, 1) == address_word(b, 1) &&
	       address_word(a, 2) == address_word(b, 2) && address_word(a, 3) == address_word(b, 3);
}

/* No address at all: neither ::, which a socket may be bound to, nor an unknown client's is one. */
static __always_inline bool address_is_zero(const struct address *address)
{
	return !(address_word(address, 0) | address_word(address, 1) | address_word(address, 2) |
		 address_word(address, 3));
}

/* :: or 0.0.0.0. */
static __always_inline bool address_is_unspecified(const struct address *address)
{
	return !address_word(address, 3) && (address_is4(address) || address_is_zero(address));
}

static __always_inline bool addr4_is_loopback(__u32 addr4)
{
	return (addr4 & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

/* ::1 or 127.0.0.0/8. */
static __always_inline bool address_is_loopback(const struct address *address)
{
	if (address_is4(address))
		return addr4_is_loopback(address_word(address, 3));
	return !address_word(address, 0) && !address_word(address, 1) &&
	       !address_word(address, 2) && address_word(address, 3) == bpf_htonl(1);
}

/* The unspecified address of the family of the other one: where node ports stand. */
static __always_inline void address_set_unspecified(struct address *address,
						    const struct address *family_of)
{
	if (address_is4(family_of))
		address_set4(address, 0);
	else
		address_set(address, 0, 0, 0, 0);
}

/* A dial of the unspecified address is one of loopback: so the kernel takes it, and shows it. */
static __always_inline void address_resolve_unspecified(struct address *address)
{
	if (!address_is_unspecified(address))
		return;
	if (address_is4(address))
		address_set4(address, bpf_htonl(0x7f000001));
	else
		address_set(address, 0, 0, 0, bpf_htonl(1));
}

static __always_inline __u16 port_from_be(__u32 port_be)
{
	return bpf_ntohs((__u16)port_be);
}

static __always_inline __u16 port_to_be(__u16 port)
{
	return bpf_htons(port);
}

#endif
