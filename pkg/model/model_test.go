// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Sections named in comments are those of docs/semantics.md. The node of all tests is n1 in zone a; pods on it are
// 10.244.1.x, elsewhere 10.244.2.x.
var node = model.Node{Name: "n1", Zone: "a"}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func addrs(all ...string) []netip.Addr {
	out := make([]netip.Addr, 0, len(all))
	for _, s := range all {
		out = append(out, addr(s))
	}
	return out
}

func prefixes(all ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(all))
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func name(s string) model.ServiceName {
	namespace, name, _ := strings.Cut(s, "/")
	return model.ServiceName{Namespace: namespace, Name: name}
}

// born is a creation time; a smaller n is older.
func born(n int) time.Time { return time.Date(2024, 1, 1, 0, 0, n, 0, time.UTC) }

// service returns a Service with ClusterIP 10.96.0.1 and port http 80/TCP, changed by the options.
func service(n string, options ...func(*model.Service)) *model.Service {
	s := &model.Service{
		ServiceName: name(n),
		Created:     born(0),
		ClusterIPs:  addrs("10.96.0.1"),
		Ports:       []model.Port{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
	for _, o := range options {
		o(s)
	}
	return s
}

func clusterIPs(all ...string) func(*model.Service) {
	return func(s *model.Service) { s.ClusterIPs = addrs(all...) }
}

func externalIPs(all ...string) func(*model.Service) {
	return func(s *model.Service) { s.ExternalIPs = addrs(all...) }
}

func loadBalancer(all ...string) func(*model.Service) {
	return func(s *model.Service) { s.LoadBalancerIPs = addrs(all...) }
}

func sourceRanges(all ...string) func(*model.Service) {
	return func(s *model.Service) { s.SourceRanges = prefixes(all...) }
}

func nodePort(port uint16) func(*model.Service) {
	return func(s *model.Service) { s.Ports[0].NodePort = port }
}

func ports(all ...model.Port) func(*model.Service) {
	return func(s *model.Service) { s.Ports = all }
}

func created(at time.Time) func(*model.Service) {
	return func(s *model.Service) { s.Created = at }
}

func internalLocal(s *model.Service) { s.InternalLocal = true }
func externalLocal(s *model.Service) { s.ExternalLocal = true }

// slice returns an IPv4 slice of Service default/web with port http 8080/TCP.
func slice(n string, endpoints ...model.Endpoint) *model.EndpointSlice {
	return &model.EndpointSlice{
		SliceName: model.SliceName{Namespace: "default", Name: n},
		Service:   name("default/web"),
		Family:    model.IPv4,
		Ports:     []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
		Endpoints: endpoints,
	}
}

// endpoint returns a ready endpoint. Its node is told by its address: 10.244.1.x and fd00:1::x are on n1.
func endpoint(address string, options ...func(*model.Endpoint)) model.Endpoint {
	e := model.Endpoint{Address: addr(address), NodeName: "n2", Ready: true, Serving: true}
	if strings.HasPrefix(address, "10.244.1.") || strings.HasPrefix(address, "fd00:1::") {
		e.NodeName = "n1"
	}
	for _, o := range options {
		o(&e)
	}
	return e
}

func unready(e *model.Endpoint)     { e.Ready = false }
func terminating(e *model.Endpoint) { e.Ready, e.Terminating = false, true }
func gone(e *model.Endpoint)        { e.Ready, e.Serving, e.Terminating = false, false, true }

func zones(all ...string) func(*model.Endpoint) { return func(e *model.Endpoint) { e.ForZones = all } }
func nodes(all ...string) func(*model.Endpoint) { return func(e *model.Endpoint) { e.ForNodes = all } }

// cluster returns a Cluster that has the objects: *model.Service and *model.EndpointSlice.
func cluster(objects ...any) *model.Cluster {
	c := model.New(model.Config{Node: node})
	set(c, objects...)
	return c
}

func set(c *model.Cluster, objects ...any) {
	for _, o := range objects {
		switch o := o.(type) {
		case *model.Service:
			c.SetService(o)
		case *model.EndpointSlice:
			c.SetSlice(o)
		}
	}
}

// key parses address:port/protocol. Node ports are written with the unspecified address.
func key(s string) model.FrontendKey {
	ap, protocol, _ := strings.Cut(s, "/")
	parsed := netip.MustParseAddrPort(ap)
	k := model.FrontendKey{Address: parsed.Addr(), Port: parsed.Port(), Protocol: model.TCP}
	switch protocol {
	case "UDP":
		k.Protocol = model.UDP
	case "SCTP":
		k.Protocol = model.SCTP
	}
	return k
}

// Clients.
const (
	inside  = false
	outside = true
)

// answer tells what a client gets at a frontend: backends, DROP, REJECT, or "not ours".
func answer(c *model.Cluster, frontend string, client bool) string {
	for _, n := range c.Services() {
		for _, p := range c.Desired(n) {
			for _, f := range p.Frontends {
				if f.FrontendKey == key(frontend) {
					return outcome(p, f, client)
				}
			}
		}
	}
	return "not ours"
}

func outcome(p model.ServicePort, f model.Frontend, client bool) string {
	target := f.Internal
	if client == outside {
		target = f.External
	}
	var set []string
	for _, b := range p.Backends {
		if target.Local && b.Local || !target.Local && b.Cluster {
			set = append(set, netip.AddrPortFrom(b.Address, b.Port).String())
		}
	}
	switch {
	case len(set) > 0:
		return strings.Join(set, " ")
	case target.Drop:
		return "DROP"
	}
	return "REJECT"
}

// expect fails the test unless a client gets the answer at the frontend.
func expect(t *testing.T, c *model.Cluster, frontend string, client bool, want string) {
	t.Helper()
	if got := answer(c, frontend, client); got != want {
		from := "inside"
		if client == outside {
			from = "outside"
		}
		t.Errorf("%s dialled from %s: got %s, want %s", frontend, from, got, want)
	}
}

// owner tells which Service, and by which kind of frontend, has a frontend.
func owner(c *model.Cluster, frontend string) string {
	for _, n := range c.Services() {
		for _, p := range c.Desired(n) {
			for _, f := range p.Frontends {
				if f.FrontendKey == key(frontend) {
					return n.String() + " " + p.Name.Port + " " + f.Kind.String()
				}
			}
		}
	}
	return "nobody"
}

// sets writes the two sets of the only service port of default/web.
func sets(c *model.Cluster) string {
	var all, local []string
	for _, b := range c.Desired(name("default/web"))[0].Backends {
		if b.Cluster {
			all = append(all, b.Address.String())
		}
		if b.Local {
			local = append(local, b.Address.String())
		}
	}
	return "cluster [" + strings.Join(all, " ") + "] local [" + strings.Join(local, " ") + "]"
}

// reasons returns the reasons of a Service's Problems.
func reasons(c *model.Cluster, service string) []string {
	var out []string
	for _, p := range c.Problems(name(service)) {
		out = append(out, p.Reason)
	}
	return out
}

// expectProblem fails the test unless the Service's only Problem has the reason and all the words.
func expectProblem(t *testing.T, c *model.Cluster, service, reason string, words ...string) {
	t.Helper()
	all := c.Problems(name(service))
	if len(all) != 1 || all[0].Reason != reason || all[0].Service != name(service) {
		t.Fatalf("problems of %s: got %v, want one %s", service, all, reason)
	}
	for _, w := range words {
		if !strings.Contains(all[0].Message, w) {
			t.Errorf("message %q lacks %q", all[0].Message, w)
		}
	}
}

// expectDirty fails the test unless exactly these Services are dirty.
func expectDirty(t *testing.T, c *model.Cluster, want ...string) {
	t.Helper()
	var got []string
	for _, n := range c.TakeDirty() {
		got = append(got, n.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("dirty: got %v, want %v", got, want)
	}
}
