// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// inspect tells a socket's two views apart. The kernel's own comes from /proc/net, which no cgroup program touches.
func (s *sockets) inspect(in InspectRequest) (InspectResult, error) {
	opened, err := s.find(in.Socket)
	if err != nil {
		return InspectResult{}, err
	}
	var result InspectResult
	if local, err := unix.Getsockname(opened.fd); err == nil {
		result.Local = addrPort(local)
	}
	peer, err := unix.Getpeername(opened.fd)
	if err == nil {
		result.Peer = addrPort(peer)
	}
	result.PeerErrno = errnoName(err)
	var stat unix.Stat_t
	if err := unix.Fstat(opened.fd, &stat); err != nil {
		return result, fmt.Errorf("stat socket: %w", err)
	}
	result.KernelLocal, result.KernelRemote, err = kernelAddresses(opened, stat.Ino)
	return result, err
}

// kernelAddresses finds the socket's line by its inode. An MPTCP socket has none of its own: its first subflow is a TCP
// socket without inode.
func kernelAddresses(s *socket, inode uint64) (local, remote netip.AddrPort, err error) {
	table := "/proc/thread-self/net/tcp"
	if s.network == UDP {
		table = "/proc/thread-self/net/udp"
	}
	if s.family == 6 {
		table += "6"
	}
	file, err := os.Open(table)
	if err != nil {
		return local, remote, fmt.Errorf("read the kernel's sockets: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[9] != strconv.FormatUint(inode, 10) {
			continue
		}
		if local, err = parseProcAddress(fields[1]); err != nil {
			return local, remote, err
		}
		remote, err = parseProcAddress(fields[2])
		return local, remote, err
	}
	return local, remote, lines.Err()
}

// parseProcAddress reads "0100007F:1F90": 32-bit words in the machine's order, then the port.
func parseProcAddress(text string) (netip.AddrPort, error) {
	address, port, found := strings.Cut(text, ":")
	bytes, err := hex.DecodeString(address)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if !found || err != nil || portErr != nil || len(bytes)%4 != 0 {
		return netip.AddrPort{}, errors.Join(fmt.Errorf("parse socket address %q", text), err, portErr)
	}
	for word := 0; word < len(bytes); word += 4 {
		binary.NativeEndian.PutUint32(bytes[word:], binary.BigEndian.Uint32(bytes[word:]))
	}
	parsed, ok := netip.AddrFromSlice(bytes)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("parse socket address %q", text)
	}
	return netip.AddrPortFrom(parsed, uint16(number)), nil
}
