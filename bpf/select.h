/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which backend of a service a new flow gets. */
#ifndef SHUNT_SELECT_H
#define SHUNT_SELECT_H

#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "frontend.h"
#include "maps.h"

enum select_limit {
	SELECT_ATTEMPTS = 4,
};

/* What one kind of client is given: a run, the set that it is, and the answer when it is empty. */
struct target {
	struct run run;
	__u32 set; /* BACKEND_CLUSTER or BACKEND_LOCAL */
	__u32 empty; /* enum reason */
};

static __always_inline struct target target_internal(const struct service *service)
{
	return (struct target){
		.run = service->internal,
		.set = service->flags & SERVICE_INTERNAL_LOCAL ? BACKEND_LOCAL : BACKEND_CLUSTER,
		.empty = service->flags & SERVICE_INTERNAL_DROP ? REASON_LOCAL_POLICY_DROP
								: REASON_NO_BACKEND,
	};
}

static __always_inline struct target target_external(const struct service *service)
{
	return (struct target){
		.run = service->external,
		.set = service->flags & SERVICE_EXTERNAL_LOCAL ? BACKEND_LOCAL : BACKEND_CLUSTER,
		.empty = service->flags & SERVICE_EXTERNAL_DROP ? REASON_LOCAL_POLICY_DROP
								: REASON_NO_BACKEND,
	};
}

/*
 * Copies a backend, if it still exists and is the service's; checked like service_read. Looks twice
 * for the reason given at service_read_again: a backend whose flags are being replaced has not
 * gone.
 */
__noinline bool backend_read(__u32 backend_id, __u32 service_id, struct backend *copy)
{
	if (!copy)
		return false;
	for (int i = 0; i < READ_ATTEMPTS - 1; i++) {
		const struct backend *value = bpf_map_lookup_elem(&backends, &backend_id);

		if (value && words_copy(copy, value, sizeof(*copy) / sizeof(__u64)) &&
		    copy->backend_id == backend_id)
			return copy->service_id == service_id;
	}
	return false;
}

/*
 * Copies a backend that something remembers, if it is still eligible: exists, is the service's, and
 * is in the set that the client is given now.
 */
static __noinline bool backend_recall(__u32 backend_id, __u32 service_id, __u32 set,
				      struct backend *copy)
{
	return backend_read(backend_id, service_id, copy) && copy->flags & set;
}

/*
 * Takes one of the run at random. The cells after it are tried when the backend has just gone: the
 * run is then being replaced, and the caller has read the old one. The modulo's bias is below count
 * / 2^32.
 */
__noinline bool backend_select(__u32 service_id, const struct run *run, struct backend *backend)
{
	__u32 first = bpf_get_prandom_u32();
	__u32 count;

	if (!run || !backend || !run->count)
		return false;
	count = run->count;
	for (__u32 i = 0; i < SELECT_ATTEMPTS; i++) {
		__u32 index = run->base + (first + i) % count;
		const __u32 *backend_id = bpf_map_lookup_elem(&slots, &index);

		if (backend_id && backend_read(*backend_id, service_id, backend))
			return true;
	}
	return false;
}

#endif
