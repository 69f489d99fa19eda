// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"net/netip"
	"slices"
)

// claims tells who wants a frontend. The API cannot prevent that several do: the first of a sorted list has it until
// it lets go, whatever the order in which they came. kube-proxy leaves this to chance.
type claims map[FrontendKey]claimants

// claimants are the claims of one frontend. Nearly always there is only one, which then needs no memory of its own.
type claimants struct {
	first claimant
	rest  []claimant
}

// claimant is one port of one Service, and the field by which it claims.
type claimant struct {
	service *service
	port    uint16 // index in service.ports
	kind    Kind
}

type claim struct {
	FrontendKey
	claimant
}

// compare orders claimants: a ClusterIP before all else, since Pods trust it; then the older Service, then the name;
// and within a Service the order of its ports.
func (a claimant) compare(b claimant) int {
	return cmp.Or(
		cmp.Compare(a.rank(), b.rank()),
		a.service.created().Compare(b.service.created()),
		a.service.name.Compare(b.service.name),
		cmp.Compare(a.port, b.port),
	)
}

func (a claimant) rank() int {
	if a.kind == ClusterIP {
		return 0
	}
	return 1
}

// winner returns who has a claimed frontend.
func (c claims) winner(k FrontendKey) claimant { return c[k].first }

// add adds a claim and returns the Services that a new winner concerns.
func (c claims) add(n claim) []*service {
	old, contested := c[n.FrontendKey]
	if !contested {
		c[n.FrontendKey] = claimants{first: n.claimant}
		return nil
	}
	if n.compare(old.first) < 0 {
		rest := slices.Insert(old.rest, 0, old.first)
		c[n.FrontendKey] = claimants{n.claimant, rest}
		return servicesOf(rest)
	}
	i, _ := slices.BinarySearchFunc(old.rest, n.claimant, claimant.compare)
	c[n.FrontendKey] = claimants{old.first, slices.Insert(old.rest, i, n.claimant)}
	return nil
}

// release removes a claim and returns the Services that a new winner concerns. It compares nothing but identity,
// because the object that decided the order has been replaced.
func (c claims) release(n claim) []*service {
	old := c[n.FrontendKey]
	if old.first != n.claimant {
		i := slices.Index(old.rest, n.claimant)
		c[n.FrontendKey] = claimants{old.first, slices.Delete(old.rest, i, i+1)}
		return nil
	}
	if len(old.rest) == 0 {
		delete(c, n.FrontendKey)
		return nil
	}
	next := old.rest[0]
	c[n.FrontendKey] = claimants{next, slices.Delete(old.rest, 0, 1)}
	return append(servicesOf(c[n.FrontendKey].rest), next.service)
}

func servicesOf(all []claimant) []*service {
	out := make([]*service, 0, len(all)+1)
	for _, a := range all {
		out = append(out, a.service)
	}
	return out
}

// claims returns what the Service of r claims, in the order of its ports.
func (r *service) claims() []claim {
	out := make([]claim, 0, len(r.ports)*(len(r.addresses)+1))
	for i := range r.ports {
		out = r.appendClaims(out, i, IPv4)
		out = r.appendClaims(out, i, IPv6)
	}
	return out
}

// appendClaims appends the claims of one port in one family.
func (r *service) appendClaims(out []claim, port int, f Family) []claim {
	if !r.hasFamily(f) {
		return out
	}
	p := r.ports[port]
	for _, a := range r.addresses {
		if FamilyOf(a.Addr) == f {
			out = append(out, claim{FrontendKey{a.Addr, p.Port, p.Protocol}, claimant{r, uint16(port), a.kind}})
		}
	}
	if p.NodePort != 0 {
		out = append(out, claim{FrontendKey{unspecified(f), p.NodePort, p.Protocol}, claimant{r, uint16(port), NodePort}})
	}
	return out
}

// unspecified is the address under which the node ports of a family stand.
func unspecified(f Family) netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
