// SPDX-License-Identifier: Apache-2.0

// Package firewall gives a node of the lab the firewall that a careful node has. It needs the program nft, which the lab
// itself does without.
package firewall

import (
	"fmt"
	"os/exec"

	"github.com/shunt-lb/shunt/test/lab"
)

// rules trust no packet that connection tracking cannot follow.
const rules = "add table inet t; add chain inet t f { type filter hook forward priority 0; }; " +
	"add rule inet t f ct state invalid drop"

// DropInvalid makes the node drop what its connection tracking calls invalid. The error is exec.ErrNotFound where there
// is no nft.
func DropInvalid(n *lab.Node) error {
	nft, err := exec.LookPath("nft")
	if err != nil {
		// Not in the path of every root.
		nft, err = exec.LookPath("/usr/sbin/nft")
	}
	if err != nil {
		return fmt.Errorf("set up the firewall of %s: %w: install nftables", n.Name, err)
	}
	if err := n.Start("nft", exec.Command(nft, rules)).Wait(); err != nil {
		return fmt.Errorf("set up the firewall of %s: %w", n.Name, err)
	}
	return nil
}
