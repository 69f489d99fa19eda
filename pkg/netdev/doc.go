// SPDX-License-Identifier: Apache-2.0

// Package netdev watches, by netlink events, what the node's network namespace has: its addresses (which serve node
// ports, and on which a ClusterIP may sit) and its devices (which carry the packet path's programs). It reads and
// reports; it changes nothing.
package netdev
