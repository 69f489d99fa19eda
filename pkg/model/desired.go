// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
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
	// SourceRanges guard the frontends of kind LoadBalancer; empty: no filter.
	SourceRanges []netip.Prefix
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

// The kinds of frontends, in the order in which they win a contested address.
const (
	ClusterIP Kind = iota + 1
	ExternalIP
	LoadBalancer
	NodePort
)

// FrontendKey is what a client dials. A node port has the unspecified address of its family.
type FrontendKey struct {
	Address  netip.Addr
	Port     uint16
	Protocol Protocol
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
	// Drop: an empty set drops (usable endpoints exist elsewhere); otherwise it rejects.
	Drop bool
}

// Problem is something a user must know about an object. It has no effect on other objects.
type Problem struct {
	Service ServiceName
	// Reason is a CamelCase word, stable, as in Kubernetes Events.
	Reason string
	// Message names the field and the value, and the other object where there is one.
	Message string
}
