/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * All state of the system: the only file with maps. The loader sets the sizes (max_entries here is what a test or a
 * bare bpftool gets) and pins each map under its name.
 */
#ifndef SHUNT_MAPS_H
#define SHUNT_MAPS_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "reason.h"
#include "types.h"

/* What may be dialled. Written by the agent, one element at once; full: the agent reports it, the rest goes on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct frontend);
	__type(value, struct service);
	__uint(max_entries, 65536);
} services SEC(".maps");

/* Every endpoint that may be used, by id. Written by the agent; full: as services. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct backend);
	__uint(max_entries, 65536);
} backends SEC(".maps");

/* Backend ids, in runs that services name. Written by the agent, mapped, only ever into free cells. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 262144);
} slots SEC(".maps");

/* What is known of an address (enum address_flag). Written by the agent; full: as services. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct address);
	__type(value, __u32);
	__uint(max_entries, 65536);
} addresses SEC(".maps");

/* Which backend a client is bound to. Written by the programs; full: the client unseen longest is forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct affinity_key);
	__type(value, struct affinity_value);
	__uint(max_entries, 65536);
} affinity SEC(".maps");

/* Who may use a load-balancer address; the value has no meaning. Written by the agent; full: as services. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_range);
	__type(value, __u32);
	__uint(max_entries, 65536);
} source_ranges SEC(".maps");

/* What people call a service id. Written by the agent, read by the commands and metrics, by no program. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct service_name);
	__uint(max_entries, 65536);
} service_names SEC(".maps");

/* Counters of a service id. Written by the programs, set to zero by the agent before an id is given again. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct service_stats);
	__uint(max_entries, 65536);
} service_stats SEC(".maps");

/* Counters of enum reason. Written by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, REASON_CAPACITY);
} drops SEC(".maps");

/* What outlives the agent beside the maps: one element. Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct meta);
	__uint(max_entries, 1);
} meta SEC(".maps");

/* The flow of a connected socket. Written by the socket programs, gone with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_flow);
} socket_flows SEC(".maps");

/* The flows of an unconnected UDP socket, apart from the above because they are large and most sockets have none. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct udp_flows);
} udp_flows SEC(".maps");

/* Events (struct trace_event). Written by the programs; full, as nobody reads: lost, and counted. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} trace SEC(".maps");

/*
 * Flows of the packet path, two elements each. Written by the programs, which make room through conntrack_ring before
 * they add one; full: the new flow is dropped and counted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct conntrack_key);
	__type(value, struct conntrack_value);
	__uint(max_entries, 131072);
} conntrack SEC(".maps");

/*
 * The forward tuple of each flow in conntrack, a cell each (half as many as conntrack has elements): a new flow takes
 * the next cell whose flow has ended, so that the table needs no other sweeper. Written by the programs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct conntrack_key);
	__uint(max_entries, 65536);
} conntrack_ring SEC(".maps");

/* Ports of fragmented datagrams. Written by the programs; full: the oldest datagram is forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct fragment_key);
	__type(value, struct fragment_value);
	__uint(max_entries, 16384);
} fragments SEC(".maps");

/* Fragments that wait for the first of their datagram. Written by the programs; full: the oldest is lost. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct held_key);
	__type(value, struct held_fragment);
	__uint(max_entries, 512);
} held_fragments SEC(".maps");

/* Room for a frame: one that is to be held, and one that gives its memory to those that were. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct held_fragment);
	__uint(max_entries, 1);
} frame_draft SEC(".maps");

/* Counters of a service id on the packet path. As service_stats. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct packet_stats);
	__uint(max_entries, 65536);
} packet_stats SEC(".maps");

/* Written by the agent before it attaches the programs; one element. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct packet_settings);
	__uint(max_entries, 1);
} packet_settings SEC(".maps");

/* Devices that have the packet programs. Written by the agent; full: the device is as one of which nothing is known. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, struct device);
	__uint(max_entries, 4096);
} devices SEC(".maps");

/* Limits the answers to refused packets. Written by the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct reject_budget);
	__uint(max_entries, 1);
} reject_budget SEC(".maps");

/* Room for what does not fit on the stack while a flow is opened. Written and read by one run of a program. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct flow_draft);
	__uint(max_entries, 1);
} flow_draft SEC(".maps");

#endif
