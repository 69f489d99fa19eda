// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shunt-lb/shunt/pkg/model"
)

// settle is how long a burst of address events may go on before they are read as one change.
const settle = 20 * time.Millisecond

// retry is the pause before the subscription is made again after it broke.
const retry = time.Second

// Addresses returns the addresses on the devices of the calling thread's network namespace, sorted, each once,
// loopback included.
func Addresses() ([]netip.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list this node's addresses: %w", err)
	}
	addresses := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		// An address that duplicate address detection has refused is on the device and serves nobody.
		if a.Flags&dadFailed != 0 {
			continue
		}
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addresses = append(addresses, addr.Unmap())
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses), nil
}

// dadFailed is IFA_F_DADFAILED of linux/if_addr.h.
const dadFailed = 0x08

// WatchAddresses calls changed with the node's addresses, at once and again whenever they differ, until ctx ends. A
// subscription that the kernel breaks (a receive buffer that overflowed) is made again and followed by a new reading,
// so no change is missed for longer than that takes.
func WatchAddresses(ctx context.Context, log *slog.Logger, changed func([]netip.Addr)) error {
	var last []netip.Addr
	first := true
	for {
		err := followAddresses(ctx, func(now []netip.Addr) {
			if first || !slices.Equal(last, now) {
				first, last = false, now
				changed(now)
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		if first {
			return err // it never worked: no permission, no netlink
		}
		log.Warn("watching this node's addresses was interrupted, starting again", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// followAddresses subscribes, and calls read with the addresses now and after each burst of events. It returns when
// the subscription breaks or ctx ends.
func followAddresses(ctx context.Context, read func([]netip.Addr)) error {
	// The subscription's goroutine sends until the socket is closed; the buffer lets its last message go.
	updates := make(chan netlink.AddrUpdate, 64)
	broken := make(chan error, 1)
	done := make(chan struct{})
	defer close(done)
	options := netlink.AddrSubscribeOptions{ErrorCallback: func(err error) {
		select {
		case broken <- err:
		default:
		}
	}}
	if err := netlink.AddrSubscribeWithOptions(updates, done, options); err != nil {
		return fmt.Errorf("subscribe to address events: %w", err)
	}
	for {
		now, err := Addresses()
		if err != nil {
			return err
		}
		read(now)
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return fmt.Errorf("receive address events: %w", err)
		case _, ok := <-updates:
			if !ok {
				return fmt.Errorf("receive address events: the subscription ended")
			}
		}
		drain(ctx, updates)
	}
}

// drain takes what else arrives within settle of the last event.
func drain(ctx context.Context, updates <-chan netlink.AddrUpdate) {
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-quiet.C:
			return
		case _, ok := <-updates:
			if !ok {
				return
			}
		}
	}
}

// OwnAddress returns the address that the node has towards the world: the one that the kernel would take for a packet
// by its default route, else the first of the oldest device that has one which others can reach: those of pods come
// later, with the address of a gateway that every node may have. Invalid if there is none.
func OwnAddress(f model.Family) netip.Addr {
	// Addresses for documentation: no packet is sent.
	far := netip.MustParseAddr("192.0.2.1")
	if f == model.IPv6 {
		far = netip.MustParseAddr("2001:db8::1")
	}
	if routes, err := netlink.RouteGet(far.AsSlice()); err == nil && len(routes) > 0 {
		if source, ok := netip.AddrFromSlice(routes[0].Src); ok && !source.Unmap().IsLoopback() {
			return source.Unmap()
		}
	}
	return oldestAddress(f)
}

// oldestAddress returns the first address, neither of loopback nor of a link, of the device that is first by index.
func oldestAddress(f model.Family) netip.Addr {
	links, err := netlink.LinkList()
	if err != nil {
		return netip.Addr{}
	}
	slices.SortFunc(links, func(a, b netlink.Link) int { return cmp.Compare(a.Attrs().Index, b.Attrs().Index) })
	family := netlink.FAMILY_V4
	if f == model.IPv6 {
		family = netlink.FAMILY_V6
	}
	for _, link := range links {
		if link.Attrs().Flags&net.FlagLoopback != 0 {
			continue // has the addresses of load balancers
		}
		list, err := netlink.AddrList(link, family)
		if err != nil {
			continue // the device went meanwhile
		}
		if f == model.IPv6 {
			slices.Reverse(list) // the kernel has the newest first
		}
		for _, entry := range list {
			if a, ok := netip.AddrFromSlice(entry.IP); ok && a.Unmap().IsGlobalUnicast() {
				return a.Unmap()
			}
		}
	}
	return netip.Addr{}
}
