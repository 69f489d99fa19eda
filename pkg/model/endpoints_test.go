// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
)

// portSlice returns a slice of default/web with one port.
func portSlice(n string, p model.SlicePort, endpoints ...model.Endpoint) *model.EndpointSlice {
	s := slice(n, endpoints...)
	s.Ports = []model.SlicePort{p}
	return s
}

// ofFamily returns a slice of default/web for a family.
func ofFamily(f model.Family, n string, endpoints ...model.Endpoint) *model.EndpointSlice {
	s := slice(n, endpoints...)
	s.Family = f
	return s
}

// Section 1.4: the protocol is a part of every key.
func TestSlicePortsMatchByNameAndProtocol(t *testing.T) {
	t.Parallel()
	dns := service("default/web", ports(
		model.Port{Name: "dns", Protocol: model.UDP, Port: 53}, model.Port{Name: "dns-tcp", Protocol: model.TCP, Port: 53}))
	endpoints := slice("s", endpoint("10.244.1.53"))
	endpoints.Ports = []model.SlicePort{
		{Name: "dns", Protocol: model.UDP, Port: 5353},
		{Name: "dns-tcp", Protocol: model.TCP, Port: 5354},
		{Name: "dns", Protocol: model.TCP, Port: 1},
		{Name: "other", Protocol: model.UDP, Port: 2},
	}
	c := cluster(dns, endpoints)
	expect(t, c, "10.96.0.1:53/UDP", inside, "10.244.1.53:5353")
	expect(t, c, "10.96.0.1:53/TCP", inside, "10.244.1.53:5354")
	expect(t, c, "10.96.0.1:53/SCTP", inside, "not ours")
	set(c, service("default/web", ports(model.Port{Name: "dns", Protocol: model.UDP, Port: 53})))
	expect(t, c, "10.96.0.1:53/UDP", inside, "10.244.1.53:5353")
	expect(t, c, "10.96.0.1:53/TCP", inside, "not ours")
}

func TestAPortWithoutNameMatchesTheSlicePortWithoutName(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web", ports(model.Port{Protocol: model.SCTP, Port: 80})),
		portSlice("s", model.SlicePort{Protocol: model.SCTP, Port: 8080}, localReady))
	expect(t, c, "10.96.0.1:80/SCTP", inside, localDial)
}

// A named target port that differs from pod to pod.
func TestSlicesWithDifferentNumbersForOnePortAreUnited(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"),
		portSlice("a", model.SlicePort{Name: "http", Protocol: model.TCP, Port: 8080}, endpoint("10.244.1.50")),
		portSlice("b", model.SlicePort{Name: "http", Protocol: model.TCP, Port: 9090}, endpoint("10.244.2.50")),
		portSlice("c", model.SlicePort{Name: "http", Protocol: model.TCP, Port: 9091}, endpoint("10.244.2.50")))
	expect(t, c, internalDial, inside, "10.244.1.50:8080 10.244.2.50:9090 10.244.2.50:9091")
}

func TestASliceWithoutPortsContributesNothing(t *testing.T) {
	t.Parallel()
	empty := slice("s", localReady)
	empty.Ports = nil
	c := cluster(service("default/web"), empty)
	expect(t, c, internalDial, inside, "REJECT")
}

// Section 1.7: of two copies of one endpoint the better one counts, whichever slice is named or arrives first.
func TestTheBetterCopyOfADuplicateCounts(t *testing.T) {
	t.Parallel()
	const address = "10.244.1.1"
	remote := func(e *model.Endpoint) { e.NodeName = "n2" }
	readyTerminating := func(e *model.Endpoint) { e.Terminating = true }
	for _, row := range []struct {
		name          string
		better, worse model.Endpoint
		want          string
	}{
		{"ready beats terminating (a pod's address used again)",
			endpoint(address), endpoint(address, terminating), "cluster [10.244.1.1] local [10.244.1.1]"},
		{"not terminating beats terminating even if it is not ready",
			endpoint(address, unready), endpoint(address, terminating), "cluster [] local []"},
		{"not terminating beats terminating even if that is ready",
			endpoint(address, unready), endpoint(address, readyTerminating), "cluster [] local []"},
		{"ready beats not ready",
			endpoint(address), endpoint(address, unready), "cluster [10.244.1.1] local [10.244.1.1]"},
		{"ready elsewhere beats not ready here",
			endpoint(address, remote), endpoint(address, unready), "cluster [10.244.1.1] local []"},
		{"here beats elsewhere",
			endpoint(address), endpoint(address, remote), "cluster [10.244.1.1] local [10.244.1.1]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := service("default/web", externalLocal, nodePort(30080))
			for order, objects := range [][]any{
				{s, slice("a", row.better), slice("b", row.worse)},
				{s, slice("b", row.worse), slice("a", row.better)},
				{s, slice("a", row.worse), slice("b", row.better)},
				{s, slice("b", row.better), slice("a", row.worse)},
				{s, slice("a", row.better, row.worse)},
				{s, slice("a", row.worse, row.better)},
			} {
				if got := sets(cluster(objects...)); got != row.want {
					t.Errorf("order %d: got %s, want %s", order, got, row.want)
				}
			}
		})
	}
}

func TestCopiesThatDifferInHintsAreTakenByNameOfTheirSlice(t *testing.T) {
	t.Parallel()
	first := slice("a", endpoint("10.244.2.1", zones("a")), endpoint("10.244.1.1", zones("b")))
	second := slice("b", endpoint("10.244.2.1", zones("b")))
	// Short lists are sorted by an algorithm that is stable by itself.
	for i := range 30 {
		second.Endpoints = append(second.Endpoints, endpoint(fmt.Sprintf("10.244.3.%d", i%3), zones("b")),
			endpoint("10.244.2.1", zones("b")))
	}
	for _, objects := range [][]any{{first, second}, {second, first}} {
		c := cluster(append(objects, service("default/web"))...)
		expect(t, c, internalDial, inside, remoteDial)
	}
}

// Many slices of one Service, a duplicate among them, and what is left after it shrinks.
func TestALargeServiceInManySlices(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"))
	for i := range 12 {
		var endpoints []model.Endpoint
		for j := range 92 {
			endpoints = append(endpoints, endpoint(fmt.Sprintf("10.244.%d.%d", 10+i, 1+j)))
		}
		if i > 0 {
			endpoints = append(endpoints, endpoint(fmt.Sprintf("10.244.%d.1", 9+i), unready))
		}
		set(c, slice(fmt.Sprintf("s%d", i), endpoints...))
	}
	if got := len(c.Desired(name("default/web"))[0].Backends); got != 12*92 {
		t.Errorf("got %d backends, want %d", got, 12*92)
	}
	for i := range 12 {
		c.DeleteSlice(model.SliceName{Namespace: "default", Name: fmt.Sprintf("s%d", i)})
	}
	set(c, slice("s5", endpoint("10.244.9.1"), endpoint("10.244.9.2"), endpoint("10.244.9.3")))
	expect(t, c, internalDial, inside, "10.244.9.1:8080 10.244.9.2:8080 10.244.9.3:8080")
}

func TestAnEndpointThatMovesBetweenSlicesStaysThroughout(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"), slice("old", localReady))
	set(c, slice("new", localReady))
	expect(t, c, internalDial, inside, localDial)
	set(c, slice("old"))
	expect(t, c, internalDial, inside, localDial)
	c.DeleteSlice(model.SliceName{Namespace: "default", Name: "old"})
	expect(t, c, internalDial, inside, localDial)
	c.DeleteSlice(model.SliceName{Namespace: "default", Name: "new"})
	expect(t, c, internalDial, inside, "REJECT")
}

func TestASliceOfTheSameNameReplacesTheFirst(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"), slice("s", localReady), slice("s", remoteReady))
	expect(t, c, internalDial, inside, remoteDial)
}

func TestASliceFollowsItsServiceLabel(t *testing.T) {
	t.Parallel()
	moved := slice("s", localReady)
	moved.Service = name("default/other")
	c := cluster(service("default/web"), service("default/other", clusterIPs("10.96.0.2")), slice("s", localReady))
	c.TakeDirty()
	set(c, moved)
	expectDirty(t, c, "default/other", "default/web")
	expect(t, c, "10.96.0.1:80", inside, "REJECT")
	expect(t, c, "10.96.0.2:80", inside, localDial)
}

func TestSlicesOfOneNameInTwoNamespacesAreTwo(t *testing.T) {
	t.Parallel()
	other := slice("s", remoteReady)
	other.Namespace, other.Service = "other", name("other/web")
	c := cluster(service("default/web"), slice("s", localReady), service("other/web", clusterIPs("10.96.0.2")), other)
	expect(t, c, "10.96.0.1:80", inside, localDial)
	expect(t, c, "10.96.0.2:80", inside, remoteDial)
}

func TestObjectsArriveInAnyOrder(t *testing.T) {
	t.Parallel()
	c := cluster(slice("s", localReady))
	expectDirty(t, c)
	expect(t, c, internalDial, inside, "not ours")
	set(c, service("default/web"))
	expectDirty(t, c, "default/web")
	expect(t, c, internalDial, inside, localDial)
	c.DeleteSlice(model.SliceName{Namespace: "default", Name: "unknown"})
	c.DeleteService(name("default/unknown"))
	expectDirty(t, c)
}

func TestFamiliesAreSeparate(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web", clusterIPs("fd96::1", "10.96.0.1")),
		ofFamily(model.IPv4, "v4", localReady), ofFamily(model.IPv6, "v6", endpoint("fd00:1::1")))
	expect(t, c, "10.96.0.1:80", inside, localDial)
	expect(t, c, "[fd96::1]:80", inside, "[fd00:1::1]:8080")
	c.DeleteSlice(model.SliceName{Namespace: "default", Name: "v6"})
	expect(t, c, "10.96.0.1:80", inside, localDial)
	expect(t, c, "[fd96::1]:80", inside, "REJECT")
}

func TestAMappedAddressIsIPv4(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web", clusterIPs("::ffff:10.96.0.1"), externalIPs("::ffff:192.0.2.1")),
		slice("s", endpoint("::ffff:10.244.2.1")))
	expect(t, c, "10.96.0.1:80", inside, remoteDial)
	expect(t, c, "192.0.2.1:80", outside, remoteDial)
}

func TestEndpointAddressesThatNoBackendCanHaveAreRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		address, word string
		family        model.Family
	}{
		{"127.0.0.1", "loopback", model.IPv4},
		{"127.1.2.3", "loopback", model.IPv4},
		{"::ffff:127.0.0.1", "loopback", model.IPv4},
		{"0.0.0.0", "unspecified", model.IPv4},
		{"224.0.0.1", "multicast", model.IPv4},
		{"::1", "loopback", model.IPv6},
		{"::", "unspecified", model.IPv6},
		{"ff02::1", "multicast", model.IPv6},
		{"fd00::1", "no IPv4 address", model.IPv4},
		{"10.0.0.1", "no IPv6 address", model.IPv6},
	} {
		t.Run(row.address, func(t *testing.T) {
			t.Parallel()
			good := map[model.Family]model.Endpoint{model.IPv4: localReady, model.IPv6: endpoint("fd00:1::1")}[row.family]
			c := cluster(service("default/web", clusterIPs("10.96.0.1", "fd96::1")),
				ofFamily(row.family, "s", endpoint(row.address), good, endpoint(row.address)))
			expectProblem(t, c, "default/web", model.ReasonInvalidEndpoint, "default/s", "2 of 3", row.word)
			dial := map[model.Family]string{model.IPv4: "10.96.0.1:80", model.IPv6: "[fd96::1]:80"}[row.family]
			expect(t, c, dial, inside, netip.AddrPortFrom(good.Address, 8080).String())
		})
	}
}

func TestAnEndpointWithoutAddressIsRefused(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"), slice("s", model.Endpoint{Ready: true, Serving: true}, localReady))
	expectProblem(t, c, "default/web", model.ReasonInvalidEndpoint, "missing")
	expect(t, c, internalDial, inside, localDial)
}

func TestASliceOfAFamilyThatTheServiceLacksIsReported(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"), slice("s", localReady), ofFamily(model.IPv6, "v6", endpoint("fd00::1")))
	expectProblem(t, c, "default/web", model.ReasonUnusedSlice, "default/v6", "IPv6")
	expect(t, c, internalDial, inside, localDial)
	set(c, ofFamily(model.IPv6, "v6"))
	if got := reasons(c, "default/web"); got != nil {
		t.Errorf("an empty slice: got %v, want no problem", got)
	}
}

func TestProblemsOfSlicesWaitForTheirService(t *testing.T) {
	t.Parallel()
	c := cluster(slice("s", endpoint("127.0.0.1")))
	if got := reasons(c, "default/web"); got != nil {
		t.Errorf("without Service: got %v, want none", got)
	}
	set(c, service("default/web"))
	expectProblem(t, c, "default/web", model.ReasonInvalidEndpoint, "127.0.0.1")
}

// Section 8.2: flows end when their IP and port no longer serve, not when a policy prefers others.
func TestServingEndpointsKeepTheirFlows(t *testing.T) {
	t.Parallel()
	readyAlone := endpoint("10.244.2.8", func(e *model.Endpoint) { e.Serving = false })
	c := cluster(service("default/web", internalLocal),
		slice("s", localReady, remoteReady, localLeaving, remoteUnready, remoteGone, endpoint("10.244.2.9", zones("b")),
			readyAlone),
		ofFamily(model.IPv6, "v6", endpoint("fd00::1")))
	web := model.ServicePortName{
		ServiceName: name("default/web"), Port: "http", Protocol: model.TCP, Family: model.IPv4,
	}
	var got []string
	for _, a := range c.Serving(web) {
		got = append(got, a.String())
	}
	want := []string{localDial, localLeft, remoteDial, "10.244.2.3:8080", "10.244.2.8:8080", "10.244.2.9:8080"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	set(c, portSlice("s", model.SlicePort{Name: "http", Protocol: model.TCP, Port: 8081}, localReady))
	if got := c.Serving(web); len(got) != 1 || got[0].Port() != 8081 {
		t.Errorf("after the target port changed: got %v, want the new port alone", got)
	}
	for _, absent := range []model.ServicePortName{
		{ServiceName: name("default/none"), Port: "http", Protocol: model.TCP, Family: model.IPv4},
		{ServiceName: name("default/web"), Port: "none", Protocol: model.TCP, Family: model.IPv4},
		{ServiceName: name("default/web"), Port: "http", Protocol: model.UDP, Family: model.IPv4},
		{ServiceName: name("default/web"), Port: "http", Protocol: model.TCP, Family: model.IPv6},
	} {
		if got := c.Serving(absent); got != nil {
			t.Errorf("%v: got %v, want none", absent, got)
		}
	}
}

// Section 7.1: distinct addresses of ready endpoints on this node, over all ports, per family.
func TestHealthChecksCountReadyLocalAddresses(t *testing.T) {
	t.Parallel()
	s := service("default/web", externalLocal, clusterIPs("10.96.0.1", "fd96::1"), ports(
		model.Port{Name: "http", Protocol: model.TCP, Port: 80}, model.Port{Name: "metrics", Protocol: model.TCP, Port: 90}))
	s.HealthCheckNodePort = 31000
	metrics := portSlice("m", model.SlicePort{Name: "metrics", Protocol: model.TCP, Port: 9090}, localReady,
		endpoint("10.244.1.9"))
	c := cluster(s, slice("s", localReady, remoteReady, localLeaving, localUnready), metrics,
		ofFamily(model.IPv6, "v6", endpoint("fd00:1::1")))
	want := []model.HealthCheck{{model.IPv4, 31000, 2}, {model.IPv6, 31000, 1}}
	if got := c.HealthChecks(s.ServiceName); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	set(c, service("default/web"))
	if got := c.HealthChecks(s.ServiceName); got != nil {
		t.Errorf("without health port: got %+v, want none", got)
	}
}
