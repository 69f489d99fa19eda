/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Later fragments follow the first: it has the ports. Those that come before it are held back, a few of each datagram,
 * and received again when it has come.
 *
 * The first and the later ones may be on different CPUs at once, as a device spreads them by different hashes. Who
 * holds one back counts it, stores it, and then looks again whether the first has come; who has the first says so,
 * and then reads the count. So one of them, or both, sees to each; twice is no harm.
 */
#ifndef SHUNT_FRAGMENT_H
#define SHUNT_FRAGMENT_H

#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "packet.h"
#include "packet_stats.h"

/* Soon its id may be another datagram's. */
#define FRAGMENT_TIMEOUT_NS 2000000000ULL

static __always_inline void fragment_key_of(struct fragment_key *key, const struct packet *packet)
{
	key->source = packet->tuple.source;
	key->destination = packet->tuple.destination;
	key->id = packet->fragment_id;
	key->protocol = packet->tuple.protocol;
	__builtin_memset(key->pad, 0, sizeof(key->pad));
}

/* What is known of a datagram, if it is not too long ago. */
static __always_inline struct fragment_value *fragment_find(const struct fragment_key *key,
							    __u64 now_ns)
{
	struct fragment_value *value = bpf_map_lookup_elem(&fragments, key);

	return value && value->time_ns + FRAGMENT_TIMEOUT_NS >= now_ns ? value : NULL;
}

/* Remembers the ports of a first fragment; returns how many later ones are held back. */
static __noinline __u32 fragment_remember(const struct packet *packet)
{
	struct fragment_value value = {
		.time_ns = bpf_ktime_get_coarse_ns(),
		.source_port = packet->tuple.source_port,
		.destination_port = packet->tuple.destination_port,
		.known = 1,
	};
	struct fragment_value *waiting;
	struct fragment_key key;

	fragment_key_of(&key, packet);
	waiting = fragment_find(&key, value.time_ns);
	if (!waiting || waiting->known) {
		bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
		return 0;
	}
	waiting->source_port = value.source_port;
	waiting->destination_port = value.destination_port;
	__sync_fetch_and_add(&waiting->known, 1);
	return waiting->held;
}

/* Completes the tuple of a later fragment, if the first one has been seen. */
static __noinline bool fragment_recall(struct packet *packet)
{
	struct fragment_value *value;
	struct fragment_key key;

	fragment_key_of(&key, packet);
	value = fragment_find(&key, bpf_ktime_get_coarse_ns());
	if (!value || !value->known)
		return false;
	packet->tuple.source_port = value->source_port;
	packet->tuple.destination_port = value->destination_port;
	return true;
}

/* Copies a frame; false if it is too long. */
static __noinline bool frame_save(struct __sk_buff *skb, struct held_fragment *to)
{
	__u32 length = skb->len;

	if (!length || length > sizeof(to->frame))
		return false;
	to->length = length;
	/* Verifiers before 6.14 forget that it is not zero. */
	asm volatile("" : "+r"(length));
	length = ((length - 1) & 2047) + 1;
	if (length > sizeof(to->frame))
		return false;
	return !bpf_skb_load_bytes(skb, 0, to->frame, length);
}

/*
 * Makes a packet into a frame that was saved. Its Ethernet header, of which no sum of the kernel's knows, and the rest
 * are stored one after the other.
 */
static __noinline bool frame_restore(struct __sk_buff *skb, const struct held_fragment *from,
				     __u32 l3)
{
	__u32 length = from->length;

	if (length <= ETH_HLEN || length > sizeof(from->frame))
		return false;
	if (skb->len != length && bpf_skb_change_tail(skb, length, 0))
		return false;
	if (l3 && bpf_skb_store_bytes(skb, 0, from->frame, ETH_HLEN, 0))
		return false;
	if (l3)
		length -= ETH_HLEN;
	asm volatile("" : "+r"(length));
	length = ((length - 1) & 2047) + 1;
	if (length > sizeof(from->frame) - ETH_HLEN)
		return false;
	if (l3)
		return !bpf_skb_store_bytes(skb, ETH_HLEN, from->frame + ETH_HLEN, length,
					    BPF_F_RECOMPUTE_CSUM);
	return !bpf_skb_store_bytes(skb, 0, from->frame, length, BPF_F_RECOMPUTE_CSUM);
}

static __always_inline struct held_fragment *frame_draft_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&frame_draft, &zero);
}

/* Finds or begins what is known of a datagram whose first fragment has not come. */
static __always_inline struct fragment_value *fragment_await(const struct fragment_key *key)
{
	struct fragment_value begin = {.time_ns = bpf_ktime_get_coarse_ns()};
	struct fragment_value *value = fragment_find(key, begin.time_ns);

	if (value)
		return value;
	/* Over one that is too old; but not over one that another CPU has just made. */
	if (bpf_map_lookup_elem(&fragments, key))
		bpf_map_delete_elem(&fragments, key);
	bpf_map_update_elem(&fragments, key, &begin, BPF_NOEXIST);
	return bpf_map_lookup_elem(&fragments, key);
}

/*
 * Holds a later fragment back. False: it is not held, because there is no room, or because the first one has come
 * meanwhile.
 */
__noinline int fragment_hold(struct __sk_buff *skb, const struct packet *packet)
{
	struct held_fragment *draft = frame_draft_get();
	struct fragment_value *value;
	struct held_key key = {};

	if (!packet || !draft || !frame_save(skb, draft))
		return false;
	fragment_key_of(&key.datagram, packet);
	value = fragment_await(&key.datagram);
	if (!value || value->known || value->held >= HELD_FRAGMENTS)
		return false;
	key.number = __sync_fetch_and_add(&value->held, 1);
	if (bpf_map_update_elem(&held_fragments, &key, draft, BPF_ANY))
		return false;
	if (*(volatile __u32 *)&value->known && !bpf_map_delete_elem(&held_fragments, &key))
		return false;
	drop_count(REASON_FRAGMENT_HELD);
	return true;
}

struct fragment_release {
	struct __sk_buff *skb;
	struct held_key key;
	__u32 l3;
};

static long fragment_release_one(__u32 number, struct fragment_release *release)
{
	struct held_key key = release->key;
	struct held_fragment *held;

	key.number = number;
	held = bpf_map_lookup_elem(&held_fragments, &key);
	if (!held)
		return 0;
	if (frame_restore(release->skb, held, release->l3) &&
	    !bpf_clone_redirect(release->skb, release->skb->ifindex, BPF_F_INGRESS))
		drop_count(REASON_FRAGMENT_RELEASED);
	bpf_map_delete_elem(&held_fragments, &key);
	return 0;
}

/*
 * Receives the fragments that were held back, after this first one: it takes their form one after the other to be
 * cloned, and its own again. False: it could not.
 */
__noinline int fragment_release(struct __sk_buff *skb, const struct packet *packet, __u32 held)
{
	struct fragment_release release = {.skb = skb};
	struct held_fragment *draft = frame_draft_get();

	if (!packet || !draft || !frame_save(skb, draft))
		return true;
	release.l3 = packet->l3;
	fragment_key_of(&release.key.datagram, packet);
	bpf_loop(held < HELD_FRAGMENTS ? held : HELD_FRAGMENTS, fragment_release_one, &release, 0);
	return frame_restore(skb, draft, packet->l3);
}

#endif
