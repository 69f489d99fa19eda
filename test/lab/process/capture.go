// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// CaptureRequest names a device whose packets, in both directions, are counted from now on; empty: all devices.
type CaptureRequest struct {
	Device string `json:"device"`
}

// Captured counts the packets of one pair of addresses, without those by which neighbours find each other: ARP, and
// its counterpart in ICMPv6.
type Captured struct {
	Source      netip.Addr `json:"source"`
	Destination netip.Addr `json:"destination"`
	Packets     int        `json:"packets"`
}

const captureBuffer = 16 << 20

// startCapture opens a packet socket; the kernel keeps the packets until they are counted.
func (s *sockets) startCapture(in CaptureRequest) (InspectRequest, error) {
	index := 0
	if in.Device != "" {
		device, err := net.InterfaceByName(in.Device)
		if err != nil {
			return InspectRequest{}, fmt.Errorf("find device %s: %w", in.Device, err)
		}
		index = device.Index
	}
	protocol := hton16(unix.ETH_P_ALL)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return InspectRequest{}, fmt.Errorf("open packet socket: %w", err)
	}
	opened := &socket{fd: fd, network: UDP}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: index})
	}
	if err != nil {
		opened.Close()
		return InspectRequest{}, fmt.Errorf("capture on %s: %w", in.Device, err)
	}
	return InspectRequest{Socket: s.keep(opened)}, nil
}

// stopCapture counts what the socket has and closes it.
func (s *sockets) stopCapture(in InspectRequest) ([]Captured, error) {
	opened, err := s.find(in.Socket)
	if err != nil {
		return nil, err
	}
	counts := map[Captured]int{}
	buffer := make([]byte, 65536)
	for {
		count, _, err := unix.Recvfrom(opened.fd, buffer, 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read captured packets: %w", err)
		}
		if pair, ok := addressesOf(buffer[:count]); ok {
			counts[pair]++
		}
	}
	captured := []Captured{}
	for pair, count := range counts {
		pair.Packets = count
		captured = append(captured, pair)
	}
	slices.SortFunc(captured, func(a, b Captured) int {
		return cmp.Or(a.Source.Compare(b.Source), a.Destination.Compare(b.Destination))
	})
	_, err = s.close(in)
	return captured, err
}

func addressesOf(packet []byte) (Captured, bool) {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return Captured{
			Source: netip.AddrFrom4([4]byte(packet[12:16])), Destination: netip.AddrFrom4([4]byte(packet[16:20])),
		}, true
	case isNeighbourDiscovery(packet):
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return Captured{
			Source: netip.AddrFrom16([16]byte(packet[8:24])), Destination: netip.AddrFrom16([16]byte(packet[24:40])),
		}, true
	}
	return Captured{}, false
}

func isNeighbourDiscovery(packet []byte) bool {
	const routerSolicitation, redirect = 133, 137
	return len(packet) > 40 && packet[0]>>4 == 6 && packet[6] == unix.IPPROTO_ICMPV6 &&
		packet[40] >= routerSolicitation && packet[40] <= redirect
}
