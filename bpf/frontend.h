/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whose is a dialled address: services, then node ports, then ClusterIPs without that port.
 *
 * A function of these headers that loops is not static: the verifier then checks it once, by itself,
 * and not again for each way that leads to a call, which in sum would be more than it is willing to
 * do. The price is that such a function must expect NULL, that its results must be initialised by the
 * caller (before 6.3), and that it returns a number.
 */
#ifndef SHUNT_FRONTEND_H
#define SHUNT_FRONTEND_H

#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "address.h"
#include "maps.h"

enum match {
	/* Not ours: leave it alone. */
	MATCH_NONE = 0,
	MATCH_SERVICE = 1,
	/* A ClusterIP, and none of its ports: refuse. */
	MATCH_UNDEFINED_PORT = 2,
	/* The element changed under the program in each attempt. */
	MATCH_UNSETTLED = 3,
};

enum frontend_limit {
	READ_ATTEMPTS = 3,
};

/* The fold of a key that its value repeats; Frontend.Check in pkg/maps computes the same. */
static __always_inline __u32 frontend_check(const struct frontend *frontend)
{
	const __u32 golden = 0x9e3779b1; /* 2^32 divided by the golden ratio, odd */
	__u32 hash = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = (hash ^ address_word(&frontend->address, i)) * golden;
	hash = (hash ^ (frontend->port | (__u32)frontend->protocol << 16)) * golden;
	return hash ^ hash >> 15;
}

/*
 * Copies a map value that may change meanwhile, word by word: a word is never torn, and the
 * compiler may neither reorder nor repeat the loads. True when the first word was the same before
 * and after.
 */
static __always_inline bool words_copy(void *to, const void *from, int words)
{
	const volatile __u64 *source = from;
	__u64 *copy = to;

#pragma unroll
	for (int i = 0; i < words; i++)
		copy[i] = source[i];
	return source[0] == copy[0];
}

/*
 * Copies the service under a key. A copy, checked, because the kernel gives the memory of a
 * replaced or deleted hash element to the next update at once, without waiting for programs that
 * still hold its pointer: they may find the value of another frontend there, or one half written.
 * The first word names the service and, folded, the key: if it is right before and after the copy,
 * the copy is this frontend's. What remains is that the same frontend is written twice in that
 * moment; the run is one word, and a backend is used only if its own first word names the same
 * service (select.h), so even then no foreign backend is reached.
 */
__noinline enum match service_read(const struct frontend *frontend, struct service *copy)
{
	struct frontend key;
	__u32 check;

	if (!frontend || !copy)
		return MATCH_NONE;
	/* On the stack: before 6.4 the verifier takes no argument of a global function for a key. */
	key = *frontend;
	check = frontend_check(&key);
	for (int i = 0; i < READ_ATTEMPTS; i++) {
		const struct service *value = bpf_map_lookup_elem(&services, &key);

		if (!value)
			return MATCH_NONE;
		if (words_copy(copy, value, sizeof(*copy) / sizeof(__u64)) &&
		    copy->frontend_check == check)
			return MATCH_SERVICE;
	}
	return MATCH_UNSETTLED;
}

static __noinline __u32 address_flags(const struct address *address)
{
	struct address key = *address; /* as in service_read */
	const volatile __u32 *flags = bpf_map_lookup_elem(&addresses, &key);

	return flags ? *flags : 0;
}

/*
 * Reads twice if need be. A reader that walks a hash bucket while an element of it is replaced can
 * miss both the old (unlinked) and the new one (put in front of it); an absence that would have
 * consequences is therefore confirmed.
 */
static __noinline enum match service_read_again(const struct frontend *frontend,
						struct service *copy)
{
	enum match match = service_read(frontend, copy);

	return match == MATCH_NONE ? service_read(frontend, copy) : match;
}

static __noinline enum match node_port_match(const struct frontend *dialled,
					     struct service *service)
{
	struct frontend frontend = {.port = dialled->port, .protocol = dialled->protocol};

	address_set_unspecified(&frontend.address, &dialled->address);
	return service_read_again(&frontend, service);
}

/*
 * Finds what was dialled. loopback tells whether node ports are served on loopback and unspecified
 * addresses, which is so for the node's own sockets alone. A hit on an exact frontend is one
 * lookup, a miss two; a dial of one of this node's own addresses up to four.
 */
__noinline enum match frontend_match(const struct frontend *dialled, bool loopback,
				     struct service *service)
{
	enum match match;
	__u32 flags;

	if (!dialled || !service)
		return MATCH_NONE;

	/* Before the exact lookup: a node port's own key must not be found by a pod that dials
	 * 0.0.0.0. */
	if (address_is_loopback(&dialled->address) || address_is_unspecified(&dialled->address))
		return loopback ? node_port_match(dialled, service) : MATCH_NONE;

	match = service_read(dialled, service);
	if (match != MATCH_NONE)
		return match;
	flags = address_flags(&dialled->address);
	if (flags & (ADDRESS_CLUSTER_IP | ADDRESS_SERVICE)) {
		match = service_read(dialled, service);
		if (match != MATCH_NONE)
			return match;
	}
	if (flags & ADDRESS_NODE_PORTS) {
		match = node_port_match(dialled, service);
		if (match != MATCH_NONE)
			return match;
	}
	/* An address on one of the node's devices has listeners of its own (a node-local DNS
	 * cache). */
	if ((flags & (ADDRESS_CLUSTER_IP | ADDRESS_ON_NODE)) == ADDRESS_CLUSTER_IP &&
	    address_flags(&dialled->address) == flags)
		return MATCH_UNDEFINED_PORT;
	return MATCH_NONE;
}

/* Whether the client may use a frontend that has SERVICE_SOURCE_RANGES. */
static __noinline bool source_range_allows(__u32 service_id, const struct address *client)
{
	struct source_range key = {
		.prefix_bits = 8 * (sizeof(key.service_id) + sizeof(key.address)),
		.service_id = service_id,
		.address = *client,
	};

	return bpf_map_lookup_elem(&source_ranges, &key);
}

#endif
