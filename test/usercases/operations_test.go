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
	g := &group{}
	return process.Operations{
		"select": process.Typed(selections), "bind-any": process.Typed(bindAny),
		"group-open": process.Typed(g.open), "group-send": process.Typed(g.send),
	}
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
	return localPort(fd), nil
}

// groupRequest opens UDP sockets that share one local port (SO_REUSEPORT) and connects them to an address; one more
// stays unconnected.
type groupRequest struct {
	Address   netip.AddrPort `json:"address"`
	Connected int            `json:"connected"`
}

// groupResult has, of a datagram of each connected socket and of one to the address of the unconnected one, the errno
// or nothing, and the local port of the latter.
type groupResult struct {
	Connected   []string `json:"connected"`
	Unconnected string   `json:"unconnected"`
	Port        int      `json:"port"`
}

type group struct {
	to        unix.Sockaddr
	connected []int
	free      int
}

func (g *group) open(in groupRequest) (groupResult, error) {
	g.to = &unix.SockaddrInet6{Port: int(in.Address.Port()), Addr: in.Address.Addr().As16()}
	port := 0
	for i := range in.Connected + 1 {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet6{Port: port})
		}
		if err != nil {
			return groupResult{}, fmt.Errorf("open socket: %w", err)
		}
		if i == 0 {
			g.free, port = fd, localPort(fd)
			continue
		}
		if err := unix.Connect(fd, g.to); err != nil {
			return groupResult{}, fmt.Errorf("connect: %w", err)
		}
		g.connected = append(g.connected, fd)
	}
	return g.send(struct{}{})
}

func (g *group) send(struct{}) (groupResult, error) {
	var result groupResult
	for _, fd := range g.connected {
		result.Connected = append(result.Connected, errnoOf(unix.Send(fd, []byte("x"), unix.MSG_NOSIGNAL)))
	}
	result.Unconnected = errnoOf(unix.Sendto(g.free, []byte("x"), 0, g.to))
	result.Port = localPort(g.free)
	return result, nil
}

func errnoOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func localPort(fd int) int {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0
	}
	return name.(*unix.SockaddrInet6).Port
}
