/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Keys, values and enums that C and Go share. pkg/maps has the same structures in Go, and a test compares both,
 * member by member, through the BTF of the compiled objects.
 *
 * Layout rules: an address is 16 bytes in network order, IPv4 as v4-mapped IPv6 (::ffff:a.b.c.d), so that one code
 * path serves both families; a port is in host byte order; padding is explicit, because a hash key compares it.
 */
#ifndef SHUNT_TYPES_H
#define SHUNT_TYPES_H

#include <linux/types.h>

/* Raised when a structure below changes its layout: state pinned by another layout is never read as this one. */
#define LAYOUT_VERSION 1

/* Aligned, so that a program compares and copies it in words; its place in each structure is aligned anyway. */
struct address {
	__u8 bytes[16];
} __attribute__((aligned(4)));

/*
 * services: what a client dials. A node port stands under the unspecified address of its family (:: or
 * ::ffff:0.0.0.0) and is valid for each address that has ADDRESS_NODE_PORTS.
 */
struct frontend {
	struct address address;
	__u16 port;
	__u8 protocol;
	__u8 pad;
};

/* Consecutive cells of slots. One aligned 64-bit word, so that it is read and written in one access. */
struct run {
	__u32 base;
	__u32 count;
} __attribute__((aligned(8)));

enum service_kind {
	SERVICE_KIND_CLUSTER_IP = 1,
	SERVICE_KIND_EXTERNAL_IP = 2,
	SERVICE_KIND_LOAD_BALANCER = 3,
	SERVICE_KIND_NODE_PORT = 4,
};

enum service_flag {
	/* Which of the two endpoint sets the run is: set = local, clear = cluster. */
	SERVICE_INTERNAL_LOCAL = 1 << 0,
	SERVICE_EXTERNAL_LOCAL = 1 << 1,
	/* What an empty run means: set = drop (endpoints exist, the policy excludes them), clear = reject. */
	SERVICE_INTERNAL_DROP = 1 << 2,
	SERVICE_EXTERNAL_DROP = 1 << 3,
	/* Clients must be in source_ranges. */
	SERVICE_SOURCE_RANGES = 1 << 4,
	/* externalTrafficPolicy: Local. Unlike SERVICE_EXTERNAL_LOCAL it is set on the frontends of both kinds of
	 * policy set and decides who is masqueraded. */
	SERVICE_POLICY_LOCAL = 1 << 5,
};

enum algorithm {
	ALGORITHM_RANDOM = 0,
};

/*
 * services: value. The kernel reuses the memory of a replaced element at once, so a program that was preempted
 * between lookup and use may find another frontend's value under its pointer: service_id and frontend_check
 * are one 64-bit word that is compared before and after reading the rest (see frontend.h).
 */
struct service {
	__u32 service_id;
	__u32 frontend_check;
	struct run internal;
	struct run external;
	__u32 flags; /* enum service_flag */
	__u32 affinity_timeout_s; /* 0: no affinity */
	__u8 kind; /* enum service_kind */
	__u8 algorithm; /* enum algorithm */
	__u8 pad[6];
};

enum backend_flag {
	BACKEND_CLUSTER = 1 << 0, /* in the cluster set of its service port */
	BACKEND_LOCAL = 1 << 1, /* in the local set of its service port */
	BACKEND_ON_NODE = 1 << 2, /* the endpoint is on this node */
};

/* backends: backend id -> backend. The first word repeats the key and is compared like that of struct service. */
struct backend {
	__u32 backend_id;
	__u32 service_id;
	struct address address;
	__u16 port;
	__u8 protocol;
	__u8 pad;
	__u32 flags; /* enum backend_flag */
} __attribute__((aligned(8)));

enum address_flag {
	/* A Service's ClusterIP: all its ports are ours, undefined ones are refused. */
	ADDRESS_CLUSTER_IP = 1 << 0,
	/* An address of this node that serves node ports. */
	ADDRESS_NODE_PORTS = 1 << 1,
	/* An address on one of this node's devices. */
	ADDRESS_ON_NODE = 1 << 2,
	/* An external or load-balancer address of a Service: its declared ports are ours, no others. A program that
	 * finds none of them looks twice, for the kernel may miss an element that is being replaced (frontend.h). */
	ADDRESS_SERVICE = 1 << 3,
};

/* service_names: service id -> what people call it. Strings end with a zero byte. */
struct service_name {
	char namespace[64];
	char name[64];
	char port[64];
	__u8 protocol;
	__u8 family; /* 4 or 6 */
	__u8 pad[6];
};

/* source_ranges: an LPM key. prefix_bits counts service_id (32 bits) and the prefix of the v4-mapped address. */
struct source_range {
	__u32 prefix_bits;
	__u32 service_id;
	struct address address;
};

/*
 * affinity: a client is an address, or (address all zero) a network namespace whose address is not known. A node's
 * own processes are one client, the node's network namespace.
 */
struct affinity_key {
	struct address client;
	__u64 netns_cookie;
	__u32 service_id;
	__u32 pad;
};

struct affinity_value {
	__u64 last_used_ns; /* CLOCK_MONOTONIC */
	__u32 backend_id;
	__u32 pad;
};

/* service_stats: service id -> counters, per CPU. */
struct service_stats {
	__u64 connections; /* translated connects, and UDP flows of unconnected sockets */
	__u64 refused; /* connects and sends answered with an error, for any reason */
	__u64 no_backend; /* of these, because no endpoint was usable */
};

enum flow_state {
	FLOW_FREE = 0,
	/* Datagrams to the frontend go to the backend, and its replies come from the frontend. */
	FLOW_ACTIVE = 1,
	/* Another backend has taken over; late replies of this one still come from the frontend. */
	FLOW_RETIRED = 2,
	/* Not translated: the backend was dialled by its own address, as frontend and backend both say. */
	FLOW_DIRECT = 3,
};

/* One flow of a socket: what was dialled and what the kernel uses instead. */
struct socket_flow {
	__u64 last_used_ns; /* CLOCK_MONOTONIC */
	struct address frontend;
	struct address backend;
	__u16 frontend_port;
	__u16 backend_port;
	__u32 service_id;
	__u32 backend_id;
	__u32 state; /* enum flow_state */
};

/* A datagram that waits for its reply. */
struct udp_send {
	__u32 time_ms; /* CLOCK_MONOTONIC, cut to 32 bits */
	__u32 flow; /* index plus one; 0: answered, or never sent */
};

enum udp_flows_size {
	UDP_FLOWS = 8,
	UDP_SENDS = 16,
};

/*
 * udp_flows: what an unconnected UDP socket talks to. sends is a ring of the latest datagrams: the replies of a
 * backend that stands behind several frontends of this socket are told apart by the order of the datagrams.
 */
struct udp_flows {
	struct socket_flow flows[UDP_FLOWS];
	struct udp_send sends[UDP_SENDS];
	__u32 next_send;
	__u32 pad;
};

enum event_kind {
	/* A process has taken a port that a node port uses. */
	EVENT_BIND_CONFLICT = 1,
};

/* trace: one event. */
struct trace_event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u64 netns_cookie;
	struct frontend frontend;
	__u32 service_id;
	__u32 pid;
	__u8 kind; /* enum event_kind */
	__u8 refused; /* 1: the process got an error */
	__u8 pad[2];
	char command[16];
};

/* What the iterator over socket_flows prints: a connected UDP socket whose backend may no longer be used. */
struct stale_socket {
	__u64 cookie;
	__u32 netns_inode; /* the number in /proc/PID/ns/net */
	__u32 service_id;
	__u32 backend_id;
	__u32 bound_device; /* interface index, 0: none */
	struct address local;
	struct address peer; /* the backend */
	__u16 local_port;
	__u16 peer_port;
	__u32 pad;
};

/* conntrack: a packet's own tuple, in whichever direction it travels. */
struct conntrack_key {
	struct address source;
	struct address destination;
	__u16 source_port;
	__u16 destination_port;
	__u8 protocol;
	__u8 pad[3];
};

enum conntrack_flag {
	/* The key is a reply's tuple: backend -> client. Clear: client -> frontend. */
	CONNTRACK_REPLY = 1 << 0,
	/* The client's address is replaced as well: both directions are translated where they enter the node and sent on
	 * from there. Clear: the kernel routes between the two translations. */
	CONNTRACK_REDIRECT = 1 << 1,
	/* A process of the node dialled: translated where it leaves, undone where replies enter. */
	CONNTRACK_FROM_NODE = 1 << 2,
};

/* What the packets of this direction have shown so far. */
enum conntrack_seen {
	/* TCP without SYN, SCTP other than INIT: the handshake got an answer. UDP: any packet. */
	CONNTRACK_SEEN_DATA = 1 << 0,
	CONNTRACK_SEEN_FIN = 1 << 1, /* TCP FIN, SCTP SHUTDOWN */
	CONNTRACK_SEEN_RESET = 1 << 2, /* TCP RST, SCTP ABORT */
};

/*
 * What a packet's source and destination become. check is a fold of the key and of the time of creation, compared as
 * in struct service.
 */
struct translation {
	__u64 check;
	struct address source;
	struct address destination;
	__u16 source_port;
	__u16 destination_port;
	__u8 flags; /* enum conntrack_flag */
	__u8 pad[3];
	__u32 service_id;
	__u32 backend_id;
};

/*
 * conntrack: one direction of a flow. The other direction's element is found under what this one translates to, turned
 * round, and either can be made again from the other.
 */
struct conntrack_value {
	struct translation to;
	__u64 created_ns; /* CLOCK_MONOTONIC, as all times here */
	__u64 last_seen_ns; /* 0: no packet of this direction yet */
	__u64 packets;
	__u64 bytes;
	__u8 seen; /* enum conntrack_seen */
	__u8 pad[7];
};

/* flow_draft: a flow that is being opened: the reply's tuple, tried with one port after the other. */
struct flow_draft {
	struct conntrack_key forward;
	struct conntrack_key reply;
	struct conntrack_value value;
	/* A flow that is in the way, and the tuple of another one's other half. */
	struct conntrack_key other;
	struct translation other_to;
	struct conntrack_key judged;
	/* The half of a flow that is made again. */
	struct conntrack_value healed;
	__u64 now_ns;
	__u64 oldest_ns; /* of the flows that have a port that was tried */
	__u16 oldest_port;
	__u16 port_first; /* the range, and where in it the search begins */
	__u16 port_count;
	__u16 port_start;
	/* The cell of conntrack_ring that is taken. */
	__u32 cell;
	__u32 weak_cell;
	__u8 cell_found;
	__u8 weak_found;
	__u8 pad[6];
};

/* fragments: what the first fragment of a datagram knows and the later ones do not. */
struct fragment_key {
	struct address source;
	struct address destination;
	__u32 id;
	__u8 protocol;
	__u8 pad[3];
};

struct fragment_value {
	__u64 time_ns;
	__u16 source_port;
	__u16 destination_port;
	__u32 known; /* 1: the first fragment has been seen; 0: later ones came first */
	__u32 held; /* how many of those are in held_fragments */
	__u32 pad;
};

enum fragment_size {
	HELD_BYTES = 2044,
	HELD_FRAGMENTS = 8, /* of a datagram */
};

/* held_fragments: a later fragment that came before the first. */
struct held_key {
	struct fragment_key datagram;
	__u32 number;
};

struct held_fragment {
	__u32 length; /* of the frame */
	__u8 frame[HELD_BYTES];
};

/* packet_stats: service id -> counters of the packet path, per CPU. Bytes are those of the IP packets. */
struct packet_stats {
	__u64 flows;
	__u64 packets_forward;
	__u64 bytes_forward;
	__u64 packets_reply;
	__u64 bytes_reply;
	__u64 rejected; /* new flows answered with an error */
	__u64 dropped; /* packets and new flows dropped, for any reason */
};

/* A prefix of v4-mapped addresses; bits counts from the first of 128, 0 is no prefix. */
struct prefix {
	struct address address;
	__u32 bits;
};

enum packet_setting_flag {
	/* pods are the pods of this node alone, not of the whole cluster. */
	PACKET_SETTING_NODE_PODS = 1 << 0,
	/* Pods are those behind a device with DEVICE_PODS. */
	PACKET_SETTING_DEVICE_PODS = 1 << 1,
	/* Frontends of ClusterIPs: replace every client's address (masqueradeAll). */
	PACKET_SETTING_MASQUERADE_ALL = 1 << 2,
	/* Translate the node's own TCP and UDP, too: no program translates in its sockets. SCTP is always. */
	PACKET_SETTING_NODE_CLIENTS = 1 << 3,
	/* External frontends without externalTrafficPolicy: Local: replace the client's address for backends on this
	 * node as well, as kube-proxy does: for those whose return path would not come back through this node. */
	PACKET_SETTING_MASQUERADE_EXTERNAL = 1 << 4,
};

enum packet_setting_size {
	PACKET_SETTING_PREFIXES = 8,
};

/* packet_settings: one element. What the packet path must know and may change while it runs. */
struct packet_settings {
	__u64 tcp_syn_ns;
	__u64 tcp_established_ns;
	__u64 tcp_close_wait_ns; /* one side has closed */
	__u64 tcp_closing_ns; /* both have */
	__u64 reset_ns;
	__u64 udp_unreplied_ns;
	__u64 udp_replied_ns;
	__u64 sctp_established_ns;
	__u32 reject_rate; /* answers to refused packets, per second and CPU */
	__u16 snat_port_min;
	__u16 snat_port_max;
	__u32 flags; /* enum packet_setting_flag */
	__u32 flow_capacity; /* cells of conntrack_ring */
	struct prefix services[PACKET_SETTING_PREFIXES]; /* ranges of ClusterIPs */
	struct prefix pods[PACKET_SETTING_PREFIXES]; /* clients inside the cluster */
};

enum device_flag {
	DEVICE_PODS = 1 << 0, /* who is behind it is a pod (detect-local by interface) */
	DEVICE_BRIDGE_PORT = 1 << 1, /* frames to mac are for this node, others pass by */
	/* Who is behind it has no way to this node but through it: answers come back through this node. */
	DEVICE_BEHIND_NODE = 1 << 2,
	DEVICE_ETHERNET = 1 << 3, /* it has a MAC address, and frames */
};

/* devices: interface index -> what is known of a device to which the packet path is attached. */
struct device {
	__u32 flags; /* enum device_flag */
	__u8 mac[6]; /* of the device, of a port its bridge's */
	__u8 pad[2];
};

/* reject_budget: answers that may still be sent in this second, per CPU. */
struct reject_budget {
	__u64 second_began_ns;
	__u64 sent;
};

/* meta: one element: what must outlive the agent beside the maps themselves. */
struct meta {
	__u32 layout_version;
	__u32 next_backend_id; /* high-water mark: ids below may be remembered somewhere and are never given again */
};

_Static_assert(sizeof(struct frontend) == 20, "key of services");
_Static_assert(sizeof(struct service) == 40, "value of services");
_Static_assert(sizeof(struct backend) == 32, "value of backends");
_Static_assert(sizeof(struct affinity_key) == 32, "key of affinity");
_Static_assert(sizeof(struct source_range) == 24, "key of source_ranges");
_Static_assert(sizeof(struct conntrack_key) == 40, "key of conntrack");
_Static_assert(sizeof(struct conntrack_value) == 96, "value of conntrack");
_Static_assert(sizeof(struct fragment_key) == 40, "key of fragments");

#endif
