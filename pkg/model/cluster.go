// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"net/netip"
	"slices"
	"unique"
)

// Config is what a Cluster knows from the start.
type Config struct {
	Node Node
}

// Cluster holds the objects of the source and derives the desired state of this node from them. Setting or deleting
// an object marks the Services whose desired state may have changed, and costs about as much as that object and those
// Services are big. Objects may arrive in any order, slices before their Service and without one.
//
// One goroutine owns a Cluster.
type Cluster struct {
	here     place
	onNode   map[netip.Addr]struct{}
	services map[ServiceName]*service
	slices   map[SliceName]*slice
	claims   claims
	// clusterIPs tells which Services an address on the node's devices concerns.
	clusterIPs map[netip.Addr][]*service
	dirty      map[ServiceName]struct{}
	// merged is scratch memory of merge.
	merged []candidate
}

// New returns an empty Cluster.
func New(config Config) *Cluster {
	return &Cluster{
		here:       placeOf(config.Node),
		services:   map[ServiceName]*service{},
		slices:     map[SliceName]*slice{},
		claims:     claims{},
		clusterIPs: map[netip.Addr][]*service{},
		dirty:      map[ServiceName]struct{}{},
	}
}

// place is where this node is, in the form in which endpoints have their nodes and hints.
type place struct {
	node, zone unique.Handle[string]
}

func placeOf(n Node) place { return place{unique.Make(n.Name), unique.Make(n.Zone)} }

// SetService adds or replaces a Service. The Cluster keeps s: it must not change afterwards.
func (c *Cluster) SetService(s *Service) {
	r := c.record(s.ServiceName)
	if r.object != nil && r.object.equal(s) {
		return
	}
	c.replaceObject(r, s)
}

// DeleteService removes a Service. Its slices stay, as it may come back.
func (c *Cluster) DeleteService(name ServiceName) {
	r := c.services[name]
	if r == nil || r.object == nil {
		return
	}
	c.replaceObject(r, nil)
	c.dropEmpty(r)
}

// SetSlice adds or replaces an EndpointSlice. A slice is known by its own name alone: one that names another Service
// than before moves there. The Cluster keeps nothing of s.
func (c *Cluster) SetSlice(s *EndpointSlice) {
	next, previous := newSlice(s), c.slices[s.SliceName]
	if previous != nil {
		if previous.equal(next) {
			return
		}
		c.detach(previous)
	}
	c.slices[s.SliceName] = next
	c.attach(next)
}

// DeleteSlice removes an EndpointSlice.
func (c *Cluster) DeleteSlice(name SliceName) {
	if s := c.slices[name]; s != nil {
		delete(c.slices, name)
		c.detach(s)
	}
}

// SetNode tells what this node is called and in which zone it is.
func (c *Cluster) SetNode(n Node) {
	here := placeOf(n)
	renamed, moved := here.node != c.here.node, here.zone != c.here.zone
	c.here = here
	if !renamed && !moved {
		return
	}
	for _, r := range c.services {
		if (renamed && len(r.slices) > 0) || (moved && r.zoned()) {
			c.mark(r)
		}
	}
}

// SetLocalAddresses tells which addresses the node's devices have. A ClusterIP among them is served by whoever
// configured it (node-local DNS) and has no frontend here. External and load-balancer addresses are translated all
// the same, at their declared ports.
func (c *Cluster) SetLocalAddresses(addresses []netip.Addr) {
	next := make(map[netip.Addr]struct{}, len(addresses))
	for _, a := range addresses {
		a = canonical(a)
		next[a] = struct{}{}
		if _, known := c.onNode[a]; !known {
			c.markAll(c.clusterIPs[a])
		}
	}
	for a := range c.onNode {
		if _, stays := next[a]; !stays {
			c.markAll(c.clusterIPs[a])
		}
	}
	c.onNode = next
}

// TakeDirty returns the Services whose desired state may have changed since the last call, deleted ones among them,
// sorted.
func (c *Cluster) TakeDirty() []ServiceName {
	names := slices.SortedFunc(maps.Keys(c.dirty), ServiceName.Compare)
	c.dirty = map[ServiceName]struct{}{}
	return names
}

// Dirty tells whether TakeDirty would return anything.
func (c *Cluster) Dirty() bool { return len(c.dirty) > 0 }

// Has tells whether a Service exists.
func (c *Cluster) Has(name ServiceName) bool {
	r := c.services[name]
	return r != nil && r.object != nil
}

// Services returns the names of all Services, sorted.
func (c *Cluster) Services() []ServiceName {
	names := make([]ServiceName, 0, len(c.services))
	for name, r := range c.services {
		if r.object != nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, ServiceName.Compare)
	return names
}

// record returns the record of a name, which may be new and empty.
func (c *Cluster) record(name ServiceName) *service {
	r := c.services[name]
	if r == nil {
		r = &service{name: name}
		c.services[name] = r
	}
	return r
}

// dropEmpty forgets a record that holds nothing.
func (c *Cluster) dropEmpty(r *service) {
	if r.object == nil && len(r.slices) == 0 {
		delete(c.services, r.name)
	}
}

// replaceObject gives r another object, or none.
func (c *Cluster) replaceObject(r *service, s *Service) {
	before, created, addresses := r.claims(), r.created(), r.addresses
	r.assign(s)
	c.dirty[r.name] = struct{}{}
	if !slices.Equal(addresses, r.addresses) {
		c.unindex(r, addresses)
		c.index(r)
	}
	after := r.claims()
	if slices.Equal(before, after) && created.Equal(r.created()) {
		return
	}
	for _, old := range before {
		c.markAll(c.claims.release(old))
	}
	for _, claim := range after {
		c.markAll(c.claims.add(claim))
	}
}

// index and unindex keep clusterIPs.
func (c *Cluster) index(r *service) {
	for _, a := range r.addresses {
		if a.kind == ClusterIP {
			c.clusterIPs[a.Addr] = append(c.clusterIPs[a.Addr], r)
		}
	}
}

func (c *Cluster) unindex(r *service, addresses []address) {
	for _, a := range addresses {
		if a.kind != ClusterIP {
			continue
		}
		left := slices.DeleteFunc(c.clusterIPs[a.Addr], func(o *service) bool { return o == r })
		if len(left) == 0 {
			delete(c.clusterIPs, a.Addr)
		} else {
			c.clusterIPs[a.Addr] = left
		}
	}
}

// attach and detach add a slice to its Service and remove it.
func (c *Cluster) attach(s *slice) {
	r := c.record(s.service)
	i, _ := slices.BinarySearchFunc(r.slices, s, compareSlices)
	r.slices = slices.Insert(r.slices, i, s)
	c.mark(r)
}

func (c *Cluster) detach(s *slice) {
	r := c.services[s.service]
	i, _ := slices.BinarySearchFunc(r.slices, s, compareSlices)
	r.slices = slices.Delete(r.slices, i, i+1)
	c.mark(r)
	c.dropEmpty(r)
}

// mark notes that the desired state of r may have changed. Slices without a Service have none.
func (c *Cluster) mark(r *service) {
	if r.object != nil {
		c.dirty[r.name] = struct{}{}
	}
}

func (c *Cluster) markAll(records []*service) {
	for _, r := range records {
		c.mark(r)
	}
}
