// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// findPath decides whether the client's packets are translated, or its socket: the latter wherever it can be.
func (w *walk) findPath() {
	socket := w.Client.Kind != External && w.Target.Protocol != model.SCTP.String() &&
		!(w.Datapath.HostOnly && w.Client.Kind == Pod) && w.missingHook() == ""
	w.byPacket = w.Datapath.PacketDevices > 0 && !socket
}

// neededHooks are those that the client's socket meets.
func (w *walk) neededHooks() []string {
	version := 4
	if model.FamilyOf(w.Target.Address) == model.IPv6 {
		version = 6
	}
	needed := []string{fmt.Sprintf("connect%d", version)}
	if w.Target.Protocol == model.UDP.String() {
		needed = append(needed, fmt.Sprintf("sendmsg%d", version))
	}
	return needed
}

// missingHook is the first of them that has no program.
func (w *walk) missingHook() string {
	for _, hook := range w.neededHooks() {
		if !slices.Contains(w.Datapath.Hooks, hook) {
			return hook
		}
	}
	return ""
}

// packetHook tells where packets are translated.
func (w *walk) packetHook() {
	where := "where the client's packets enter this node"
	if w.Client.Kind == Node {
		where = "where the packets leave this node"
	}
	w.step("Hook", "tc: %s, on the device (%s with programs). The packets of an open flow follow it without this walk; see "+
		"shunt conntrack.", where, count(w.Datapath.PacketDevices, "device"))
}

// inServiceRange tells whether an address that no Service has is in a range of ClusterIPs.
func (w *walk) inServiceRange() (bool, error) {
	settings, _, err := w.Reader.PacketSettings()
	if err != nil {
		return false, err
	}
	for _, p := range settings.Services {
		if p.Bits != 0 && RangePrefix(maps.SourceRange{PrefixBits: p.Bits + 32, Address: p.Address}).Contains(w.Target.Address) {
			return true, nil
		}
	}
	return false, nil
}

// How refusals and drops look from the client's side.

func (w *walk) refusedWords() string {
	if w.byPacket {
		return "a TCP reset, or ICMP port unreachable"
	}
	return "ECONNREFUSED"
}

func (w *walk) droppedWords() string {
	if w.byPacket {
		return "its packets get no answer."
	}
	return "connect(2) fails with ETIMEDOUT at once."
}

// packetReply tells what client and backend see of each other.
func (w *walk) packetReply() {
	seen := "A backend on this node sees the client's own address, one on another node an address of this node."
	switch {
	case w.Client.Kind == Node:
		seen = "The backend sees an address of this node."
	case w.Client.Kind == Pod && w.service.Kind == maps.KindClusterIP:
		seen = "The backend sees the client's own address, unless it is the client itself."
	case w.Client.Kind == Pod:
		seen = "The backend sees the client's own address, where its replies come back through this node."
	}
	w.step("Reply", "Replies come from %s. %s", w.Target, seen)
}
