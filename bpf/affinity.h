/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Session affinity: find, check, refresh. One binding for each client and service port, whatever
 * the frontend. */
#ifndef SHUNT_AFFINITY_H
#define SHUNT_AFFINITY_H

#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "address.h"
#include "maps.h"
#include "select.h"

enum {
	NS_PER_S = 1000000000,
};

/*
 * Who dials, for affinity and source ranges: an address when it is known, else a network namespace.
 * The packet path fills in the source address of the packet and no cookie, so that a pod is the
 * same client on both paths.
 */
struct client {
	struct address address;
	__u64 netns_cookie;
};

static __always_inline void affinity_key_of(struct affinity_key *key, __u32 service_id,
					    const struct client *client)
{
	*key = (struct affinity_key){
		.client = client->address,
		.netns_cookie = client->netns_cookie,
		.service_id = service_id,
	};
}

/*
 * Finds the backend that the client is bound to, if the binding is in force and the backend
 * eligible, and renews the binding. It is renewed in place: replacing the element could hide it
 * from a concurrent connect of the same client for a moment (see service_read_again). An element
 * that the LRU has just given to another client would be renewed instead, which only lets that
 * binding live a little longer.
 */
static __noinline bool affinity_find(const struct affinity_key *key, __u32 timeout_s, __u32 set,
				     struct backend *backend)
{
	struct affinity_value *value = bpf_map_lookup_elem(&affinity, key);
	__u64 now = bpf_ktime_get_ns();

	if (!value || value->last_used_ns + (__u64)timeout_s * NS_PER_S <= now)
		return false;
	if (!backend_recall(value->backend_id, key->service_id, set, backend))
		return false;
	value->last_used_ns = now;
	return true;
}

static __always_inline void affinity_bind(const struct affinity_key *key, __u32 backend_id)
{
	struct affinity_value value = {.last_used_ns = bpf_ktime_get_ns(),
				       .backend_id = backend_id};

	bpf_map_update_elem(&affinity, key, &value, BPF_ANY);
}

/* Selects a backend of the target for the client, by affinity where the service has it. */
__noinline bool backend_choose(const struct service *service, const struct target *target,
			       const struct client *client, struct backend *backend)
{
	struct affinity_key key;

	if (!service || !target || !client || !backend)
		return false;

	/* An empty set has no binding in force: nothing in it can be eligible. */
	if (!service->affinity_timeout_s || !target->run.count)
		return backend_select(service->service_id, &target->run, backend);
	affinity_key_of(&key, service->service_id, client);
	if (affinity_find(&key, service->affinity_timeout_s, target->set, backend))
		return true;
	if (!backend_select(service->service_id, &target->run, backend))
		return false;
	affinity_bind(&key, backend->backend_id);
	return true;
}

#endif
