// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Section 1.9: who has a frontend that two want. Service a has ClusterIP 10.96.0.1, b has 10.96.0.2.
func TestAContestedFrontendHasOneOwner(t *testing.T) {
	t.Parallel()
	a := func(options ...func(*model.Service)) *model.Service { return service("default/a", options...) }
	b := func(options ...func(*model.Service)) *model.Service {
		return service("default/b", append([]func(*model.Service){clusterIPs("10.96.0.2")}, options...)...)
	}
	for _, row := range []struct {
		name           string
		winner, loser  *model.Service
		frontend, kind string
		why            string
	}{
		{"the older Service has an external IP",
			b(externalIPs("192.0.2.1"), created(born(1))), a(externalIPs("192.0.2.1"), created(born(2))),
			"192.0.2.1:80/TCP", "external IP", "older"},
		{"of equal age, the first by name",
			a(externalIPs("192.0.2.1")), b(externalIPs("192.0.2.1")), "192.0.2.1:80/TCP", "external IP", "first by name"},
		{"the older Service has a load-balancer IP",
			b(loadBalancer("192.0.2.1"), created(born(1))), a(loadBalancer("192.0.2.1"), created(born(2))),
			"192.0.2.1:80/TCP", "load-balancer IP", "older"},
		{"an external IP and a load-balancer IP are equal in rank",
			b(externalIPs("192.0.2.1"), created(born(1))), a(loadBalancer("192.0.2.1"), created(born(2))),
			"192.0.2.1:80/TCP", "external IP", "older"},
		{"the older Service has a node port",
			b(nodePort(30080), created(born(1))), a(nodePort(30080), created(born(2))),
			"0.0.0.0:30080/TCP", "node port", "older"},
		{"a ClusterIP wins against an older Service's external IP",
			a(created(born(2))), b(externalIPs("10.96.0.1"), created(born(1))),
			"10.96.0.1:80/TCP", "ClusterIP", "ClusterIP of"},
		{"a ClusterIP wins against an older Service's load-balancer IP",
			a(created(born(2))), b(loadBalancer("10.96.0.1"), created(born(1))),
			"10.96.0.1:80/TCP", "ClusterIP", "ClusterIP of"},
		{"of two ClusterIPs the older Service's wins",
			b(clusterIPs("10.96.0.1"), created(born(1))), a(created(born(2))), "10.96.0.1:80/TCP", "ClusterIP", "older"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for _, objects := range [][]any{{row.winner, row.loser}, {row.loser, row.winner}} {
				c := cluster(objects...)
				want := row.winner.ServiceName.String() + " http " + row.kind
				if got := owner(c, row.frontend); got != want {
					t.Errorf("owner: got %s, want %s", got, want)
				}
				expectProblem(t, c, row.loser.ServiceName.String(), model.ReasonFrontendConflict, row.frontend,
					row.winner.ServiceName.String(), row.why)
				if got := c.Problems(row.winner.ServiceName); len(got) > 0 {
					t.Errorf("the winner has problems: %v", got)
				}
			}
		})
	}
}

func TestClaimsThatOnlyLookAlikeDoNotConflict(t *testing.T) {
	t.Parallel()
	udp := ports(model.Port{Name: "http", Protocol: model.UDP, Port: 80, NodePort: 30080})
	for _, row := range []struct {
		name string
		a, b *model.Service
	}{
		{"one external IP, two ports", service("default/a", externalIPs("192.0.2.1")), service("default/b",
			clusterIPs("10.96.0.2"), externalIPs("192.0.2.1"), ports(model.Port{Name: "x", Protocol: model.TCP, Port: 81}))},
		{"one external IP and node port, two protocols",
			service("default/a", externalIPs("192.0.2.1"), nodePort(30080)),
			service("default/b", clusterIPs("10.96.0.2"), externalIPs("192.0.2.1"), udp)},
		{"one node port, two families", service("default/a", nodePort(30080)),
			service("default/b", clusterIPs("fd96::2"), nodePort(30080))},
		{"a node port and a port of the same number", service("default/a", nodePort(80)),
			service("default/b", clusterIPs("10.96.0.2"))},
		{"an undefined port of another's ClusterIP", service("default/a"), service("default/b", clusterIPs("10.96.0.2"),
			externalIPs("10.96.0.1"), ports(model.Port{Name: "x", Protocol: model.TCP, Port: 81}))},
	} {
		c := cluster(row.a, row.b)
		for _, s := range []*model.Service{row.a, row.b} {
			if got := c.Problems(s.ServiceName); len(got) > 0 {
				t.Errorf("%s: got %v, want no problem", row.name, got)
			}
		}
	}
}

// An external IP moves from one Service to another while both want it for a moment.
func TestAFrontendIsHandedOverWhenItsOwnerLetsGo(t *testing.T) {
	t.Parallel()
	older := service("default/b", clusterIPs("10.96.0.2"), externalIPs("192.0.2.1"), created(born(1)))
	younger := service("default/a", externalIPs("192.0.2.1"), created(born(2)))
	last := service("default/c", clusterIPs("10.96.0.3"), externalIPs("192.0.2.1"), created(born(3)))
	c := cluster(older, younger, last)
	c.TakeDirty()

	set(c, service("default/b", clusterIPs("10.96.0.2"), created(born(1))))
	expectDirty(t, c, "default/a", "default/b", "default/c")
	if got := owner(c, "192.0.2.1:80"); got != "default/a http external IP" {
		t.Errorf("after the owner let go: got %s", got)
	}
	expectProblem(t, c, "default/c", model.ReasonFrontendConflict, "default/a")

	set(c, older)
	expectDirty(t, c, "default/a", "default/b", "default/c")
	if got := owner(c, "192.0.2.1:80"); got != "default/b http external IP" {
		t.Errorf("after the older one came back: got %s", got)
	}

	c.DeleteService(name("default/a"))
	expectDirty(t, c, "default/a")
	c.DeleteService(name("default/b"))
	expectDirty(t, c, "default/b", "default/c")
	if got := owner(c, "192.0.2.1:80"); got != "default/c http external IP" {
		t.Errorf("after all others were deleted: got %s", got)
	}
}

func TestARecreatedServiceIsTheYoungerOne(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/a", nodePort(30080), created(born(1))),
		service("default/b", clusterIPs("10.96.0.2"), nodePort(30080), created(born(2))))
	c.TakeDirty()
	set(c, service("default/a", nodePort(30080), created(born(3))))
	expectDirty(t, c, "default/a", "default/b")
	if got := owner(c, "0.0.0.0:30080"); got != "default/b http node port" {
		t.Errorf("got %s", got)
	}
}

func TestConflictsWithinOneService(t *testing.T) {
	t.Parallel()
	p := func(n string, port, nodePort uint16) model.Port {
		return model.Port{Name: n, Protocol: model.TCP, Port: port, NodePort: nodePort}
	}
	for _, row := range []struct {
		name     string
		service  *model.Service
		frontend string
		owner    string
		reason   string
	}{
		{"two ports of one number", service("default/web", ports(p("x", 80, 0), p("y", 80, 0))), "10.96.0.1:80",
			"default/web x ClusterIP", model.ReasonFrontendConflict},
		{"two node ports of one number", service("default/web", ports(p("x", 80, 30080), p("y", 81, 30080))), "0.0.0.0:30080",
			"default/web x node port", model.ReasonFrontendConflict},
		{"two ports of one name: the first counts", service("default/web", ports(p("x", 80, 0), p("x", 81, 0))),
			"10.96.0.1:80", "default/web x ClusterIP", model.ReasonDuplicatePort},
		{"an external IP that is the Service's own ClusterIP", service("default/web", externalIPs("10.96.0.1")),
			"10.96.0.1:80", "default/web http ClusterIP", model.ReasonFrontendConflict},
	} {
		c := cluster(row.service)
		if got := owner(c, row.frontend); got != row.owner {
			t.Errorf("%s: owner: got %s, want %s", row.name, got, row.owner)
		}
		expectProblem(t, c, "default/web", row.reason)
	}
}

func TestAPortOfTheSameNameAndAnotherProtocolIsNoDuplicate(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web", ports(
		model.Port{Name: "dns", Protocol: model.UDP, Port: 53}, model.Port{Name: "dns", Protocol: model.TCP, Port: 53})))
	if got := reasons(c, "default/web"); got != nil {
		t.Errorf("got %v, want no problem", got)
	}
	expect(t, c, "10.96.0.1:53/TCP", inside, "REJECT")
	expect(t, c, "10.96.0.1:53/UDP", inside, "REJECT")
}
