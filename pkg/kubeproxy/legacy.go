// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacyTable is a table of the kernel's own iptables (not of iptables-nft).
type legacyTable struct {
	command string // iptables or ip6tables
	name    string
}

// String writes it as the command that lists it does.
func (t legacyTable) String() string { return t.command + " -t " + t.name }

// legacyTables returns the tables that exist. While there is none, nothing asks for them, because asking would create
// them.
func legacyTables(proc string) ([]legacyTable, error) {
	var tables []legacyTable
	for file, command := range map[string]string{"ip_tables_names": "iptables", "ip6_tables_names": "ip6tables"} {
		b, err := os.ReadFile(proc + "/thread-self/net/" + file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list iptables tables: %w", err)
		}
		for _, name := range strings.Fields(string(b)) {
			tables = append(tables, legacyTable{command, name})
		}
	}
	return tables, nil
}

// Of linux/netfilter_ipv4/ip_tables.h; those of IPv6 are the same.
const (
	iptGetInfo    = 64
	iptGetEntries = 65
	// iptNameSize is the size of a table's name, which begins both structures.
	iptNameSize = 32
	// iptInfoSize is the size of struct ipt_getinfo, whose last member is the size of the entries.
	iptInfoSize = iptNameSize + 4 + 5*4 + 5*4 + 4 + 4
	// iptEntries is where the entries of struct ipt_get_entries begin.
	iptEntries = iptNameSize + 8
)

// hasProxyChains reads a legacy table and looks for kube-proxy's chains in it. A chain is an entry that carries its
// name, a jump is a number; so the names are found without taking the entries apart.
func (t legacyTable) hasProxyChains() (bool, error) {
	entries, err := t.entries()
	if err != nil {
		return false, fmt.Errorf("read the table %s: %w", t, err)
	}
	return containsProxyChain(entries), nil
}

func containsProxyChain(entries []byte) bool {
	for {
		i := bytes.Index(entries, []byte(chainPrefix))
		if i < 0 {
			return false
		}
		name, rest, _ := bytes.Cut(entries[i:], []byte{0})
		if isProxyChain(string(name)) {
			return true
		}
		entries = rest
	}
}

func (t legacyTable) entries() ([]byte, error) {
	family, level := unix.AF_INET, unix.IPPROTO_IP
	if t.command == "ip6tables" {
		family, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	info := make([]byte, iptInfoSize)
	copy(info[:iptNameSize-1], t.name)
	if err := getsockopt(fd, level, iptGetInfo, info); err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(info[iptInfoSize-4:])
	entries := make([]byte, iptEntries+size)
	copy(entries[:iptNameSize-1], t.name)
	binary.NativeEndian.PutUint32(entries[iptNameSize:], size)
	// A table that was replaced in between has another size, which the kernel refuses with EAGAIN.
	if err := getsockopt(fd, level, iptGetEntries, entries); err != nil {
		return nil, err
	}
	return entries[iptEntries:], nil
}

// getsockopt passes a buffer that the kernel reads and writes, for which golang.org/x/sys has no function.
func getsockopt(fd, level, option int, buffer []byte) error {
	size := uint32(len(buffer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
