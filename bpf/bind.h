/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A process that takes a port which a node port uses: from then on its clients reach the Service,
 * not the process. */
#ifndef SHUNT_BIND_H
#define SHUNT_BIND_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "dial.h"
#include "frontend.h"
#include "maps.h"
#include "settings.h"
#include "stats.h"

/* Whether node ports are served on the address that a socket is bound to. */
static __noinline bool bind_is_served(const struct address *address)
{
	if (address_is_unspecified(address))
		return true;
	if (address_is_loopback(address))
		return setting(SETTING_LOOPBACK_NODE_PORTS);
	return address_flags(address) & ADDRESS_NODE_PORTS;
}

/* A socket bound to :: takes the port of IPv4 as well (an IPv6-only one does not, which cannot be
 * seen here). */
static __noinline bool bind_match(const struct frontend *bound, struct service *service)
{
	struct frontend bound4 = {.port = bound->port, .protocol = bound->protocol};

	if (node_port_match(bound, service) == MATCH_SERVICE)
		return true;
	if (!address_is_zero(&bound->address))
		return false;
	address_set4(&bound4.address, 0);
	return node_port_match(&bound4, service) == MATCH_SERVICE;
}

static __noinline int bind_describe(struct trace_event *event, const struct frontend *bound,
				    __u32 service_id)
{
	*event = (struct trace_event){
		.time_ns = bpf_ktime_get_ns(),
		.netns_cookie = settings.node_netns_cookie,
		.frontend = *bound,
		.service_id = service_id,
		.pid = bpf_get_current_pid_tgid() >> 32,
		.kind = EVENT_BIND_CONFLICT,
		.refused = setting(SETTING_REFUSE_BIND),
	};
	return bpf_get_current_comm(event->command, sizeof(event->command));
}

static __noinline int bind_trace(const struct frontend *bound, __u32 service_id)
{
	struct trace_event *event = bpf_ringbuf_reserve(&trace, sizeof(*event), 0);

	if (!event)
		return drop_count(REASON_TRACE_LOST);
	bind_describe(event, bound, service_id);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Reports a conflict and, with the switch, refuses it. */
static __always_inline int bind_check(struct bpf_sock *ctx, const struct address *address)
{
	struct frontend bound = {
		.address = *address,
		.port = ctx->src_port,
		.protocol = dial_protocol(ctx->type, ctx->protocol),
	};
	struct service service = {};

	if (!bound.protocol || bpf_get_netns_cookie(ctx) != settings.node_netns_cookie ||
	    !bind_is_served(address) || !bind_match(&bound, &service))
		return SOCK_ALLOW;
	bind_trace(&bound, service.service_id);
	if (!setting(SETTING_REFUSE_BIND)) {
		drop_count(REASON_BIND_CONFLICT);
		return SOCK_ALLOW;
	}
	drop_count(REASON_BIND_REFUSED);
	if (setting(SETTING_SET_RETVAL))
		bpf_set_retval(-EADDRINUSE);
	return SOCK_DENY;
}

#endif
