// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// LayoutVersion is LAYOUT_VERSION of bpf/types.h.
const LayoutVersion = 1

// Address is an address in a key or value: 16 bytes in network order, IPv4 as v4-mapped IPv6.
type Address [16]byte

// AddressOf returns a in map form. The zone of an IPv6 address is dropped.
func AddressOf(a netip.Addr) Address { return a.As16() }

// Addr returns the address, a v4-mapped one as IPv4.
func (a Address) Addr() netip.Addr { return netip.AddrFrom16(a).Unmap() }

// Frontend is the key of services (struct frontend).
type Frontend struct {
	Address  Address
	Port     uint16
	Protocol uint8
	_        uint8
}

// Check returns the frontend_check of a service under this key: a fold of the key that a program compares to tell
// that the value it reads belongs to the key it looked up. bpf/frontend.h computes the same.
func (f Frontend) Check() uint32 {
	const golden = 0x9e3779b1 // 2^32 divided by the golden ratio, odd
	var h uint32
	for i := 0; i < len(f.Address); i += 4 {
		h = (h ^ binary.NativeEndian.Uint32(f.Address[i:])) * golden
	}
	h = (h ^ (uint32(f.Port) | uint32(f.Protocol)<<16)) * golden
	return h ^ h>>15
}

// Run is consecutive cells of slots (struct run).
type Run struct {
	Base, Count uint32
}

// ServiceFlags is enum service_flag.
type ServiceFlags uint32

// The bits of ServiceFlags.
const (
	ServiceInternalLocal ServiceFlags = 1 << iota
	ServiceExternalLocal
	ServiceInternalDrop
	ServiceExternalDrop
	ServiceSourceRanges
	ServicePolicyLocal
)

// ServiceKind is enum service_kind.
type ServiceKind uint8

// The kinds of frontends.
const (
	KindClusterIP ServiceKind = iota + 1
	KindExternalIP
	KindLoadBalancer
	KindNodePort
)

// Service is the value of services (struct service).
type Service struct {
	ServiceID       uint32
	FrontendCheck   uint32
	Internal        Run
	External        Run
	Flags           ServiceFlags
	AffinityTimeout uint32 // seconds, 0: none
	Kind            ServiceKind
	Algorithm       uint8
	_               [6]uint8
}

// BackendFlags is enum backend_flag.
type BackendFlags uint32

// The bits of BackendFlags.
const (
	BackendCluster BackendFlags = 1 << iota
	BackendLocal
	BackendOnNode
)

// Backend is the value of backends (struct backend); its key is BackendID.
type Backend struct {
	BackendID uint32
	ServiceID uint32
	Address   Address
	Port      uint16
	Protocol  uint8
	_         uint8
	Flags     BackendFlags
}

// AddressFlags is enum address_flag, the value of addresses.
type AddressFlags uint32

// The bits of AddressFlags.
const (
	AddressClusterIP AddressFlags = 1 << iota
	AddressNodePorts
	AddressOnNode
	AddressService
)

// ServiceName is the value of service_names (struct service_name).
type ServiceName struct {
	Namespace [64]byte
	Name      [64]byte
	Port      [64]byte
	Protocol  uint8
	Family    uint8
	_         [6]uint8
}

// Text returns a string of a key or value, which ends with its first zero byte.
func Text(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// SourceRange is the key of source_ranges (struct source_range). PrefixBits counts the 32 bits of ServiceID and the
// prefix of the v4-mapped address.
type SourceRange struct {
	PrefixBits uint32
	ServiceID  uint32
	Address    Address
}

// AffinityKey is the key of affinity (struct affinity_key).
type AffinityKey struct {
	Client      Address
	NetnsCookie uint64
	ServiceID   uint32
	_           uint32
}

// AffinityValue is the value of affinity (struct affinity_value).
type AffinityValue struct {
	LastUsedNs uint64 // CLOCK_MONOTONIC
	BackendID  uint32
	_          uint32
}

// ServiceStats is one CPU's, or the sum of all CPUs', counters of a service port (struct service_stats).
type ServiceStats struct {
	Connections uint64
	Refused     uint64
	NoBackend   uint64
}

// Meta is the element of meta (struct meta).
type Meta struct {
	LayoutVersion uint32
	NextBackendID uint32
}
