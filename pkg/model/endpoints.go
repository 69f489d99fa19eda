// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"net/netip"
	"slices"
)

// candidate is an endpoint under one of its ports.
type candidate struct {
	*endpoint
	port   uint16
	onNode bool
}

// merge returns the endpoints of a service port from all slices of the Service, sorted, each address and port once.
// The result is valid until the next call.
func (c *Cluster) merge(r *service, p Port, f Family) []candidate {
	all := c.merged[:0]
	for _, s := range r.slices {
		if s.family != f {
			continue
		}
		for _, sp := range s.ports {
			if sp.Name == p.Name && sp.Protocol == p.Protocol {
				all = c.appendCandidates(all, s, sp.Port)
			}
		}
	}
	slices.SortStableFunc(all, candidate.compare)
	c.merged = all
	return slices.CompactFunc(all, candidate.same)
}

func (c *Cluster) appendCandidates(all []candidate, s *slice, port uint16) []candidate {
	for i := range s.endpoints {
		e := &s.endpoints[i]
		// An endpoint without a node is remote, also to a node that does not know its own name.
		all = append(all, candidate{e, port, e.node == c.here.node && e.node.Value() != ""})
	}
	return all
}

// same tells whether two candidates are copies of one endpoint, which occurs while it moves between slices or when
// its address is used again.
func (a candidate) same(b candidate) bool { return a.address == b.address && a.port == b.port }

// compare orders candidates by address and port, and the better copy of the same endpoint first: one that is not on
// its way out, then a ready one, then one on this node; then the first by name of slice, as the sort is stable.
func (a candidate) compare(b candidate) int {
	return cmp.Or(
		a.address.Compare(b.address),
		cmp.Compare(a.port, b.port),
		trueLast(a.terminating, b.terminating),
		trueLast(b.ready, a.ready),
		trueLast(b.onNode, a.onNode),
	)
}

func trueLast(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// sets are the two endpoint sets of a service port, as conditions on an endpoint.
type sets struct {
	here place
	// usesCluster and usesLocal tell which sets anybody could be given.
	usesCluster, usesLocal bool
	topology               topology
	// clusterFallback and localFallback: without a ready member the set is made of endpoints that terminate and
	// still serve. Each set falls back for itself.
	clusterFallback, localFallback bool
	// usable tells whether the cluster has an endpoint for this service port at all, in whatever set.
	usable bool
}

// setsOf works out the sets of a port from all its endpoints.
func (c *Cluster) setsOf(r *service, p Port, f Family, all []candidate) sets {
	accessible := r.accessible(p, f)
	s := sets{
		here:            c.here,
		usesCluster:     !r.object.InternalLocal || accessible,
		usesLocal:       r.object.InternalLocal || (r.object.ExternalLocal && accessible),
		clusterFallback: true,
		localFallback:   true,
	}
	s.topology = topologyOf(all, c.here)
	for _, e := range all {
		s.usable = s.usable || e.usable()
		if e.ready {
			// The topology names this node or zone only if a ready endpoint is hinted to it.
			s.clusterFallback = false
			s.localFallback = s.localFallback && !e.onNode
		}
	}
	return s
}

func (s *sets) inCluster(e candidate) bool {
	if s.clusterFallback {
		return s.usesCluster && e.fallback()
	}
	return s.usesCluster && e.ready && s.topology.allows(e.endpoint, s.here)
}

func (s *sets) inLocal(e candidate) bool {
	if s.localFallback {
		return s.usesLocal && e.onNode && e.fallback()
	}
	return s.usesLocal && e.onNode && e.ready
}

// backends returns the members of the two sets.
func (s *sets) backends(all []candidate) []Backend {
	out := make([]Backend, 0, len(all))
	for _, e := range all {
		b := Backend{
			Address: e.address, Port: e.port,
			Cluster: s.inCluster(e), Local: s.inLocal(e), OnNode: e.onNode,
		}
		if b.Cluster || b.Local {
			out = append(out, b)
		}
	}
	return out
}

// Serving returns the endpoints of a service port that may keep the UDP flows they have, sorted: those that serve,
// ready or not, terminating or not, in whatever set. A flow to any other address and port is stale and can be ended.
func (c *Cluster) Serving(name ServicePortName) []netip.AddrPort {
	r := c.services[name.ServiceName]
	if r == nil || r.object == nil || !r.hasFamily(name.Family) {
		return nil
	}
	i := slices.IndexFunc(r.ports, func(p Port) bool { return p.Name == name.Port && p.Protocol == name.Protocol })
	if i < 0 {
		return nil
	}
	var out []netip.AddrPort
	for _, e := range c.merge(r, r.ports[i], name.Family) {
		// A ready endpoint is in the sets, so its flows are not stale even if its object denies that it serves.
		if e.serving || e.ready {
			out = append(out, netip.AddrPortFrom(e.address, e.port))
		}
	}
	return out
}

// HealthChecks returns what the health port of a Service answers, one for each family it has; none without a port.
func (c *Cluster) HealthChecks(name ServiceName) []HealthCheck {
	r := c.services[name]
	if r == nil || r.object == nil || r.object.HealthCheckNodePort == 0 {
		return nil
	}
	var out []HealthCheck
	for _, f := range []Family{IPv4, IPv6} {
		if r.hasFamily(f) {
			out = append(out, HealthCheck{f, r.object.HealthCheckNodePort, c.localReady(r, f)})
		}
	}
	return out
}

// localReady counts the addresses of ready endpoints on this node, over all ports of the Service.
func (c *Cluster) localReady(r *service, f Family) int {
	addresses := map[netip.Addr]struct{}{}
	for _, p := range r.ports {
		for _, e := range c.merge(r, p, f) {
			if e.ready && e.onNode {
				addresses[e.address] = struct{}{}
			}
		}
	}
	return len(addresses)
}
