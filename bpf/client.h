/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who dials, on the packet path: a client inside the cluster or outside, and whether its address is kept. */
#ifndef SHUNT_CLIENT_H
#define SHUNT_CLIENT_H

#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

#include "address.h"
#include "conntrack.h"
#include "maps.h"
#include "packet.h"
#include "select.h"

static __always_inline bool prefix_contains(const struct prefix *prefix,
					    const struct address *address)
{
	__u32 bits = prefix->bits;

	if (!bits)
		return false;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u32 word = bits > 32 ? 32 : bits;
		__u32 mask = word ? bpf_htonl(0xffffffffU << (32 - word)) : 0;

		if ((address_word(&prefix->address, i) ^ address_word(address, i)) & mask)
			return false;
		bits -= word;
	}
	return true;
}

static __noinline bool prefixes_contain(const struct prefix *prefixes,
					const struct address *address)
{
	for (int i = 0; i < PACKET_SETTING_PREFIXES; i++) {
		if (prefix_contains(&prefixes[i], address))
			return true;
	}
	return false;
}

/* Whether an address is in a range of ClusterIPs. */
static __noinline bool is_service_address(const struct address *address)
{
	const struct packet_settings *settings = packet_settings_get();

	return settings && prefixes_contain(settings->services, address);
}

static __noinline bool device_has(const struct __sk_buff *skb, enum device_flag flag)
{
	__u32 index = skb->ifindex;
	const struct device *device = bpf_map_lookup_elem(&devices, &index);

	return device && device->flags & flag;
}

/* Whether the client counts as a pod, as kube-proxy's detect-local would say. */
static __noinline bool client_is_pod(const struct __sk_buff *skb, const struct address *client)
{
	const struct packet_settings *settings = packet_settings_get();

	if (!settings)
		return false;
	if (settings->flags & PACKET_SETTING_DEVICE_PODS)
		return device_has(skb, DEVICE_PODS);
	return prefixes_contain(settings->pods, client);
}

/* Whether it is known at all who is a pod, in the client's family. */
static __noinline bool has_detector(const struct packet_settings *settings,
				    const struct address *client)
{
	bool is4 = address_is4(client);

	if (settings->flags & PACKET_SETTING_DEVICE_PODS)
		return true;
	for (int i = 0; i < PACKET_SETTING_PREFIXES; i++) {
		const struct prefix *pods = &settings->pods[i];

		if (pods->bits && address_is4(&pods->address) == is4)
			return true;
	}
	return false;
}

/*
 * Whether the backend must see the node's address instead of the client's. A client whose answers do not come back
 * through this node by themselves cannot keep its own with a backend elsewhere; a pod that is given itself would
 * answer itself. A backend on this node sees the client, unless the settings say otherwise.
 */
static __noinline bool client_is_masked(const struct __sk_buff *skb, const struct service *service,
					const struct backend *backend, const struct address *client,
					bool pod)
{
	const struct packet_settings *settings = packet_settings_get();

	if (address_equal(&backend->address, client))
		return true;
	if (!settings)
		return false;
	if (service->kind == SERVICE_KIND_CLUSTER_IP) {
		if (settings->flags & PACKET_SETTING_MASQUERADE_ALL)
			return true;
		return !(backend->flags & BACKEND_ON_NODE) && !pod &&
		       has_detector(settings, client);
	}
	if (backend->flags & BACKEND_ON_NODE)
		return settings->flags & PACKET_SETTING_MASQUERADE_EXTERNAL &&
		       !(service->flags & SERVICE_POLICY_LOCAL);
	if (!pod)
		return true;
	/*
	 * A pod of another node that dials this one would be answered by the backend itself, past this node. With
	 * externalTrafficPolicy: Local kube-proxy keeps its address all the same.
	 */
	return !(service->flags & SERVICE_POLICY_LOCAL) &&
	       !(settings->flags & PACKET_SETTING_NODE_PODS) &&
	       !device_has(skb, DEVICE_BEHIND_NODE);
}

#endif
