// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a non-blocking socket; waiting is done by poll with a deadline.
type socket struct {
	fd      int
	network string
	family  int
	partial []byte // of a TCP line
}

// sockets are what the process has open, by the numbers that it gave out.
type sockets struct {
	mutex sync.Mutex
	next  int
	open  map[int]interface{ Close() error }
	loops map[int]*loop
}

func newSockets() *sockets {
	return &sockets{open: map[int]interface{ Close() error }{}, loops: map[int]*loop{}}
}

func (s *sockets) operations() Operations {
	return Operations{
		"listen":         Typed(s.listen),
		"socket":         Typed(s.socket),
		"connect":        Typed(s.connect),
		"send":           Typed(s.send),
		"receive":        Typed(s.receive),
		"inspect":        Typed(s.inspect),
		"close":          Typed(s.close),
		"connects":       Typed(s.connects),
		"start-connects": Typed(s.startConnects),
		"stop-connects":  Typed(s.stopConnects),
		"start-capture":  Typed(s.startCapture),
		"stop-capture":   Typed(s.stopCapture),
		"ping":           Typed(ping),
		"arp":            Typed(arp),
	}
}

func (s *sockets) keep(opened interface{ Close() error }) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.next++
	s.open[s.next] = opened
	return s.next
}

func (s *sockets) find(number int) (*socket, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if found, ok := s.open[number].(*socket); ok {
		return found, nil
	}
	return nil, errUnknownSocket
}

func (s *sockets) close(in InspectRequest) (Outcome, error) {
	s.mutex.Lock()
	opened, found := s.open[in.Socket]
	delete(s.open, in.Socket)
	s.mutex.Unlock()
	if !found {
		return Outcome{}, errUnknownSocket
	}
	return outcome(time.Now(), opened.Close()), nil
}

func (s *sockets) socket(in SocketRequest) (SocketResult, error) {
	begin := time.Now()
	opened, err := newSocket(in.Network, in.Family, in.OnlyIPv6)
	if err != nil {
		return SocketResult{Outcome: outcome(begin, err)}, nil
	}
	if in.Bind.IsValid() {
		err = unix.Bind(opened.fd, opened.sockaddr(in.Bind))
	}
	if err == nil && in.Listen {
		err = unix.Listen(opened.fd, 16)
	}
	if err != nil {
		opened.Close()
		return SocketResult{Outcome: outcome(begin, err)}, nil
	}
	return SocketResult{Outcome: outcome(begin, nil), Socket: s.keep(opened)}, nil
}

func (s *sockets) connect(in ConnectRequest) (Outcome, error) {
	opened, err := s.find(in.Socket)
	if err != nil {
		return Outcome{}, err
	}
	begin := time.Now()
	return outcome(begin, opened.connect(in.Address, begin.Add(in.Timeout))), nil
}

func (s *sockets) send(in SendRequest) (Outcome, error) {
	opened, err := s.find(in.Socket)
	if err != nil {
		return Outcome{}, err
	}
	begin := time.Now()
	return outcome(begin, opened.send([]byte(in.Data), in.To)), nil
}

func (s *sockets) receive(in ReceiveRequest) (ReceiveResult, error) {
	opened, err := s.find(in.Socket)
	if err != nil {
		return ReceiveResult{}, err
	}
	begin := time.Now()
	data, from, err := opened.receive(begin.Add(in.Timeout))
	if errors.Is(err, errEOF) {
		return ReceiveResult{Outcome: outcome(begin, nil), Data: string(data), EOF: true}, nil
	}
	return ReceiveResult{Outcome: outcome(begin, err), Data: string(data), From: from}, nil
}

var (
	errTimeout = errors.New(Timeout)
	errEOF     = errors.New("end of stream")
)

func outcome(begin time.Time, err error) Outcome {
	return Outcome{Errno: errnoName(err), Duration: time.Since(begin)}
}

// errnoName is the kernel's name of the error.
func errnoName(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return ""
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func newSocket(network string, family int, onlyIPv6 bool) (*socket, error) {
	kind, protocol := unix.SOCK_STREAM, unix.IPPROTO_TCP
	switch network {
	case TCP:
	case UDP:
		kind, protocol = unix.SOCK_DGRAM, unix.IPPROTO_UDP
	case MPTCP:
		protocol = unix.IPPROTO_MPTCP
	default:
		return nil, fmt.Errorf("unknown network %q", network)
	}
	domain := unix.AF_INET
	if family == 6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	if family == 6 {
		// The default is a setting of the machine: it is always said.
		value := 0
		if onlyIPv6 {
			value = 1
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, value); err != nil {
			unix.Close(fd)
			return nil, err
		}
	}
	return &socket{fd: fd, network: network, family: family}, nil
}

func (s *socket) Close() error { return unix.Close(s.fd) }

// abort closes a TCP socket with a reset, so that loops of connections leave no TIME_WAIT behind.
func (s *socket) abort() {
	_ = unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	s.Close()
}

func (s *socket) sockaddr(address netip.AddrPort) unix.Sockaddr {
	if s.family == 6 {
		return &unix.SockaddrInet6{Port: int(address.Port()), Addr: address.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().Unmap().As4()}
}

func (s *socket) connect(address netip.AddrPort, deadline time.Time) error {
	err := unix.Connect(s.fd, s.sockaddr(address))
	if !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	if err := s.wait(unix.POLLOUT, deadline); err != nil {
		return err
	}
	value, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if value != 0 {
		return unix.Errno(value)
	}
	return nil
}

func (s *socket) send(data []byte, to netip.AddrPort) error {
	if to.IsValid() {
		return unix.Sendto(s.fd, data, unix.MSG_NOSIGNAL, s.sockaddr(to))
	}
	_, err := unix.SendmsgN(s.fd, data, nil, nil, unix.MSG_NOSIGNAL)
	return err
}

// receive reads one datagram, or one line of a stream.
func (s *socket) receive(deadline time.Time) ([]byte, netip.AddrPort, error) {
	buffer := make([]byte, 65536)
	for {
		count, from, err := unix.Recvfrom(s.fd, buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if err := s.wait(unix.POLLIN, deadline); err != nil {
				return nil, netip.AddrPort{}, err
			}
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, netip.AddrPort{}, err
		case s.network == UDP:
			return buffer[:count], addrPort(from), nil
		case count == 0:
			return s.partial, netip.AddrPort{}, errEOF
		}
		if s.partial = append(s.partial, buffer[:count]...); s.partial[len(s.partial)-1] == '\n' {
			line := s.partial
			s.partial = nil
			return line, netip.AddrPort{}, nil
		}
	}
}

func (s *socket) wait(events int16, deadline time.Time) error {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return errTimeout
		}
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: events}}, int(left/time.Millisecond)+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ready > 0 {
			return nil
		}
	}
}

func addrPort(address unix.Sockaddr) netip.AddrPort {
	switch address := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(address.Addr), uint16(address.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(address.Addr), uint16(address.Port))
	}
	return netip.AddrPort{}
}
