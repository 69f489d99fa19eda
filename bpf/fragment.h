/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Later fragments follow the first: it has the ports. */
#ifndef SHUNT_FRAGMENT_H
#define SHUNT_FRAGMENT_H

#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "packet.h"

enum fragment_limit {
	/* How often the later fragments of a datagram that come before the first are put off. */
	FRAGMENT_WAITS = 128,
};

/* As long as the kernel waits for the rest of a datagram. Then its id may be another datagram's. */
#define FRAGMENT_TIMEOUT_NS 30000000000ULL

static __always_inline void fragment_key_of(struct fragment_key *key, const struct packet *packet)
{
	*key = (struct fragment_key){
		.source = packet->tuple.source,
		.destination = packet->tuple.destination,
		.id = packet->fragment_id,
		.protocol = packet->tuple.protocol,
	};
}

static __noinline int fragment_remember(const struct packet *packet)
{
	struct fragment_value value = {
		.time_ns = bpf_ktime_get_coarse_ns(),
		.source_port = packet->tuple.source_port,
		.destination_port = packet->tuple.destination_port,
		.known = 1,
	};
	struct fragment_key key;

	fragment_key_of(&key, packet);
	return bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
}

enum fragment_recalled {
	FRAGMENT_KNOWN = 0,
	FRAGMENT_WAIT = 1,
	FRAGMENT_LOST = 2,
};

/* Completes the tuple of a later fragment. If the first one is still to come, says whether to wait for it. */
static __noinline enum fragment_recalled fragment_recall(struct packet *packet)
{
	struct fragment_value begin = {.time_ns = bpf_ktime_get_coarse_ns(), .waits = 1};
	struct fragment_value *value;
	struct fragment_key key;

	fragment_key_of(&key, packet);
	value = bpf_map_lookup_elem(&fragments, &key);
	if (!value || value->time_ns + FRAGMENT_TIMEOUT_NS < begin.time_ns) {
		bpf_map_update_elem(&fragments, &key, &begin, BPF_ANY);
		return FRAGMENT_WAIT;
	}
	if (!value->known)
		return ++value->waits <= FRAGMENT_WAITS ? FRAGMENT_WAIT : FRAGMENT_LOST;
	packet->tuple.source_port = value->source_port;
	packet->tuple.destination_port = value->destination_port;
	return FRAGMENT_KNOWN;
}

#endif
