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

func socketOperations() process.Operations {
	return process.Operations{"select": process.Typed(selections), "bind-any": process.Typed(bindAny)}
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

// bindAnyRequest binds sockets one after the other to whatever port the kernel chooses, for all addresses.
type bindAnyRequest struct {
	Network string `json:"network"`
	Count   int    `json:"count"`
}

func bindAny(in bindAnyRequest) ([]int, error) {
	kind := unix.SOCK_DGRAM
	if in.Network == process.TCP {
		kind = unix.SOCK_STREAM
	}
	var ports []int
	for range in.Count {
		port, err := bindOne(kind)
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

func bindOne(kind int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet6{}); err != nil {
		return 0, fmt.Errorf("bind: %w", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("read the socket's address: %w", err)
	}
	return name.(*unix.SockaddrInet6).Port, nil
}
