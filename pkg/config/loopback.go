// SPDX-License-Identifier: Apache-2.0

package config

import "net/netip"

// LoopbackNodePorts tells whether the node's own processes reach node ports on loopback and on the unspecified
// address. A list of prefixes that leaves loopback out is a restriction and holds here too; a keyword is none.
func (c *Config) LoopbackNodePorts() bool {
	if !c.LocalhostNodePorts {
		return false
	}
	for _, entry := range c.NodePortAddresses {
		prefix, err := netip.ParsePrefix(entry)
		if err != nil {
			return true // a keyword: the list has been validated
		}
		if prefix.Contains(netip.AddrFrom4([4]byte{127, 0, 0, 1})) || prefix.Contains(netip.IPv6Loopback()) {
			return true
		}
	}
	return false
}
