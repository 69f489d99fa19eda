/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the loader decides once for all programs. The kernel knows the values and removes branches
 * that they close. */
#ifndef SHUNT_SETTINGS_H
#define SHUNT_SETTINGS_H

#include <linux/types.h>
#include <stdbool.h>

#include "types.h"

enum setting_flag {
	/* The kernel has bpf_set_retval (5.18), so a refusal has the errno that it should have. */
	SETTING_SET_RETVAL = 1 << 0,
	/* Programs may read kernel memory (CAP_PERFMON, no lockdown), so a pod's address can be
	 * found. */
	SETTING_READ_KERNEL = 1 << 1,
	/* The node's own processes reach node ports on loopback. */
	SETTING_LOOPBACK_NODE_PORTS = 1 << 2,
	/* Translate the node's own sockets only; pods are left to the packet path. */
	SETTING_HOST_ONLY = 1 << 3,
	/* Refuse a bind to a port that a node port uses; otherwise it is only reported. */
	SETTING_REFUSE_BIND = 1 << 4,
};

struct settings {
	__u64 node_netns_cookie;
	__u64 udp_idle_ns;
	/* The node's own address of each family, all zero when there is none: what source ranges
	 * judge its processes by. */
	struct address node_address4;
	struct address node_address6;
	__u32 flags; /* enum setting_flag */
	__u32 pad;
};

const volatile struct settings settings;

static __always_inline bool setting(enum setting_flag flag)
{
	return settings.flags & flag;
}

#endif
