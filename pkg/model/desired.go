// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"net/netip"
	"strings"
	"time"
)

// ServicePortName identifies a service port: one port of one Service, in one family.
type ServicePortName struct {
	ServiceName
	Port     string
	Protocol Protocol
	Family   Family
}

// ServicePort is the desired state of one service port.
type ServicePort struct {
	Name ServicePortName
	// Backends is every endpoint that is in one of the two sets, sorted by address and port, each once.
	Backends []Backend
	// Frontends are those this service port has won, sorted; another Service's older claim is a Problem.
	Frontends []Frontend
	Affinity  time.Duration
	// SourceRanges guard the frontends of kind LoadBalancer, sorted, each once; empty: no filter.
	SourceRanges []netip.Prefix
}

// NoLocal tells which clients find the local set empty although endpoints exist elsewhere: those of the ClusterIP
// (internal) and those of the other frontends (external). kube-proxy counts both in
// sync_proxy_rules_no_local_endpoints_total.
func (p ServicePort) NoLocal() (internal, external bool) {
	for _, b := range p.Backends {
		if b.Local {
			return false, false
		}
	}
	for _, f := range p.Frontends {
		if f.Kind == ClusterIP {
			internal = internal || f.Internal.Drop
		} else {
			external = external || f.External.Drop
		}
	}
	return internal, external
}

// Backend is one endpoint of one service port.
type Backend struct {
	Address netip.Addr
	Port    uint16
	// Cluster and Local tell which sets the backend is in: the cluster set follows topology hints, the local set
	// locality. At least one is true.
	Cluster, Local bool
	// OnNode is true for an endpoint on this node.
	OnNode bool
}

// Kind is the kind of a frontend.
type Kind uint8

// The kinds of frontends.
const (
	ClusterIP Kind = iota + 1
	ExternalIP
	LoadBalancer
	NodePort
)

// String returns the word for k that messages use.
func (k Kind) String() string {
	switch k {
	case ClusterIP:
		return "ClusterIP"
	case ExternalIP:
		return "external IP"
	case LoadBalancer:
		return "load-balancer IP"
	case NodePort:
		return "node port"
	}
	return "unknown"
}

// FrontendKey is what a client dials. A node port has the unspecified address of its family.
type FrontendKey struct {
	Address  netip.Addr
	Port     uint16
	Protocol Protocol
}

// String returns address:port/protocol.
func (k FrontendKey) String() string {
	return netip.AddrPortFrom(k.Address, k.Port).String() + "/" + k.Protocol.String()
}

// Compare orders keys by address, port and protocol.
func (k FrontendKey) Compare(o FrontendKey) int {
	return cmp.Or(k.Address.Compare(o.Address), cmp.Compare(k.Port, o.Port), cmp.Compare(k.Protocol, o.Protocol))
}

// Frontend is one address of one service port, and what each kind of client gets there.
type Frontend struct {
	FrontendKey
	Kind Kind
	// Internal is for clients inside the cluster (pods that detect-local recognises, the node's own processes);
	// External is for all others.
	Internal, External Target
	// PolicyLocal is externalTrafficPolicy: Local; it is false on a ClusterIP.
	PolicyLocal bool
}

// Target is the set of backends a client is given and the answer when the set is empty.
type Target struct {
	// Local chooses the local set, else the cluster set.
	Local bool
	// Drop tells what an empty set means: true, usable endpoints exist elsewhere and the policy excludes them, the
	// packet is dropped; false, there is none anywhere, it is rejected. It is false for the cluster set, which is
	// empty in the second case only; it says nothing about a set that is not empty.
	Drop bool
}

// HealthCheck is what the health port of a Service answers, in one family.
type HealthCheck struct {
	Family Family
	Port   uint16
	// LocalReady is the number of distinct addresses among the ready endpoints on this node. Terminating endpoints
	// do not count, though they may still be given clients: the load balancer is to stop first.
	LocalReady int
}

// Problem is something a user must know about an object. It has no effect on other objects.
type Problem struct {
	Service ServiceName
	// Reason is a CamelCase word, stable, as in Kubernetes Events: one of the Reason constants.
	Reason string
	// Message names the field and the value, and the other object where there is one.
	Message string
}

// The reasons of Problems.
const (
	// ReasonFrontendConflict: another Service, or another port or address of the same one, has this frontend.
	ReasonFrontendConflict = "FrontendConflict"
	// ReasonDuplicatePort: two ports have the same name and protocol.
	ReasonDuplicatePort = "DuplicatePort"
	// ReasonInvalidAddress: an address of the Service is none that a node may translate.
	ReasonInvalidAddress = "InvalidAddress"
	// ReasonUnusedAddress: an external IP is of a family in which the Service has no ClusterIP.
	ReasonUnusedAddress = "UnusedAddress"
	// ReasonUnusedSlice: an EndpointSlice is of a family in which the Service has no ClusterIP.
	ReasonUnusedSlice = "UnusedEndpointSlice"
	// ReasonInvalidEndpoint: an endpoint has an address that no other machine could mean, or none of its slice's
	// family.
	ReasonInvalidEndpoint = "InvalidEndpointAddress"
)

// compareFrontends is the order of ServicePort.Frontends.
func compareFrontends(a, b Frontend) int { return a.FrontendKey.Compare(b.FrontendKey) }

// comparePrefixes is the order of ServicePort.SourceRanges.
func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// compareSlices is the order in which the slices of a Service are merged.
func compareSlices(a, b *slice) int {
	return cmp.Or(strings.Compare(a.name.Namespace, b.name.Namespace), strings.Compare(a.name.Name, b.name.Name))
}
