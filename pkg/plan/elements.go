// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Set is one or both of the sets of a service port's backends.
type Set uint8

// The sets.
const (
	Cluster Set = 1 << iota
	Local
)

// String returns the set's word.
func (s Set) String() string {
	switch s {
	case 0:
		return "no"
	case Cluster:
		return "cluster"
	case Local:
		return "local"
	}
	return "cluster and local"
}

// Run is consecutive cells of slots.
type Run struct{ Base, Count uint32 }

// String returns base+count.
func (r Run) String() string { return fmt.Sprintf("%d+%d", r.Base, r.Count) }

// Backend is one element of backends.
type Backend struct {
	ID     uint32
	Port   uint16
	Sets   Set
	OnNode bool
	// Address is never v4-mapped.
	Address netip.Addr
}

func (b Backend) describe(service uint32) string {
	return fmt.Sprintf("%s of service %d, in %s set%s", netip.AddrPortFrom(b.Address, b.Port), service, b.Sets,
		when(b.OnNode, ", on node"))
}

// compareBackends is the order of a service port's backends in the mirror.
func compareBackends(a, b Backend) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.ID, b.ID))
}

// Target is what one kind of client is given at a frontend.
type Target struct {
	Run Run
	Set Set
	// Drop is what an empty run means: drop, else reject. It is false when the run is not empty.
	Drop bool
}

// String returns the run and its set, or the answer.
func (t Target) String() string {
	switch {
	case t.Run.Count > 0:
		return fmt.Sprintf("%s run %s", t.Set, t.Run)
	case t.Drop:
		return "drop"
	}
	return "reject"
}

// Frontend is the value of one element of services.
type Frontend struct {
	Service            uint32
	Kind               model.Kind
	PolicyLocal        bool
	SourceRanges       bool
	Internal, External Target
	// Affinity is in seconds, 0 for none.
	Affinity uint32
}

// String returns all of it.
func (f Frontend) String() string {
	return join(fmt.Sprintf("service %d", f.Service), f.Kind.String(), "internal "+f.Internal.String(),
		"external "+f.External.String(), when(f.PolicyLocal, "policy local"), when(f.SourceRanges, "source ranges"),
		when(f.Affinity > 0, fmt.Sprintf("affinity %d s", f.Affinity)))
}

// AddressFlags is what is known of an address.
type AddressFlags uint8

// The flags: the first two follow from the frontends on the address, the others from the node's devices.
const (
	// ClusterIP: an address all of whose ports are ours.
	ClusterIP AddressFlags = 1 << iota
	// Service: an external or load-balancer address, whose declared ports are ours.
	Service
	// NodePorts: an address of this node that serves node ports.
	NodePorts
	// OnNode: an address on one of this node's devices.
	OnNode
	// Other: found in the map, and given by no plan.
	Other

	fromFrontends = ClusterIP | Service
	fromNode      = NodePorts | OnNode
)

// String returns the flags' words.
func (f AddressFlags) String() string {
	return join(when(f&ClusterIP != 0, "ClusterIP"), when(f&Service != 0, "service"),
		when(f&NodePorts != 0, "node ports"), when(f&OnNode != 0, "on node"), when(f&Other != 0, "other"))
}

// flagOf is the flag that a frontend gives its address.
func flagOf(k model.Kind) AddressFlags {
	switch k {
	case model.ClusterIP:
		return ClusterIP
	case model.ExternalIP, model.LoadBalancer:
		return Service
	}
	return 0 // a node port's address is the unspecified one
}

// ItemKind is a kind of Item.
type ItemKind uint8

// The kinds of items.
const (
	PortItem ItemKind = iota + 1
	BackendItem
	RunItem
	RangeItem
)

// Item is something that is programmed and not found by new readers any more.
type Item struct {
	Kind    ItemKind
	Service uint32
	// Backend is set for BackendItem, with Sets and OnNode unset.
	Backend Backend
	// Run is set for RunItem, Prefix for RangeItem.
	Run    Run
	Prefix netip.Prefix
}

// String returns what and whose it is.
func (i Item) String() string {
	switch i.Kind {
	case PortItem:
		return fmt.Sprintf("service %d", i.Service)
	case BackendItem:
		return fmt.Sprintf("backend %d of service %d", i.Backend.ID, i.Service)
	case RunItem:
		return fmt.Sprintf("run %s of service %d", i.Run, i.Service)
	}
	return fmt.Sprintf("source range %s of service %d", i.Prefix, i.Service)
}

func backendItem(service uint32, b Backend) Item {
	b.Sets, b.OnNode = 0, false
	return Item{Kind: BackendItem, Service: service, Backend: b}
}

// Garbage is an Item that retired. When it is revived and retires again, that is another Garbage.
type Garbage struct {
	Item     Item
	sequence uint64
}

// FullError tells that a map cannot hold what a service port needs.
type FullError struct {
	Map  string
	Size uint32
}

// Error names the map and its size.
func (e *FullError) Error() string {
	return fmt.Sprintf("map %s is full at %d elements", e.Map, e.Size)
}

// Failure is a service port that could not be planned. What is programmed for it stays.
type Failure struct {
	Port model.ServicePortName
	Err  error
}
