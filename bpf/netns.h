/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The address of a socket's network namespace, read from kernel memory. */
#ifndef SHUNT_NETNS_H
#define SHUNT_NETNS_H

#include <linux/bpf.h>
#include <linux/in6.h>
#include <stdbool.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "address.h"

/* Only the members that are read; the loader finds their places in the running kernel (CO-RE). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next;
};

struct net {
	struct list_head dev_base_head;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
};

struct in_ifaddr {
	struct in_ifaddr *ifa_next;
	__be32 ifa_local;
};

struct in_device {
	struct in_ifaddr *ifa_list;
};

struct inet6_ifaddr {
	struct in6_addr addr;
	struct list_head if_list;
};

struct inet6_dev {
	struct list_head addr_list;
};

/* Never read: whether the kernel has it tells whether it has MPTCP. */
struct mptcp_sock {
	void *first;
};

struct net_device {
	struct list_head dev_list;
	struct in_device *ip_ptr;
	struct inet6_dev *ip6_ptr;
};

#pragma clang attribute pop

/* A pod has few devices, and few addresses on each; a walk that ends early means an address that is
 * not known. */
enum netns_limit {
	NETNS_DEVICES = 16,
	NETNS_ADDRESSES = 4,
};

/* Neither loopback nor link-local (169.254.0.0/16): an address that others see. */
static __always_inline bool addr4_is_routable(__u32 addr4)
{
	return addr4 && !addr4_is_loopback(addr4) &&
	       (addr4 & bpf_htonl(0xffff0000)) != bpf_htonl(0xa9fe0000);
}

/* Neither ::1 nor link-local (fe80::/10). */
static __always_inline bool addr6_is_routable(const struct address *address)
{
	return !address_is_zero(address) && !address_is_loopback(address) &&
	       (address_word(address, 0) & bpf_htonl(0xffc00000)) != bpf_htonl(0xfe800000);
}

static __always_inline bool device_address4(const struct net_device *device,
					    struct address *address)
{
	const struct in_ifaddr *ifa = BPF_CORE_READ(device, ip_ptr, ifa_list);

	for (int i = 0; i < NETNS_ADDRESSES && ifa; i++) {
		__u32 addr4 = BPF_CORE_READ(ifa, ifa_local);

		if (addr4_is_routable(addr4)) {
			address_set4(address, addr4);
			return true;
		}
		ifa = BPF_CORE_READ(ifa, ifa_next);
	}
	return false;
}

static __always_inline bool device_address6(const struct net_device *device,
					    struct address *address)
{
	const struct list_head *head, *node;
	const struct inet6_dev *idev;

	/* A kernel without IPv6 has neither. */
	if (!bpf_core_field_exists(device->ip6_ptr) || !bpf_core_type_exists(struct inet6_dev))
		return false;
	idev = BPF_CORE_READ(device, ip6_ptr);
	if (!idev)
		return false;
	head = &idev->addr_list;
	node = BPF_CORE_READ(idev, addr_list.next);
	for (int i = 0; i < NETNS_ADDRESSES && node && node != head; i++) {
		const struct inet6_ifaddr *ifa =
			(const void *)node - bpf_core_field_offset(struct inet6_ifaddr, if_list);

		BPF_CORE_READ_INTO(address, ifa, addr);
		if (addr6_is_routable(address))
			return true;
		node = BPF_CORE_READ(node, next);
	}
	return false;
}

/*
 * The socket in kernel memory. The verifier lets a program use a context's socket pointer but not
 * compute with it, so the pointer is read back from the stack as a number.
 */
static __always_inline const struct sock *socket_in_kernel(struct bpf_sock *sk)
{
	const struct sock *socket = NULL;

	bpf_probe_read_kernel(&socket, sizeof(socket), &sk);
	return socket;
}

/*
 * The first routable address of the family in the socket's network namespace: for a pod, its own.
 * Devices and addresses are freed by RCU, and a program is an RCU reader; a list that changes
 * meanwhile ends the walk early.
 */
__noinline bool netns_address(struct bpf_sock_addr *ctx, bool is4, struct address *address)
{
	const struct list_head *head, *node;
	const struct net *net;

	if (!address)
		return false;
	net = BPF_CORE_READ(socket_in_kernel(ctx->sk), __sk_common.skc_net.net);
	head = &net->dev_base_head;
	node = BPF_CORE_READ(net, dev_base_head.next);
	for (int i = 0; i < NETNS_DEVICES && node && node != head; i++) {
		const struct net_device *device =
			(const void *)node - bpf_core_field_offset(struct net_device, dev_list);

		if (is4 ? device_address4(device, address) : device_address6(device, address))
			return true;
		node = BPF_CORE_READ(node, next);
	}
	address_set(address, 0, 0, 0, 0);
	return false;
}

#endif
