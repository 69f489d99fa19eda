/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flows of the packet path. A flow has two elements, one for each direction's tuple, and is found from both or
 * from neither: they are made together, removed together, and one that has lost its other half makes it again.
 */
#ifndef SHUNT_CONNTRACK_H
#define SHUNT_CONNTRACK_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "frontend.h"
#include "maps.h"
#include "packet.h"
#include "packet_stats.h"

enum conntrack_limit {
	/* Cells of conntrack_ring that a new flow tries. */
	RING_ATTEMPTS = 16,
	ERROR_EXISTS = 17, /* EEXIST */
};

/* A flow in progress looks at its other half this often only. */
#define CONNTRACK_FRESH_NS 1000000000ULL

/* The next cell of conntrack_ring. */
static __u32 conntrack_cursor;

static __always_inline const struct packet_settings *packet_settings_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&packet_settings, &zero);
}

static __always_inline struct flow_draft *flow_draft_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&flow_draft, &zero);
}

static __always_inline __u32 conntrack_fold(const struct conntrack_key *key)
{
	const __u32 golden = 0x9e3779b1;
	__u32 hash = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = (hash ^ address_word(&key->source, i)) * golden;
#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = (hash ^ address_word(&key->destination, i)) * golden;
	hash = (hash ^ (key->source_port | (__u32)key->destination_port << 16)) * golden;
	hash = (hash ^ key->protocol) * golden;
	return hash ^ hash >> 15;
}

static __always_inline __u64 conntrack_check(const struct conntrack_key *key, __u64 created_ns)
{
	return (__u64)conntrack_fold(key) << 32 | (__u32)created_ns;
}

/* The tuple of the other direction: what this one becomes, turned round. */
static __always_inline void conntrack_other(struct conntrack_key *other,
					    const struct conntrack_key *key,
					    const struct translation *to)
{
	/* Member by member: a compound literal would be built on the stack first. */
	other->source = to->destination;
	other->destination = to->source;
	other->source_port = to->destination_port;
	other->destination_port = to->source_port;
	other->protocol = key->protocol;
	__builtin_memset(other->pad, 0, sizeof(other->pad));
}

/*
 * Copies what the element under a key translates to, if it is the key's own: an element's memory is given to the next
 * one at once when it is removed, as frontend.h explains. Returns the element, for its times and counters; these may
 * be another flow's by then, which costs that flow a wrong count and nothing else.
 */
static __always_inline struct conntrack_value *conntrack_find(const struct conntrack_key *key,
							      struct translation *to)
{
	struct conntrack_value *value = bpf_map_lookup_elem(&conntrack, key);

	if (!value || !words_copy(to, value, sizeof(*to) / sizeof(__u64)) ||
	    to->check >> 32 != conntrack_fold(key))
		return NULL;
	return value;
}

static __always_inline __u64 age_ns(__u64 now_ns, __u64 then_ns)
{
	return now_ns > then_ns ? now_ns - then_ns : 0;
}

/* Times of both directions, as far as they are there. */
struct flow_age {
	__u64 last_seen_ns;
	__u8 seen_any;
	__u8 seen_both;
	bool replied;
	bool confirmed; /* the client went on after the answer */
};

static __always_inline void flow_age_of(struct flow_age *age, const struct conntrack_value *one,
					const struct conntrack_value *other)
{
	const struct conntrack_value *forward = one->to.flags & CONNTRACK_REPLY ? other : one;
	__u8 seen = one->seen, other_seen = other ? other->seen : 0;

	age->last_seen_ns = one->last_seen_ns;
	age->replied = one->last_seen_ns && other && other->last_seen_ns;
	if (other && other->last_seen_ns > age->last_seen_ns)
		age->last_seen_ns = other->last_seen_ns;
	age->seen_any = seen | other_seen;
	age->seen_both = seen & other_seen;
	age->confirmed = age->replied && forward && forward->seen & CONNTRACK_SEEN_DATA;
}

static __always_inline __u64 flow_timeout_ns(const struct packet_settings *settings, __u8 protocol,
					     const struct flow_age *age)
{
	if (protocol == IPPROTO_UDP)
		return age->replied ? settings->udp_replied_ns : settings->udp_unreplied_ns;
	if (age->seen_any & CONNTRACK_SEEN_RESET)
		return settings->reset_ns;
	if (age->seen_both & CONNTRACK_SEEN_FIN)
		return settings->tcp_closing_ns;
	if (!age->confirmed)
		return settings->tcp_syn_ns;
	if (protocol == IPPROTO_SCTP)
		return settings->sctp_established_ns;
	if (age->seen_any & CONNTRACK_SEEN_FIN)
		return settings->tcp_close_wait_ns;
	return settings->tcp_established_ns;
}

enum conntrack_state {
	CONNTRACK_ENDED = 0,
	/* It may give way to a new flow when the table is full, or to a new one with the same tuple. */
	CONNTRACK_WEAK = 1,
	CONNTRACK_LIVE = 2,
};

static __noinline enum conntrack_state conntrack_state_of(const struct conntrack_key *key,
							  const struct conntrack_value *one,
							  const struct conntrack_value *other,
							  __u64 now_ns)
{
	const struct packet_settings *settings = packet_settings_get();
	struct flow_age age;

	if (!settings)
		return CONNTRACK_ENDED;
	flow_age_of(&age, one, other);
	if (age_ns(now_ns, age.last_seen_ns) >= flow_timeout_ns(settings, key->protocol, &age))
		return CONNTRACK_ENDED;
	if (!age.replied || age.seen_any & CONNTRACK_SEEN_RESET ||
	    age.seen_both & CONNTRACK_SEEN_FIN)
		return CONNTRACK_WEAK;
	return CONNTRACK_LIVE;
}

/*
 * Makes the other half of an element, whose tuple conntrack_judge has left in the draft: a key cannot be an argument of
 * a global function, says Linux 6.1.
 */
__noinline int conntrack_heal(const struct conntrack_key *key, const struct translation *to)
{
	struct flow_draft *draft = flow_draft_get();
	struct conntrack_value *value;

	if (!draft || !key || !to)
		return -1;
	value = &draft->healed;
	__builtin_memset(value, 0, sizeof(*value));
	value->created_ns = bpf_ktime_get_coarse_ns();
	value->to.source = key->destination;
	value->to.destination = key->source;
	value->to.source_port = key->destination_port;
	value->to.destination_port = key->source_port;
	value->to.flags = to->flags ^ CONNTRACK_REPLY;
	value->to.service_id = to->service_id;
	value->to.backend_id = to->backend_id;
	value->to.check = conntrack_check(&draft->judged, value->created_ns);
	value->last_seen_ns = value->created_ns;
	if (to->flags & CONNTRACK_REPLY || key->protocol == IPPROTO_UDP)
		value->seen = CONNTRACK_SEEN_DATA;
	return bpf_map_update_elem(&conntrack, &draft->judged, value, BPF_NOEXIST);
}

/* Whether other is the other half of the element under key, and not another flow's. */
static __always_inline bool is_other_half(const struct conntrack_value *other,
					  const struct conntrack_key *key)
{
	return other->to.source_port == key->destination_port &&
	       other->to.destination_port == key->source_port &&
	       address_equal(&other->to.source, &key->destination) &&
	       address_equal(&other->to.destination, &key->source);
}

/* Removes both halves. The second only if it is this flow's: it may have lost its own and be another's by now. */
static __noinline int conntrack_remove(const struct conntrack_key *key,
				       const struct translation *to)
{
	struct conntrack_value *other;
	struct conntrack_key other_key;

	conntrack_other(&other_key, key, to);
	other = bpf_map_lookup_elem(&conntrack, &other_key);
	if (other && is_other_half(other, key))
		bpf_map_delete_elem(&conntrack, &other_key);
	bpf_map_delete_elem(&conntrack, key);
	return 0;
}

/* How a flow stands by both its halves. A live flow that lacks one gets it again. */
__noinline int conntrack_judge(const struct conntrack_key *key, struct conntrack_value *value,
			       const struct translation *to, __u64 now_ns)
{
	struct flow_draft *draft = flow_draft_get();
	struct conntrack_value *other;
	enum conntrack_state state;

	if (!draft || !key || !value || !to)
		return CONNTRACK_ENDED;
	conntrack_other(&draft->judged, key, to);
	other = bpf_map_lookup_elem(&conntrack, &draft->judged);
	if (other && !is_other_half(other, key))
		return CONNTRACK_ENDED;
	state = conntrack_state_of(key, value, other, now_ns);
	if (state != CONNTRACK_ENDED && !other && !conntrack_heal(key, to))
		drop_count(REASON_CONNTRACK_HEALED);
	return state;
}

/*
 * Whether the flow of a packet is in force; if not, removes it. Looks at the flow's other half only when it was idle
 * for CONNTRACK_FRESH_NS.
 */
static __always_inline bool conntrack_alive(const struct packet *packet,
					    struct conntrack_value *value,
					    const struct translation *to)
{
	__u64 now_ns = bpf_ktime_get_coarse_ns();

	if (age_ns(now_ns, value->last_seen_ns) < CONNTRACK_FRESH_NS ||
	    conntrack_judge(&packet->tuple, value, to, now_ns) != CONNTRACK_ENDED)
		return true;
	conntrack_remove(&packet->tuple, to);
	return false;
}

/* Notes a packet that is translated. An ICMP error says nothing about the flow's own packets. */
static __always_inline void conntrack_note(struct conntrack_value *value,
					   const struct packet *packet,
					   const struct translation *to)
{
	if (packet->flags & PACKET_ICMP_ERROR)
		return;
	value->last_seen_ns = bpf_ktime_get_coarse_ns();
	value->packets++;
	value->bytes += packet->length;
	if (packet->seen & ~value->seen)
		value->seen |= packet->seen;
	packet_count(to->service_id, packet->length, to->flags & CONNTRACK_REPLY);
}

/* Frees the cell if its flow has ended; true: it is free. */
static __always_inline bool ring_cell_free(struct flow_draft *draft,
					   const struct conntrack_key *cell, bool *weak)
{
	struct conntrack_value *value;
	enum conntrack_state state;

	*weak = false;
	draft->other = *cell;
	if (!draft->other.protocol)
		return true;
	value = conntrack_find(&draft->other, &draft->other_to);
	if (!value)
		return true;
	state = conntrack_judge(&draft->other, value, &draft->other_to, draft->now_ns);
	if (state == CONNTRACK_ENDED) {
		conntrack_remove(&draft->other, &draft->other_to);
		return true;
	}
	*weak = state == CONNTRACK_WEAK;
	return false;
}

static long ring_try(__u32 attempt, void *unused)
{
	const struct packet_settings *settings = packet_settings_get();
	struct flow_draft *draft = flow_draft_get();
	struct conntrack_key *cell;
	__u32 index;
	bool weak;

	(void)attempt;
	(void)unused;
	if (!settings || !draft || !settings->flow_capacity)
		return 1;
	index = __sync_fetch_and_add(&conntrack_cursor, 1) % settings->flow_capacity;
	cell = bpf_map_lookup_elem(&conntrack_ring, &index);
	if (!cell)
		return 1;
	draft->cell = index;
	if (ring_cell_free(draft, cell, &weak)) {
		draft->cell_found = true;
		return 1;
	}
	if (weak && !draft->weak_found) {
		draft->weak_found = true;
		draft->weak_cell = index;
	}
	return 0;
}

static __always_inline void ring_evict(struct flow_draft *draft, const struct conntrack_key *cell)
{
	draft->other = *cell;
	if (conntrack_find(&draft->other, &draft->other_to))
		conntrack_remove(&draft->other, &draft->other_to);
	drop_count(REASON_CONNTRACK_REPLACED);
}

/*
 * Makes room for a new flow: takes the next cell of the ring whose flow has ended, else that of a half-open, closing
 * or one-way flow. Returns nonzero when there is neither: the table is full of flows in use.
 */
static __always_inline int conntrack_admit(struct flow_draft *draft)
{
	struct conntrack_key *cell;

	bpf_loop(RING_ATTEMPTS, ring_try, NULL, 0);
	if (!draft->cell_found && !draft->weak_found)
		return -1;
	cell = bpf_map_lookup_elem(&conntrack_ring,
				   draft->cell_found ? &draft->cell : &draft->weak_cell);
	if (!cell)
		return -1;
	if (!draft->cell_found)
		ring_evict(draft, cell);
	*cell = draft->forward;
	return 0;
}

#endif
