/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a socket dials, read from and written to the contexts of both families. */
#ifndef SHUNT_DIAL_H
#define SHUNT_DIAL_H

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "address.h"
#include "settings.h"
#include "types.h"

enum socket_constant {
	SOCK_STREAM = 1,
	SOCK_DGRAM = 2,
	/* What a program returns to let the call go on, or fail. */
	SOCK_ALLOW = 1,
	SOCK_DENY = 0,
};

/* A socket's destination and the address it is bound to (unspecified: to none). */
struct dial {
	struct frontend frontend;
	struct address bound;
};

enum verdict {
	VERDICT_PASS = 0,
	VERDICT_TRANSLATE = 1,
	VERDICT_REJECT = 2,
	VERDICT_DROP = 3,
};

/* The protocol of a frontend, 0 for a socket that no Service serves. MPTCP is TCP on the wire. */
static __always_inline __u8 dial_protocol(__u32 type, __u32 protocol)
{
	if (type == SOCK_STREAM && (protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP))
		return IPPROTO_TCP;
	if (type == SOCK_DGRAM && protocol == IPPROTO_UDP)
		return IPPROTO_UDP;
	return 0;
}

static __always_inline bool dial_is_node(struct bpf_sock_addr *ctx)
{
	return bpf_get_netns_cookie(ctx) == settings.node_netns_cookie;
}

/* The part of both families; false when the socket is not translated at all. */
static __always_inline bool dial_read(struct bpf_sock_addr *ctx, struct dial *dial)
{
	__u8 protocol = dial_protocol(ctx->type, ctx->protocol);

	if (!protocol || (setting(SETTING_HOST_ONLY) && !dial_is_node(ctx)))
		return false;
	dial->frontend.port = port_from_be(ctx->user_port);
	dial->frontend.protocol = protocol;
	dial->frontend.pad = 0;
	return true;
}

static __always_inline bool dial_read4(struct bpf_sock_addr *ctx, struct dial *dial)
{
	if (!dial_read(ctx, dial))
		return false;
	address_set4(&dial->frontend.address, ctx->user_ip4);
	address_resolve_unspecified(&dial->frontend.address);
	address_set4(&dial->bound, ctx->sk->src_ip4);
	return true;
}

static __always_inline bool dial_read6(struct bpf_sock_addr *ctx, struct dial *dial)
{
	struct bpf_sock *sk = ctx->sk;

	if (!dial_read(ctx, dial))
		return false;
	address_set(&dial->frontend.address, ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2],
		    ctx->user_ip6[3]);
	address_resolve_unspecified(&dial->frontend.address);
	address_set(&dial->bound, sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]);
	return true;
}

static __always_inline void dial_write4(struct bpf_sock_addr *ctx, const struct address *address,
					__u16 port)
{
	ctx->user_ip4 = address_word(address, 3);
	ctx->user_port = port_to_be(port);
}

static __always_inline void dial_write6(struct bpf_sock_addr *ctx, const struct address *address,
					__u16 port)
{
	ctx->user_ip6[0] = address_word(address, 0);
	ctx->user_ip6[1] = address_word(address, 1);
	ctx->user_ip6[2] = address_word(address, 2);
	ctx->user_ip6[3] = address_word(address, 3);
	ctx->user_port = port_to_be(port);
}

/*
 * Fails the call. Without bpf_set_retval (before 5.18) the errno of a denied call is EPERM whatever
 * the reason. A drop, which on the wire ends in ETIMEDOUT, does so at once: no packet is sent,
 * nothing is to be waited for.
 */
static __always_inline int dial_deny(enum verdict verdict)
{
	if (setting(SETTING_SET_RETVAL))
		bpf_set_retval(verdict == VERDICT_DROP ? -ETIMEDOUT : -ECONNREFUSED);
	return SOCK_DENY;
}

/*
 * Fails a connect. Without bpf_set_retval the kernel is made to answer ECONNREFUSED itself: nothing
 * can listen on port 0 (a bind to it takes an ephemeral port), so that loopback answers a SYN with
 * RST and a datagram with port unreachable, without a packet on the wire. A drop is refused as well.
 * (A UDP socket connected to a v4-mapped address gets EINVAL from its first send, for the kernel
 * sends that as if to an unconnected one, which may not name port 0.)
 */
static __always_inline int connect_answer4(struct bpf_sock_addr *ctx, enum verdict verdict)
{
	if (verdict < VERDICT_REJECT)
		return SOCK_ALLOW;
	if (setting(SETTING_SET_RETVAL))
		return dial_deny(verdict);
	ctx->user_ip4 = bpf_htonl(INADDR_LOOPBACK);
	ctx->user_port = 0;
	return SOCK_ALLOW;
}

static __always_inline int connect_answer6(struct bpf_sock_addr *ctx, enum verdict verdict)
{
	struct address loopback;

	if (verdict < VERDICT_REJECT)
		return SOCK_ALLOW;
	if (setting(SETTING_SET_RETVAL))
		return dial_deny(verdict);
	if (ctx->user_ip6[2] == bpf_htonl(0xffff))
		address_set4(&loopback, bpf_htonl(INADDR_LOOPBACK));
	else
		address_set(&loopback, 0, 0, 0, bpf_htonl(1));
	dial_write6(ctx, &loopback, 0);
	return SOCK_ALLOW;
}

/* Fails a sendmsg: a datagram cannot be led to loopback, for the socket may be bound to another
 * address. */
static __always_inline int sendmsg_answer(enum verdict verdict)
{
	return verdict < VERDICT_REJECT ? SOCK_ALLOW : dial_deny(verdict);
}

#endif
