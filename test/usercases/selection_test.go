// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/test/lab/process"
)

// selectionRequest connects UDP sockets, which sends nothing, and asks the kernel where each was led.
type selectionRequest struct {
	Address netip.AddrPort `json:"address"`
	Count   int            `json:"count"`
}

// selectionResult counts the sockets of each backend, and connects that failed by errno.
type selectionResult struct {
	Backends map[netip.AddrPort]int `json:"backends"`
	Errnos   map[string]int         `json:"errnos"`
}

func selectionOperations() process.Operations {
	return process.Operations{"select": process.Typed(selections)}
}

// selectionBatch sockets are open at once: fewer than there are ports and file descriptors.
const selectionBatch = 500

func selections(in selectionRequest) (selectionResult, error) {
	result := selectionResult{Backends: map[netip.AddrPort]int{}, Errnos: map[string]int{}}
	for done := 0; done < in.Count; done += selectionBatch {
		if err := selectBatch(in.Address, min(selectionBatch, in.Count-done), &result); err != nil {
			return result, err
		}
	}
	return result, nil
}

func selectBatch(address netip.AddrPort, count int, result *selectionResult) error {
	var family uint8 = unix.AF_INET6
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()}
	if address.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}
	}
	for range count {
		fd, err := unix.Socket(int(family), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, to); err != nil {
			result.Errnos[err.Error()]++
		}
	}
	sockets, err := netlink.SocketDiagUDP(family)
	if err != nil {
		return fmt.Errorf("list sockets: %w", err)
	}
	for _, s := range sockets {
		if peer, ok := netip.AddrFromSlice(s.ID.Destination); ok && s.ID.DestinationPort != 0 {
			result.Backends[netip.AddrPortFrom(peer.Unmap(), s.ID.DestinationPort)]++
		}
	}
	return nil
}
