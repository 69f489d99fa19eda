// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
)

func TestAnEqualObjectIsNoChange(t *testing.T) {
	t.Parallel()
	full := func() *model.Service {
		s := everyFrontend(internalLocal, externalLocal, sourceRanges("10.0.0.0/8"))
		s.Affinity, s.HealthCheckNodePort = time.Hour, 31000
		return s
	}
	endpoints := func() *model.EndpointSlice {
		return slice("s", endpoint("10.244.1.1", zones("a", "b"), nodes("n1")), remoteLeaving, endpoint("127.0.0.1"))
	}
	c := cluster(full(), endpoints())
	expectDirty(t, c, "default/web")
	set(c, full(), endpoints())
	expectDirty(t, c)
}

func TestEveryFieldOfAServiceIsAChange(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*model.Service){
		"created":             created(born(7)),
		"clusterIPs":          clusterIPs("10.96.0.9"),
		"externalIPs":         externalIPs("192.0.2.9"),
		"loadBalancerIPs":     loadBalancer("192.0.2.9"),
		"sourceRanges":        sourceRanges("10.0.0.0/8"),
		"internalLocal":       internalLocal,
		"externalLocal":       externalLocal,
		"affinity":            func(s *model.Service) { s.Affinity = time.Hour },
		"healthCheckNodePort": func(s *model.Service) { s.HealthCheckNodePort = 31000 },
		"ports":               nodePort(30081),
	} {
		c := cluster(everyFrontend())
		c.TakeDirty()
		set(c, everyFrontend(change))
		if got := c.TakeDirty(); len(got) != 1 {
			t.Errorf("%s: got %v dirty, want the Service", field, got)
		}
	}
}

func TestEveryFieldOfAnEndpointIsAChange(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*model.Endpoint){
		"address":     func(e *model.Endpoint) { e.Address = addr("10.244.1.9") },
		"node":        func(e *model.Endpoint) { e.NodeName = "n2" },
		"ready":       func(e *model.Endpoint) { e.Ready = false },
		"serving":     func(e *model.Endpoint) { e.Serving = false },
		"terminating": func(e *model.Endpoint) { e.Terminating = true },
		"no hints":    func(e *model.Endpoint) { e.ForZones, e.ForNodes = nil, nil },
		"zones":       zones("b"),
		"nodes":       nodes("n2"),
	} {
		before := endpoint("10.244.1.1", zones("a"), nodes("n1"))
		after := before
		change(&after)
		c := cluster(service("default/web"), slice("s", before))
		c.TakeDirty()
		set(c, slice("s", after))
		if got := c.TakeDirty(); len(got) != 1 {
			t.Errorf("%s: got %v dirty, want the Service", field, got)
		}
	}
}

func TestThePortsOfASliceAreAChange(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"), slice("s", localReady))
	c.TakeDirty()
	set(c, portSlice("s", model.SlicePort{Name: "http", Protocol: model.TCP, Port: 8081}, localReady))
	expectDirty(t, c, "default/web")
	expect(t, c, internalDial, inside, "10.244.1.1:8081")
}

func TestTheCallersSliceIsNotKept(t *testing.T) {
	t.Parallel()
	s := slice("s", endpoint("10.244.1.1", zones("a")))
	c := cluster(service("default/web"), s)
	s.Endpoints[0].Address, s.Endpoints[0].ForZones[0], s.Ports[0].Port = addr("10.244.9.9"), "x", 1
	expect(t, c, internalDial, inside, localDial)
}

func TestDirtyAndServicesAreSorted(t *testing.T) {
	t.Parallel()
	c := model.New(model.Config{Node: node})
	want := []string{"a/x", "a/y", "b/a", "default/web"}
	for i, n := range []string{"default/web", "b/a", "a/y", "a/x"} {
		set(c, service(n, clusterIPs(fmt.Sprintf("10.96.0.%d", i+1))))
	}
	var got []string
	for _, n := range c.Services() {
		got = append(got, n.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("services: got %v, want %v", got, want)
	}
	expectDirty(t, c, want...)
	expectDirty(t, c)
}

func TestADeletedServiceIsDirtyAndEmpty(t *testing.T) {
	t.Parallel()
	s := everyFrontend()
	s.HealthCheckNodePort = 31000
	c := cluster(s, slice("s", localReady, endpoint("127.0.0.1")))
	c.TakeDirty()
	c.DeleteService(s.ServiceName)
	expectDirty(t, c, "default/web")
	if got := c.Desired(s.ServiceName); got != nil {
		t.Errorf("service ports: got %v, want none", got)
	}
	if got := c.Problems(s.ServiceName); got != nil {
		t.Errorf("problems: got %v, want none", got)
	}
	if got := c.HealthChecks(s.ServiceName); got != nil {
		t.Errorf("health checks: got %v, want none", got)
	}
	if got := c.Services(); len(got) > 0 {
		t.Errorf("services: got %v, want none", got)
	}
}

// Ten thousand Services, ten endpoints each.
const manyServices = 10_000

func manyName(i int) model.ServiceName {
	return model.ServiceName{Namespace: "default", Name: fmt.Sprintf("service-%05d", i)}
}

func numbered(base netip.Addr, i int) netip.Addr {
	b := base.As4()
	b[1], b[2], b[3] = b[1]+byte(i>>16), byte(i>>8), byte(i)
	return netip.AddrFrom4(b)
}

func manyService(i int) *model.Service {
	return &model.Service{
		ServiceName: manyName(i),
		Created:     born(i),
		ClusterIPs:  []netip.Addr{numbered(addr("10.96.0.0"), i)},
		Ports:       []model.Port{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
}

// manySlice returns the slice of a Service; round makes it differ in one endpoint.
func manySlice(i, round int) *model.EndpointSlice {
	s := &model.EndpointSlice{
		SliceName: model.SliceName{Namespace: "default", Name: manyName(i).Name + "-abcde"},
		Service:   manyName(i),
		Family:    model.IPv4,
		Ports:     []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
	for j := range 10 {
		s.Endpoints = append(s.Endpoints, model.Endpoint{
			Address:  numbered(addr("10.100.0.0"), i*10+j),
			NodeName: fmt.Sprintf("node-%d", j), Ready: j > 0 || round%2 == 0, Serving: true,
		})
	}
	return s
}

func loadMany(c *model.Cluster) {
	for i := range manyServices {
		c.SetService(manyService(i))
		c.SetSlice(manySlice(i, 0))
	}
}

// It counts allocations, so it is not parallel.
func TestOneChangeAmongManyServicesConcernsOne(t *testing.T) {
	c := model.New(model.Config{Node: node})
	loadMany(c)
	if got := len(c.TakeDirty()); got != manyServices {
		t.Fatalf("got %d dirty, want all %d", got, manyServices)
	}
	c.SetSlice(manySlice(77, 1))
	expectDirty(t, c, manyName(77).String())
	if got := len(c.Desired(manyName(77))[0].Backends); got != 9 {
		t.Errorf("got %d backends, want 9", got)
	}
	changes := []*model.EndpointSlice{manySlice(77, 0), manySlice(77, 1)}
	allocations := testing.AllocsPerRun(10, func() {
		for _, change := range changes {
			c.SetSlice(change)
			for _, n := range c.TakeDirty() {
				c.Desired(n)
			}
		}
	})
	if allocations > 60 {
		t.Errorf("got %v allocations for two changes, want a number that is independent of the number of Services",
			allocations)
	}
}

func BenchmarkOneEndpointChangeAmongTenThousandServices(b *testing.B) {
	c := model.New(model.Config{Node: node})
	loadMany(c)
	c.TakeDirty()
	changes := []*model.EndpointSlice{manySlice(77, 1), manySlice(77, 0)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.SetSlice(changes[i%2])
		for _, n := range c.TakeDirty() {
			c.Desired(n)
		}
	}
}

func BenchmarkOneEndpointChangeInALargeService(b *testing.B) {
	c := cluster(service("default/web", nodePort(30080)))
	slices := make([][]*model.EndpointSlice, 2)
	for i := range 12 {
		for round := range slices {
			s := slice(fmt.Sprintf("s%d", i))
			for j := range 92 {
				s.Endpoints = append(s.Endpoints, model.Endpoint{
					Address: numbered(addr("10.100.0.0"), i*92+j), NodeName: "n2", Ready: j > 0 || round == 0, Serving: true,
				})
			}
			slices[round] = append(slices[round], s)
			c.SetSlice(s)
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.SetSlice(slices[i%2][5])
		c.Desired(name("default/web"))
	}
}

func BenchmarkLoadTenThousandServices(b *testing.B) {
	services, endpointSlices := make([]*model.Service, manyServices), make([]*model.EndpointSlice, manyServices)
	for i := range manyServices {
		services[i], endpointSlices[i] = manyService(i), manySlice(i, 0)
	}
	var c *model.Cluster
	before := heap()
	for b.Loop() {
		c = model.New(model.Config{Node: node})
		for i := range manyServices {
			c.SetService(services[i])
			c.SetSlice(endpointSlices[i])
		}
		for _, n := range c.TakeDirty() {
			c.Desired(n)
		}
	}
	b.ReportMetric((float64(heap())-float64(before))/(1<<20), "MiB")
	runtime.KeepAlive(c)
	runtime.KeepAlive(services)
	runtime.KeepAlive(endpointSlices)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
