// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
)

var limits = plan.Limits{Slots: 64, Services: 64}

func serviceName(name string) model.ServiceName {
	return model.ServiceName{Namespace: "ns", Name: name}
}

func clusterIP(address string) model.Frontend {
	return model.Frontend{Kind: model.ClusterIP, FrontendKey: model.FrontendKey{
		Address: netip.MustParseAddr(address), Port: 80, Protocol: model.TCP,
	}}
}

// servicePort has n backends in the cluster set, the first local of which are in the local set too.
func servicePort(name string, n, local int, frontends ...model.Frontend) model.ServicePort {
	p := model.ServicePort{Name: model.ServicePortName{
		ServiceName: serviceName(name), Port: "http", Protocol: model.TCP, Family: model.IPv4,
	}, Frontends: frontends}
	for i := range n {
		p.Backends = append(p.Backends, model.Backend{
			Address: netip.AddrFrom4([4]byte{10, 244, byte(i / 256), byte(i)}), Port: 8080, Cluster: true, Local: i < local,
		})
	}
	return p
}

func change(ports ...model.ServicePort) plan.Change {
	return plan.Change{Service: ports[0].Name.ServiceName, Ports: ports}
}

// apply plans and executes; it returns the operations as lines.
func apply(t *testing.T, s *plan.State, changes ...plan.Change) []string {
	t.Helper()
	operations, failures := s.Plan(changes)
	if len(failures) > 0 {
		t.Fatal(failures)
	}
	var lines []string
	for _, o := range operations {
		lines = append(lines, o.String())
		s.Applied(o)
	}
	return lines
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("operations are\n\t%s\nnot\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestNothingIsDoneWhenNothingHasChanged(t *testing.T) {
	t.Parallel()
	s := plan.New(limits)
	port := servicePort("a", 3, 1, clusterIP("10.96.0.1"))
	port.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8")}
	apply(t, s, change(port))
	expect(t, apply(t, s, change(port)))
	slices.Reverse(port.Backends)
	expect(t, apply(t, s, change(port)))
	// Nor when what has gone waits to be collected.
	port.SourceRanges, port.Backends = nil, nil
	apply(t, s, change(port))
	expect(t, apply(t, s, change(port)))
	apply(t, s, plan.Change{Service: serviceName("a")})
	expect(t, apply(t, s, plan.Change{Service: serviceName("a")}))
}

func TestABackendCountsOnceAndOnlyInASet(t *testing.T) {
	t.Parallel()
	s := plan.New(limits)
	port := servicePort("a", 2, 0, clusterIP("10.96.0.1"))
	port.Backends[1].Cluster = false
	port.Backends = append(port.Backends[:1:1], port.Backends...)
	expect(t, apply(t, s, change(port))[1:4],
		"put name 1 = ns/a:http/TCP (IPv4)",
		"put backend 1 = 10.244.0.0:8080 of service 1, in cluster set",
		"put run 0+1 = backends [1], the cluster set of service 1",
	)
}

func TestAFrontendThatMovesBetweenServicesIsReplacedByOneOperation(t *testing.T) {
	t.Parallel()
	s := plan.New(limits)
	a, b := servicePort("a", 1, 0, clusterIP("10.96.0.1")), servicePort("b", 1, 0, clusterIP("10.96.0.1"))
	apply(t, s, change(a))
	expect(t, apply(t, s, plan.Change{Service: serviceName("a")}, change(b)),
		"put name 2 = ns/b:http/TCP (IPv4)",
		"put backend 2 = 10.244.0.0:8080 of service 2, in cluster set",
		"put run 1+1 = backends [2], the cluster set of service 2",
		"put frontend 10.96.0.1:80/TCP = service 2, ClusterIP, internal cluster run 1+1, external cluster run 1+1",
		"retire service 1",
	)
}

func TestARunIsKeptWhenOnlyTheOtherSetChanges(t *testing.T) {
	t.Parallel()
	s := plan.New(limits)
	frontend := clusterIP("10.96.0.1")
	frontend.Internal.Local = true
	apply(t, s, change(servicePort("a", 3, 1, frontend)))
	expect(t, apply(t, s, change(servicePort("a", 3, 2, frontend))),
		"put backend 2 = 10.244.0.1:8080 of service 1, in cluster and local set",
		"put run 4+2 = backends [1 2], the local set of service 1",
		"put frontend 10.96.0.1:80/TCP = service 1, ClusterIP, internal local run 4+2, external cluster run 0+3",
		"retire run 3+1 of service 1",
	)
}

func TestASetThatNoFrontendUsesAndAnEmptyOneTakeNoCells(t *testing.T) {
	t.Parallel()
	s := plan.New(limits)
	apply(t, s, change(servicePort("a", 3, 2, clusterIP("10.96.0.1"))))
	local := clusterIP("10.96.0.2")
	local.Internal = model.Target{Local: true, Drop: true}
	local.External = local.Internal
	apply(t, s, change(servicePort("b", 3, 0, local)))
	if used := limits.Slots - s.FreeSlots(); used != 3 {
		t.Fatalf("%d cells are used, not 3", used)
	}
}

func TestABackendChangesSetsAroundTheSwitch(t *testing.T) {
	t.Parallel()
	s := plan.New(limits)
	local, cluster := clusterIP("10.96.0.1"), clusterIP("10.96.0.1")
	local.Internal.Local, local.External.Local = true, true
	before, after := servicePort("a", 1, 1, local), servicePort("a", 1, 0, cluster)
	before.Backends[0].Cluster = false
	apply(t, s, change(before))
	expect(t, apply(t, s, change(after)),
		"put backend 1 = 10.244.0.0:8080 of service 1, in cluster and local set",
		"put run 1+1 = backends [1], the cluster set of service 1",
		"put frontend 10.96.0.1:80/TCP = service 1, ClusterIP, internal cluster run 1+1, external cluster run 1+1",
		"put backend 1 = 10.244.0.0:8080 of service 1, in cluster set",
		"retire run 0+1 of service 1",
	)
}

func TestABackendThatReturnsWithinTheGracePeriodKeepsItsID(t *testing.T) {
	t.Parallel()
	s := plan.New(limits)
	two, one := servicePort("a", 2, 0, clusterIP("10.96.0.1")), servicePort("a", 1, 0, clusterIP("10.96.0.1"))
	apply(t, s, change(two))
	apply(t, s, change(one))
	waiting := s.TakeRetired()
	apply(t, s, change(two))
	for _, o := range s.Collect(waiting) {
		if _, deletes := o.(*plan.DeleteBackend); deletes {
			t.Fatalf("%s: it is in use again", o)
		}
		s.Applied(o)
	}
	expect(t, apply(t, s, change(two)))
}

func TestAServicePortThatDoesNotFitFailsAloneAndStaysAsItIs(t *testing.T) {
	t.Parallel()
	ranges := func(p model.ServicePort, n int) model.ServicePort {
		for i := range n {
			p.SourceRanges = append(p.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(i), 0}), 24))
		}
		return p
	}
	lb := clusterIP("192.0.2.1")
	lb.Kind = model.LoadBalancer
	for _, row := range []struct {
		limits     plan.Limits
		full       plan.FullError
		small, big model.ServicePort
		// other fits beside small, with nothing to spare.
		other model.ServicePort
	}{
		{plan.Limits{Slots: 8, Services: 64}, plan.FullError{Map: "slots", Size: 8},
			servicePort("a", 2, 0, lb), servicePort("a", 9, 0, lb), servicePort("b", 6, 0, clusterIP("10.96.0.2"))},
		{plan.Limits{Slots: 64, Services: 64, Backends: 8}, plan.FullError{Map: "backends", Size: 8},
			servicePort("a", 2, 0, lb), servicePort("a", 9, 0, lb), servicePort("b", 6, 0, clusterIP("10.96.0.2"))},
		{plan.Limits{Slots: 64, Services: 64, Ranges: 8}, plan.FullError{Map: "source_ranges", Size: 8},
			ranges(servicePort("a", 2, 0, lb), 2), ranges(servicePort("a", 2, 0, lb), 9),
			ranges(servicePort("b", 6, 0, clusterIP("10.96.0.2")), 6)},
	} {
		s := plan.New(row.limits)
		apply(t, s, change(row.small))
		for range 2 {
			operations, failures := s.Plan([]plan.Change{change(row.big), change(row.other)})
			var full *plan.FullError
			if len(failures) != 1 || failures[0].Port != row.small.Name || !errors.As(failures[0].Err, &full) ||
				*full != row.full {
				t.Fatalf("failures are %v, want %v", failures, row.full)
			}
			for _, o := range operations {
				if o.Owner() == 1 {
					t.Fatalf("%s: of the service port that failed", o)
				}
				s.Applied(o)
			}
		}
		expect(t, apply(t, s, change(row.small)))
		expect(t, apply(t, s, change(row.other)))
		// When the other one has gone and been collected, there is room.
		apply(t, s, plan.Change{Service: row.other.Name.ServiceName})
		for _, o := range s.Collect(s.TakeRetired()) {
			s.Applied(o)
		}
		fits := row.big
		fits.Backends = fits.Backends[:min(8, len(fits.Backends))]
		fits.SourceRanges = fits.SourceRanges[:min(8, len(fits.SourceRanges))]
		if row.full.Map != "slots" { // where the old run waits for readers
			apply(t, s, change(fits))
		}
	}
}

func TestServiceIDsRunOutWithAnErrorAndComeBack(t *testing.T) {
	t.Parallel()
	s := plan.New(plan.Limits{Slots: 8, Services: 2})
	a, b := servicePort("a", 1, 0, clusterIP("10.96.0.1")), servicePort("b", 1, 0, clusterIP("10.96.0.2"))
	apply(t, s, change(a))
	operations, failures := s.Plan([]plan.Change{change(b)})
	if len(operations) != 0 || len(failures) != 1 {
		t.Fatalf("%v, %v", operations, failures)
	}
	apply(t, s, plan.Change{Service: serviceName("a")})
	for _, o := range s.Collect(s.TakeRetired()) {
		s.Applied(o)
	}
	apply(t, s, change(b))
}

func TestWhatWasPlannedAndNotDoneIsFreeAgain(t *testing.T) {
	t.Parallel()
	s := plan.New(plan.Limits{Slots: 4, Services: 2})
	port := change(servicePort("a", 3, 0, clusterIP("10.96.0.1")))
	for range 3 {
		if _, failures := s.Plan([]plan.Change{port}); len(failures) > 0 {
			t.Fatal(failures)
		}
	}
	apply(t, s, port)
}

func TestAnAddressHasTheFlagsOfItsFrontendsAndOfTheNode(t *testing.T) {
	t.Parallel()
	s := plan.New(limits)
	address := netip.MustParseAddr("10.0.0.1")
	node := func(nodePorts, onNode []netip.Addr) []string {
		var lines []string
		for _, o := range s.PlanNodeAddresses(nodePorts, onNode) {
			lines = append(lines, o.String())
			s.Applied(o)
		}
		return lines
	}
	here := []netip.Addr{address}
	external := clusterIP("10.0.0.1")
	external.Kind = model.ExternalIP

	expect(t, node(here, here), "put address 10.0.0.1 = node ports, on node")
	expect(t, node(here, here))
	lines := apply(t, s, change(servicePort("a", 0, 0, external)))
	expect(t, lines[1:2], "put address 10.0.0.1 = service, node ports, on node")
	expect(t, node(nil, here), "put address 10.0.0.1 = service, on node")
	expect(t, node(nil, nil), "put address 10.0.0.1 = service")
	lines = apply(t, s, change(servicePort("a", 0, 0, clusterIP("10.0.0.1"))))
	expect(t, lines[:1], "put address 10.0.0.1 = ClusterIP, service")
	expect(t, lines[2:], "put address 10.0.0.1 = ClusterIP")
	lines = apply(t, s, plan.Change{Service: serviceName("a")})
	expect(t, lines[1:2], "delete address 10.0.0.1")
}
