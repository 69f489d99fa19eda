// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// service is what is known under one Service's name.
type service struct {
	name ServiceName
	// object is nil while only slices are known. What follows is derived from it.
	object *Service
	// ports are those of the object, without duplicates.
	ports     []Port
	addresses []address
	problems  []Problem
	// slices are sorted by name, so that their order of arrival has no effect.
	slices []*slice
}

// address is an address that a Service is dialled at.
type address struct {
	netip.Addr
	kind Kind
}

// assign makes s the object of r.
func (r *service) assign(s *Service) {
	r.object, r.ports, r.addresses, r.problems = s, nil, nil, nil
	if s == nil {
		return
	}
	r.assignPorts(s.Ports)
	r.assignAddresses(s)
}

// assignPorts keeps the first of several ports of one name and protocol.
func (r *service) assignPorts(ports []Port) {
	type key struct {
		name     string
		protocol Protocol
	}
	if len(ports) < 2 {
		r.ports = ports
		return
	}
	seen := make(map[key]struct{}, len(ports))
	r.ports = make([]Port, 0, len(ports))
	for i, p := range ports {
		k := key{p.Name, p.Protocol}
		if _, twice := seen[k]; twice {
			r.problem(ReasonDuplicatePort, "spec.ports[%d]: a port named %q with protocol %v exists already, this one "+
				"(%d) is not served", i, p.Name, p.Protocol, p.Port)
			continue
		}
		seen[k] = struct{}{}
		r.ports = append(r.ports, p)
	}
}

// assignAddresses keeps the addresses of the families in which the Service has a ClusterIP: in another family the
// Service does not exist.
func (r *service) assignAddresses(s *Service) {
	for _, a := range s.ClusterIPs {
		if a = canonical(a); r.servable("spec.clusterIPs", a) && !r.hasFamily(FamilyOf(a)) {
			r.addresses = append(r.addresses, address{a, ClusterIP})
		}
	}
	// Load-balancer addresses come first: one that is listed as an external IP too is guarded by the source ranges.
	for _, a := range s.LoadBalancerIPs {
		if a = canonical(a); r.servable("status.loadBalancer.ingress", a) && r.hasFamily(FamilyOf(a)) {
			r.addAddress(a, LoadBalancer)
		}
	}
	for _, a := range s.ExternalIPs {
		if a = canonical(a); !r.servable("spec.externalIPs", a) {
			continue
		}
		if !r.hasFamily(FamilyOf(a)) {
			r.problem(ReasonUnusedAddress, "spec.externalIPs: %v is not served: the Service has no %v ClusterIP", a,
				FamilyOf(a))
			continue
		}
		r.addAddress(a, ExternalIP)
	}
	r.addresses = slices.Clip(r.addresses)
}

// addAddress adds an external address unless it is there already.
func (r *service) addAddress(a netip.Addr, kind Kind) {
	twice := slices.ContainsFunc(r.addresses, func(o address) bool { return o.Addr == a && o.kind != ClusterIP })
	if !twice {
		r.addresses = append(r.addresses, address{a, kind})
	}
}

// servable tells whether a node may translate an address; the unspecified ones stand for node ports.
func (r *service) servable(field string, a netip.Addr) bool {
	if what := special(a); what != "" {
		r.problem(ReasonInvalidAddress, "%s: %v is not served: it is %s", field, a, what)
		return false
	}
	return true
}

func (r *service) problem(reason, format string, arguments ...any) {
	r.problems = append(r.problems, Problem{r.name, reason, fmt.Sprintf(format, arguments...)})
}

// hasFamily tells whether the Service exists in a family, that is, has a ClusterIP of it.
func (r *service) hasFamily(f Family) bool { return r.hasAddress(f, ClusterIP) }

func (r *service) hasAddress(f Family, kinds ...Kind) bool {
	return slices.ContainsFunc(r.addresses, func(a address) bool {
		return FamilyOf(a.Addr) == f && slices.Contains(kinds, a.kind)
	})
}

// accessible tells whether a port can be reached by more than the ClusterIP.
func (r *service) accessible(p Port, f Family) bool {
	return p.NodePort != 0 || r.hasAddress(f, ExternalIP, LoadBalancer)
}

// created is the age that decides between claims.
func (r *service) created() time.Time {
	if r.object == nil {
		return time.Time{}
	}
	return r.object.Created
}

// zoned tells whether the zone of the node can make a difference.
func (r *service) zoned() bool {
	return slices.ContainsFunc(r.slices, func(s *slice) bool { return s.zoned })
}

// sourceRanges returns the filter of a family. Without a range of the family, or with a /0, everyone is allowed.
func (r *service) sourceRanges(f Family) []netip.Prefix {
	var ranges []netip.Prefix
	for _, p := range r.object.SourceRanges {
		if FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		ranges = append(ranges, p.Masked())
	}
	slices.SortFunc(ranges, comparePrefixes)
	return slices.Compact(ranges)
}

// equal tells whether two objects of one name mean the same.
func (s *Service) equal(o *Service) bool {
	return s.Created.Equal(o.Created) &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(s.LoadBalancerIPs, o.LoadBalancerIPs) &&
		slices.Equal(s.SourceRanges, o.SourceRanges) &&
		s.InternalLocal == o.InternalLocal && s.ExternalLocal == o.ExternalLocal &&
		s.Affinity == o.Affinity &&
		s.HealthCheckNodePort == o.HealthCheckNodePort &&
		slices.Equal(s.Ports, o.Ports)
}

// canonical returns the one form in which an address is compared.
func canonical(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// special says in words why an address means something else on each machine; it is empty for all others.
func special(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "missing"
	case a.IsUnspecified():
		return "the unspecified address"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsMulticast():
		return "a multicast address"
	}
	return ""
}
