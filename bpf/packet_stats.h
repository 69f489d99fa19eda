/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counters of the packet path, per CPU. */
#ifndef SHUNT_PACKET_STATS_H
#define SHUNT_PACKET_STATS_H

#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "stats.h"

/* The packet path's counters are written with softirqs off, where no other program of it can come between. */
static __always_inline void packet_count(__u32 service_id, __u32 bytes, bool reply)
{
	struct packet_stats *stats = bpf_map_lookup_elem(&packet_stats, &service_id);

	if (!stats)
		return;
	if (reply) {
		stats->packets_reply++;
		stats->bytes_reply += bytes;
	} else {
		stats->packets_forward++;
		stats->bytes_forward += bytes;
	}
}

static __noinline int packet_count_flow(__u32 service_id, __u32 bytes)
{
	struct packet_stats *stats = bpf_map_lookup_elem(&packet_stats, &service_id);

	if (!stats)
		return 0;
	stats->flows++;
	stats->packets_forward++;
	stats->bytes_forward += bytes;
	return 0;
}

/* A drop or a refusal counts twice, as in service_count_refusal. */
static __noinline int packet_count_drop(__u32 service_id, enum reason reason, bool rejected)
{
	struct packet_stats *stats;

	drop_count(reason);
	if (!service_id)
		return 0;
	stats = bpf_map_lookup_elem(&packet_stats, &service_id);
	if (!stats)
		return 0;
	if (rejected)
		stats->rejected++;
	else
		stats->dropped++;
	return 0;
}

#endif
