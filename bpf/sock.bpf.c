// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The socket path: what a process dials is translated in the socket, before there is a packet, and
 * translated back where the process can see it. The hooks run in the cgroup of the process, in the
 * order of this file.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "bind.h"
#include "dial.h"
#include "socket.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("cgroup/connect4")
int sock_connect4(struct bpf_sock_addr *ctx)
{
	enum verdict verdict = VERDICT_PASS;
	struct backend backend = {};
	struct dial dial;

	if (dial_read4(ctx, &dial))
		verdict = socket_connect(ctx, &dial, &backend);
	if (verdict == VERDICT_TRANSLATE)
		dial_write4(ctx, &backend.address, backend.port);
	return connect_answer4(ctx, verdict);
}

SEC("cgroup/connect6")
int sock_connect6(struct bpf_sock_addr *ctx)
{
	enum verdict verdict = VERDICT_PASS;
	struct backend backend = {};
	struct dial dial;

	if (dial_read6(ctx, &dial))
		verdict = socket_connect(ctx, &dial, &backend);
	if (verdict == VERDICT_TRANSLATE)
		dial_write6(ctx, &backend.address, backend.port);
	return connect_answer6(ctx, verdict);
}

/* Also what an IPv6 socket sends to a v4-mapped address. */
SEC("cgroup/sendmsg4")
int sock_sendmsg4(struct bpf_sock_addr *ctx)
{
	enum verdict verdict = VERDICT_PASS;
	struct backend backend = {};
	struct dial dial;

	if (dial_read4(ctx, &dial))
		verdict = socket_sendmsg(ctx, &dial, &backend);
	if (verdict == VERDICT_TRANSLATE)
		dial_write4(ctx, &backend.address, backend.port);
	return sendmsg_answer(verdict);
}

SEC("cgroup/sendmsg6")
int sock_sendmsg6(struct bpf_sock_addr *ctx)
{
	enum verdict verdict = VERDICT_PASS;
	struct backend backend = {};
	struct dial dial;

	if (dial_read6(ctx, &dial))
		verdict = socket_sendmsg(ctx, &dial, &backend);
	if (verdict == VERDICT_TRANSLATE)
		dial_write6(ctx, &backend.address, backend.port);
	return sendmsg_answer(verdict);
}

SEC("cgroup/recvmsg4")
int sock_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct dial dial;

	if (dial_read4(ctx, &dial) && socket_recvmsg(ctx, &dial.frontend))
		dial_write4(ctx, &dial.frontend.address, dial.frontend.port);
	return SOCK_ALLOW;
}

/* Also what an IPv6 socket receives from a v4-mapped address. */
SEC("cgroup/recvmsg6")
int sock_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct dial dial;

	if (dial_read6(ctx, &dial) && socket_recvmsg(ctx, &dial.frontend))
		dial_write6(ctx, &dial.frontend.address, dial.frontend.port);
	return SOCK_ALLOW;
}

SEC("cgroup/getpeername4")
int sock_getpeername4(struct bpf_sock_addr *ctx)
{
	struct dial dial;

	if (dial_read4(ctx, &dial) && socket_peer(ctx, &dial.frontend))
		dial_write4(ctx, &dial.frontend.address, dial.frontend.port);
	return SOCK_ALLOW;
}

SEC("cgroup/getpeername6")
int sock_getpeername6(struct bpf_sock_addr *ctx)
{
	struct dial dial;

	if (dial_read6(ctx, &dial) && socket_peer(ctx, &dial.frontend))
		dial_write6(ctx, &dial.frontend.address, dial.frontend.port);
	return SOCK_ALLOW;
}

SEC("cgroup/post_bind4")
int sock_post_bind4(struct bpf_sock *ctx)
{
	struct address address;

	address_set4(&address, ctx->src_ip4);
	return bind_check(ctx, &address);
}

SEC("cgroup/post_bind6")
int sock_post_bind6(struct bpf_sock *ctx)
{
	struct address address;

	address_set(&address, ctx->src_ip6[0], ctx->src_ip6[1], ctx->src_ip6[2], ctx->src_ip6[3]);
	return bind_check(ctx, &address);
}
