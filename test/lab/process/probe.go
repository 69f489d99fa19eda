// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

var noAddress netip.AddrPort

const (
	arpLength      = 28
	arpReply       = 2
	icmpEcho       = 8
	icmpEchoReply  = 0
	icmp6Echo      = 128
	icmp6EchoReply = 129
)

// arp asks the device's network who has an IPv4 address.
func arp(in ProbeRequest) (ProbeResult, error) {
	device, err := net.InterfaceByName(in.Device)
	if err != nil {
		return ProbeResult{}, fmt.Errorf("find device %s: %w", in.Device, err)
	}
	protocol := hton16(unix.ETH_P_ARP)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return ProbeResult{}, fmt.Errorf("open packet socket: %w", err)
	}
	opened := &socket{fd: fd, network: UDP}
	defer opened.Close()
	to := &unix.SockaddrLinklayer{
		Protocol: protocol, Ifindex: device.Index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	}
	if err := unix.Bind(fd, to); err != nil {
		return ProbeResult{}, fmt.Errorf("bind packet socket: %w", err)
	}
	if err := unix.Sendto(fd, arpRequest(device, in.Address), 0, to); err != nil {
		return ProbeResult{Errno: errnoName(err)}, nil
	}
	wanted := in.Address.AsSlice()
	return awaitAnswer(opened, in.Timeout, func(packet []byte, _ netip.Addr) (string, bool) {
		if len(packet) < arpLength || packet[7] != arpReply || !bytes.Equal(packet[14:18], wanted) {
			return "", false
		}
		return net.HardwareAddr(packet[8:14]).String(), true
	})
}

func arpRequest(device *net.Interface, address netip.Addr) []byte {
	packet := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	packet = append(packet, device.HardwareAddr...)
	source := net.IPv4zero.To4()
	addresses, err := device.Addrs()
	for _, candidate := range addresses {
		if network, ok := candidate.(*net.IPNet); err == nil && ok && network.IP.To4() != nil {
			source = network.IP.To4()
			break
		}
	}
	packet = append(packet, source...)
	packet = append(packet, make([]byte, 6)...)
	return append(packet, address.AsSlice()...)
}

// ping sends one ICMP echo request.
func ping(in ProbeRequest) (ProbeResult, error) {
	domain, protocol, request, reply, header := unix.AF_INET, unix.IPPROTO_ICMP, byte(icmpEcho), byte(icmpEchoReply), 20
	family := 4
	if in.Address.Is6() {
		domain, protocol, request, reply, header = unix.AF_INET6, unix.IPPROTO_ICMPV6, icmp6Echo, icmp6EchoReply, 0
		family = 6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return ProbeResult{}, fmt.Errorf("open ICMP socket: %w", err)
	}
	opened := &socket{fd: fd, network: UDP, family: family}
	defer opened.Close()
	packet := []byte{request, 0, 0, 0, 0, 0, 0, 1}
	binary.BigEndian.PutUint16(packet[4:], uint16(os.Getpid()))
	if family == 4 { // for ICMPv6 the kernel computes it
		binary.BigEndian.PutUint16(packet[2:], checksum(packet))
	}
	if err := opened.send(packet, netip.AddrPortFrom(in.Address, 0)); err != nil {
		return ProbeResult{Errno: errnoName(err)}, nil
	}
	return awaitAnswer(opened, in.Timeout, func(answer []byte, from netip.Addr) (string, bool) {
		if len(answer) < header+8 || answer[header] != reply || !bytes.Equal(answer[header+4:header+8], packet[4:8]) {
			return "", false
		}
		return from.String(), true
	})
}

// awaitAnswer reads until a packet is recognized or the time is over.
func awaitAnswer(
	s *socket, timeout time.Duration, recognize func([]byte, netip.Addr) (string, bool),
) (ProbeResult, error) {
	deadline := time.Now().Add(timeout)
	for {
		packet, from, err := s.receive(deadline)
		if errors.Is(err, errTimeout) {
			return ProbeResult{}, nil
		}
		if err != nil {
			return ProbeResult{Errno: errnoName(err)}, nil
		}
		if by, ok := recognize(packet, from.Addr()); ok {
			return ProbeResult{Answered: true, By: by}, nil
		}
	}
}

func checksum(packet []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(packet); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func hton16(value uint16) uint16 {
	var bytes [2]byte
	binary.BigEndian.PutUint16(bytes[:], value)
	return binary.NativeEndian.Uint16(bytes[:])
}
