// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"
)

// A message is of a fixed size: what it asks for, and how much data follows it.
const (
	asksReply   = 'r'
	asksNothing = 's'
	sizeOffset  = 8
)

const (
	backlog       = 4096
	receiveBuffer = 4 << 20
)

func serve(at netip.AddrPort) (struct{}, error) {
	stream, err := bind(at, unix.SOCK_STREAM)
	if err != nil {
		return struct{}{}, err
	}
	if err := unix.Listen(stream, backlog); err != nil {
		return struct{}{}, fmt.Errorf("listen on %s: %w", at, err)
	}
	datagrams, err := bind(at, unix.SOCK_DGRAM)
	if err != nil {
		return struct{}{}, err
	}
	if err := unix.SetsockoptInt(datagrams, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
		return struct{}{}, fmt.Errorf("set buffer of %s: %w", at, err)
	}
	go serveStream(stream)
	go serveDatagrams(datagrams)
	return struct{}{}, nil
}

func bind(at netip.AddrPort, kind int) (int, error) {
	family, local := address(at)
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return 0, fmt.Errorf("set SO_REUSEADDR: %w", err)
	}
	if err := unix.Bind(fd, local); err != nil {
		return 0, fmt.Errorf("bind %s: %w", at, err)
	}
	return fd, nil
}

// serveStream serves one connection after the other: the clients are serial.
func serveStream(listener int) {
	runtime.LockOSThread()
	buffer := make([]byte, chunk)
	for {
		connection, err := retry(func() (int, error) {
			fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
			return fd, err
		})
		if err != nil {
			return // the process ends
		}
		_ = unix.SetsockoptInt(connection, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		for answer(connection, buffer) {
		}
		unix.Close(connection)
	}
}

// answer reads a message, and what it announces, and answers. False: there was none.
func answer(connection int, buffer []byte) bool {
	message := buffer[:messageSize]
	if readFull(connection, message) != nil {
		return false
	}
	left := binary.BigEndian.Uint64(message[sizeOffset:])
	for left > 0 {
		count, err := retry(func() (int, error) { return unix.Read(connection, buffer[:min(left, chunk)]) })
		if err != nil || count == 0 {
			return false
		}
		left -= uint64(count)
	}
	return writeFull(connection, buffer[:messageSize]) == nil
}

func serveDatagrams(socket int) {
	runtime.LockOSThread()
	buffer := make([]byte, messageSize)
	for {
		var from unix.Sockaddr
		count, err := retry(func() (count int, err error) {
			count, from, err = unix.Recvfrom(socket, buffer, 0)
			return count, err
		})
		if err == nil && count > 0 && buffer[0] == asksReply {
			_ = unix.Sendto(socket, buffer[:count], 0, from)
		}
	}
}

// retry repeats a system call that a signal of the runtime has interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		count, err := call()
		if !errors.Is(err, unix.EINTR) {
			return count, err
		}
	}
}

var errEnd = errors.New("the peer has closed")

func readFull(fd int, buffer []byte) error {
	for len(buffer) > 0 {
		count, err := retry(func() (int, error) { return unix.Read(fd, buffer) })
		if err != nil {
			return err
		}
		if count == 0 {
			return errEnd
		}
		buffer = buffer[count:]
	}
	return nil
}

func writeFull(fd int, buffer []byte) error {
	for len(buffer) > 0 {
		count, err := retry(func() (int, error) { return unix.Write(fd, buffer) })
		if err != nil {
			return err
		}
		buffer = buffer[count:]
	}
	return nil
}
