// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lists the connected UDP sockets that still send to a backend which may no longer be used. Such a socket has the
 * backend's address in it, and its sends run through no hook: it would go on sending to nobody for the rest of its
 * life. The agent ends these sockets in their network namespaces (pkg/flows).
 *
 * The iterator over socket_flows sees the sockets of all network namespaces, and only those that shunt has
 * translated; the kernel's iterator over UDP sockets sees one namespace, and every socket in it.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "address.h"
#include "maps.h"
#include "types.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The kernel's types, as far as they are used here; CO-RE finds the members' places in the running kernel. */
struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr___kernel {
	__u8 s6_addr[16];
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	int skc_bound_dev_if;
	possible_net_t skc_net;
	struct in6_addr___kernel skc_v6_daddr;
	struct in6_addr___kernel skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
} __attribute__((preserve_access_index));

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	struct socket_flow *value;
} __attribute__((preserve_access_index));

enum {
	AF_INET = 2,
};

/* A socket of family AF_INET6 that is connected to an IPv4 peer has the v4-mapped form in its IPv6 members. */
static __always_inline void tuple_read(struct stale_socket *stale, struct sock *sk)
{
	const struct sock_common *common = &sk->__sk_common;

	if (common->skc_family == AF_INET) {
		address_set4(&stale->local, common->skc_rcv_saddr);
		address_set4(&stale->peer, common->skc_daddr);
	} else {
		BPF_CORE_READ_INTO(&stale->local, sk, __sk_common.skc_v6_rcv_saddr);
		BPF_CORE_READ_INTO(&stale->peer, sk, __sk_common.skc_v6_daddr);
	}
	stale->local_port = common->skc_num;
	stale->peer_port = bpf_ntohs(common->skc_dport);
	stale->bound_device = common->skc_bound_dev_if;
	stale->netns_inode = common->skc_net.net->ns.inum;
}

/*
 * Whether the backend that a flow remembers is still in one of its service port's sets. One that has left is in none
 * at once, and deleted a grace period later.
 */
static __always_inline bool backend_usable(const struct socket_flow *flow)
{
	const struct backend *backend = bpf_map_lookup_elem(&backends, &flow->backend_id);

	return backend && backend->service_id == flow->service_id &&
	       backend->flags & (BACKEND_CLUSTER | BACKEND_LOCAL);
}

SEC("iter/bpf_sk_storage_map")
int iter_stale(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct socket_flow *value = ctx->value;
	struct stale_socket stale = {};
	struct socket_flow flow;
	struct sock *sk = ctx->sk;

	/* After the last element the kernel calls once more, without one. */
	if (!sk || !value || sk->sk_protocol != IPPROTO_UDP)
		return 0;
	flow = *value;
	if (!flow.service_id || backend_usable(&flow))
		return 0;
	tuple_read(&stale, sk);
	/* The socket has been disconnected, or connected to something else, without passing the hook. */
	if (!address_equal(&stale.peer, &flow.backend) || stale.peer_port != flow.backend_port)
		return 0;
	stale.service_id = flow.service_id;
	stale.backend_id = flow.backend_id;
	stale.cookie = bpf_get_socket_cookie(sk);
	bpf_seq_write(ctx->meta->seq, &stale, sizeof(stale));
	return 0;
}
