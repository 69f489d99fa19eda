// SPDX-License-Identifier: Apache-2.0

package config

import "testing"

func TestLoopbackServesNodePortsUnlessAListOfPrefixesLeavesItOut(t *testing.T) {
	for _, row := range []struct {
		list []string
		on   bool
		want bool
	}{
		{[]string{"primary"}, true, true},
		{[]string{"primary"}, false, false},
		{[]string{"192.0.2.0/24"}, true, false},
		{[]string{"192.0.2.0/24", "127.0.0.0/8"}, true, true},
		{[]string{"192.0.2.0/24", "::1/128"}, true, true},
		{[]string{"0.0.0.0/0"}, true, true},
		{[]string{"192.0.2.0/24", "localhost"}, true, true},
		{[]string{"localhost"}, false, false},
	} {
		c := Default()
		c.NodePortAddresses, c.LocalhostNodePorts = row.list, row.on
		if got := c.LoopbackNodePorts(); got != row.want {
			t.Errorf("list %q, switch %t: %t, want %t", row.list, row.on, got, row.want)
		}
	}
}
