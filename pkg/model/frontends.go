// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"
)

// Desired returns the desired service ports of a Service, IPv4 before IPv6, otherwise in the order of its ports; none
// for a Service that is gone. A service port without endpoints has frontends, which reject.
func (c *Cluster) Desired(name ServiceName) []ServicePort {
	r := c.services[name]
	if r == nil || r.object == nil {
		return nil
	}
	var out []ServicePort
	for _, f := range []Family{IPv4, IPv6} {
		if !r.hasFamily(f) {
			continue
		}
		ranges := r.sourceRanges(f)
		for i := range r.ports {
			p := c.servicePort(r, i, f)
			if slices.ContainsFunc(p.Frontends, func(f Frontend) bool { return f.Kind == LoadBalancer }) {
				p.SourceRanges = ranges
			}
			out = append(out, p)
		}
	}
	return out
}

// servicePort returns one port of a Service in one family, without source ranges.
func (c *Cluster) servicePort(r *service, i int, f Family) ServicePort {
	p := r.ports[i]
	all := c.merge(r, p, f)
	s := c.setsOf(r, p, f, all)
	return ServicePort{
		Name:      ServicePortName{r.name, p.Name, p.Protocol, f},
		Backends:  s.backends(all),
		Frontends: c.frontends(r, i, f, s.usable),
		Affinity:  r.object.Affinity,
	}
}

// frontends returns the frontends that a service port has won.
func (c *Cluster) frontends(r *service, i int, f Family, usable bool) []Frontend {
	var out []Frontend
	for _, claim := range r.appendClaims(nil, i, f) {
		if c.claims.winner(claim.FrontendKey) != claim.claimant {
			continue
		}
		if _, onNode := c.onNode[claim.Address]; onNode && claim.kind == ClusterIP {
			continue
		}
		out = append(out, r.frontend(claim, usable))
	}
	slices.SortFunc(out, compareFrontends)
	return out
}

// frontend tells what clients get at a frontend. A ClusterIP follows the internal policy for everyone; the others
// follow the external policy for outside clients alone: from inside the cluster the load balancer is a detour, and
// its clients are given what it would have given them.
func (r *service) frontend(c claim, usable bool) Frontend {
	if c.kind == ClusterIP {
		t := target(r.object.InternalLocal, usable)
		return Frontend{FrontendKey: c.FrontendKey, Kind: c.kind, Internal: t, External: t}
	}
	return Frontend{
		FrontendKey: c.FrontendKey,
		Kind:        c.kind,
		Internal:    target(false, usable),
		External:    target(r.object.ExternalLocal, usable),
		PolicyLocal: r.object.ExternalLocal,
	}
}

func target(local, usable bool) Target { return Target{Local: local, Drop: local && usable} }

// Problems returns what is wrong with a Service and its slices; none for a Service that is gone.
func (c *Cluster) Problems(name ServiceName) []Problem {
	r := c.services[name]
	if r == nil || r.object == nil {
		return nil
	}
	out := slices.Clone(r.problems)
	for _, claim := range r.claims() {
		if w := c.claims.winner(claim.FrontendKey); w != claim.claimant {
			out = append(out, Problem{r.name, ReasonFrontendConflict, claim.lostTo(w)})
		}
	}
	for _, s := range r.slices {
		for _, fault := range s.faults {
			out = append(out, Problem{r.name, ReasonInvalidEndpoint, fault})
		}
		if len(s.endpoints) > 0 && !r.hasFamily(s.family) {
			out = append(out, Problem{r.name, ReasonUnusedSlice, fmt.Sprintf(
				"EndpointSlice %v is not used: the Service has no %v ClusterIP", s.name, s.family)})
		}
	}
	return out
}

// lostTo says that and why a claim lost its frontend.
func (c claim) lostTo(w claimant) string {
	p, o := c.service.ports[c.port], w.service.ports[w.port]
	lost := fmt.Sprintf("%v %v of port %q is not served here: ", c.kind, c.FrontendKey, p.Name)
	switch {
	case w.service == c.service && w.port == c.port:
		return lost + "it is the ClusterIP of the Service itself"
	case w.service == c.service:
		return lost + fmt.Sprintf("port %q of the same Service has it", o.Name)
	case w.kind == ClusterIP && c.kind != ClusterIP:
		return lost + fmt.Sprintf("it is the ClusterIP of Service %v", w.service.name)
	case w.service.created().Before(c.service.created()):
		return lost + fmt.Sprintf("Service %v, which is older, has it", w.service.name)
	}
	return lost + fmt.Sprintf("Service %v, which is first by name, has it", w.service.name)
}
