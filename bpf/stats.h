/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counters, per CPU. */
#ifndef SHUNT_STATS_H
#define SHUNT_STATS_H

#include <bpf/bpf_helpers.h>

#include "maps.h"

/*
 * Socket programs can be preempted by another one on the same CPU (only migration is off), which
 * would lose a plain increment; an atomic one costs little, because the line belongs to this CPU.
 */
static __always_inline void counter_add(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

static __noinline int drop_count(enum reason reason)
{
	__u32 index = reason;
	__u64 *count = bpf_map_lookup_elem(&drops, &index);

	if (count)
		counter_add(count);
	return 0;
}

static __noinline int service_count_connection(__u32 service_id)
{
	struct service_stats *stats = bpf_map_lookup_elem(&service_stats, &service_id);

	if (stats)
		counter_add(&stats->connections);
	return 0;
}

/* A refusal counts twice: for its reason, and for its service (id 0: none). */
static __noinline int service_count_refusal(__u32 service_id, enum reason reason)
{
	struct service_stats *stats;

	drop_count(reason);
	if (!service_id)
		return 0;
	stats = bpf_map_lookup_elem(&service_stats, &service_id);
	if (!stats)
		return 0;
	counter_add(&stats->refused);
	if (reason == REASON_NO_BACKEND || reason == REASON_LOCAL_POLICY_DROP)
		counter_add(&stats->no_backend);
	return 0;
}

#endif
