// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"net/netip"
	"strings"
	"time"
)

// Family is an IP family: 4 or 6.
type Family uint8

// The two families. A v4-mapped IPv6 address counts as IPv4 everywhere in shunt.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of a; a v4-mapped address is IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6", the words of the Kubernetes API.
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// Protocol is an IP protocol number (IANA).
type Protocol uint8

// The protocols a service port can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the Kubernetes API's word for p.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return "unknown"
}

// ServiceName identifies a Service.
type ServiceName struct {
	Namespace, Name string
}

// String returns namespace/name.
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then by name.
func (n ServiceName) Compare(o ServiceName) int {
	return cmp.Or(strings.Compare(n.Namespace, o.Namespace), strings.Compare(n.Name, o.Name))
}

// SliceName identifies an EndpointSlice.
type SliceName struct {
	Namespace, Name string
}

// String returns namespace/name.
func (n SliceName) String() string { return n.Namespace + "/" + n.Name }

// Service is what the model needs of a v1 Service. Addresses are canonical (netip, unmapped); the source has parsed
// them, and reported and left out what does not parse. A Service that kube-proxy skips (headless, ExternalName,
// another proxy's by label) is never given to the model.
type Service struct {
	ServiceName
	// Created decides between two Services that claim one frontend: the older one has it.
	Created time.Time
	// ClusterIPs has at most one address of each family.
	ClusterIPs  []netip.Addr
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are the ingress addresses of mode VIP; those of mode Proxy are left out by the source.
	LoadBalancerIPs []netip.Addr
	// SourceRanges guard the load-balancer addresses, by family: a family without a range, or with a /0 among its
	// ranges, is open. The model sees to that, and to host bits.
	SourceRanges []netip.Prefix
	// InternalLocal and ExternalLocal are the traffic policies; ExternalLocal is false where the API's value has no
	// meaning for the Service's type (docs/semantics.md, 1.5).
	InternalLocal, ExternalLocal bool
	// Affinity is the timeout of ClientIP session affinity, 0 for none.
	Affinity time.Duration
	// HealthCheckNodePort is 0 unless the Service is of type LoadBalancer with externalTrafficPolicy Local.
	HealthCheckNodePort uint16
	Ports               []Port
}

// Port is one port of a Service.
type Port struct {
	Name     string
	Protocol Protocol
	Port     uint16
	// NodePort is 0 for none; it counts whatever the Service's type is.
	NodePort uint16
}

// EndpointSlice is what the model needs of a discovery/v1 EndpointSlice.
type EndpointSlice struct {
	SliceName
	// Service is the owner, from the label kubernetes.io/service-name.
	Service ServiceName
	Family  Family
	Ports   []SlicePort
	// Endpoints are in the order of the object.
	Endpoints []Endpoint
}

// SlicePort is a resolved target port. The source leaves out ports without a name or number.
type SlicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Endpoint is one endpoint of a slice: its first address, and its conditions with the API's defaults applied.
type Endpoint struct {
	Address                     netip.Addr
	NodeName                    string
	Ready, Serving, Terminating bool
	// ForZones and ForNodes are the topology hints; empty means no hint.
	ForZones, ForNodes []string
}

// Node is this node as the model sees it.
type Node struct {
	Name string
	// Zone is the label topology.kubernetes.io/zone, empty when it is missing.
	Zone string
}
