// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
)

// simple is a Service with one ClusterIP, and backends with these last bytes.
func simple(i int, backends ...byte) []model.ServicePort {
	p := model.ServicePort{
		Name: model.ServicePortName{
			ServiceName: model.ServiceName{Namespace: "ns", Name: fmt.Sprint("s", i)}, Port: "http",
			Protocol: model.TCP, Family: model.IPv4,
		},
		Frontends: []model.Frontend{{Kind: model.ClusterIP, FrontendKey: model.FrontendKey{
			Address: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Protocol: model.TCP,
		}}},
	}
	for _, b := range backends {
		p.Backends = append(p.Backends, model.Backend{
			Address: netip.AddrFrom4([4]byte{10, b, byte(i >> 8), byte(i)}), Port: 8080, Cluster: true,
		})
	}
	return []model.ServicePort{p}
}

// services is a desired state of such Services.
func services(all ...[]model.ServicePort) desired {
	d := desired{}
	for _, ports := range all {
		d[ports[0].Name.ServiceName] = ports
	}
	return d
}

func TestAChangeOfOneEndpointAmongManyCostsItsOwnSize(t *testing.T) {
	t.Parallel()
	const manyServices = 10_000
	fake := maps.NewFake(map[string]uint32{maps.MapBackends: 1 << 18, maps.MapSlots: 1 << 18})
	c := &checker{t: t, fake: fake}
	w := c.fresh()
	all := desired{}
	for i := range manyServices {
		ports := simple(i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
		all[ports[0].Name.ServiceName] = ports
	}
	if err := w.Write(changes(desired{}, all)).Err(); err != nil {
		t.Fatal(err)
	}
	// Retiring an endpoint includes that what is bound to it is told at once; it is deleted later.
	for _, row := range []struct {
		name       string
		to         []model.ServicePort
		now, later int
	}{
		{"an endpoint is added", simple(4711, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 3, 0},
		{"nothing changes", simple(4711, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 0, 0},
		{"an endpoint is removed", simple(4711, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9), 3, 1},
		{"an endpoint is replaced", simple(4711, 0, 1, 2, 3, 4, 5, 6, 7, 8, 77), 4, 1},
	} {
		before := fake.Operations()
		if err := w.Write(changes(desired{}, services(row.to))).Err(); err != nil {
			t.Fatal(err)
		}
		now := fake.Operations()
		c.settle(w)
		if later := fake.Operations(); now-before != row.now || later-now != row.later {
			t.Errorf("%s: %d operations and %d later, not %d and %d", row.name, now-before, later-now, row.now, row.later)
		}
	}
}

func TestAFullMapIsATypedErrorThatNamesMapSizeAndFlag(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, flag string }{
		{maps.MapServices, "--max-services"},
		{maps.MapServiceNames, "--max-services"},
		{maps.MapAddresses, "--max-services"},
		{maps.MapBackends, "--max-backends"},
		{maps.MapSlots, "--max-slots"},
		{maps.MapSourceRanges, "--max-source-ranges"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := newChecker(t, map[string]uint32{row.name: 1})
			w := c.fresh()
			large := simple(2, 1)
			large[0].Frontends[0].Kind = model.LoadBalancer
			large[0].SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
			other := simple(1, 1)
			other[0].Frontends[0].Kind = model.LoadBalancer
			other[0].SourceRanges = large[0].SourceRanges
			c.write(w, desired{}, services(other))

			both := services(other, large)
			r := w.Write(changes(desired{}, both))
			var full *maps.FullError
			if len(r.Failures) != 1 || r.Failures[0].Port != large[0].Name || !errors.As(r.Err(), &full) ||
				!errors.Is(r.Err(), maps.ErrFull) || *full != (maps.FullError{Map: row.name, Size: 1}) {
				t.Fatalf("%+v", r)
			}
			message := fmt.Sprintf("map %s is full at 1 elements: raise %s", row.name, row.flag)
			if !strings.Contains(r.Err().Error(), message) {
				t.Errorf("%v does not say %q", r.Err(), message)
			}
			c.failWith = maps.ErrFull
			c.others(both, r)

			// The other one goes: there is room as soon as it has been collected.
			c.steady = nil
			w.Write(changes(services(other), services(large)))
			c.now = c.now.Add(grace)
			if err := w.Collect().Err(); err != nil {
				t.Fatal(err)
			}
			c.write(w, desired{}, services(large))
			c.settle(w)
			c.exactly(w, services(large), nil)
		})
	}
}

func TestNothingIsRemovedBeforePruneSaysWhatIsDesired(t *testing.T) {
	t.Parallel()
	c := newChecker(t, nil)
	w := c.fresh()
	old := services(simple(1, 1, 2), simple(2, 1))
	c.write(w, desired{}, old)
	c.settle(w)
	// The process ends between an address and its frontend, and while a backend waits to be deleted.
	less := services(simple(1, 1), simple(2, 1), simple(3))
	c.keep(old, old, false)
	before := c.fake.Operations()
	c.fake.Before(func(o maps.Operation) error {
		if o.Map == maps.MapServices && o.Key == frontendKey(simple(3)[0].Frontends[0].FrontendKey) {
			return errCrash
		}
		return c.before(o)
	})
	w.Write(changes(old, less))
	if c.fake.Operations() == before {
		t.Fatal("nothing was written")
	}
	c.fake.Before(c.before)

	w = c.restart()
	c.write(w, desired{}, services(simple(1, 1)))
	c.now = c.now.Add(2 * grace)
	before = c.fake.Operations()
	w.Collect()
	if c.fake.Operations() != before {
		t.Error("something was collected")
	}
	if _, there, _ := c.fake.Address(maps.AddressOf(netip.MustParseAddr("10.96.0.3"))); !there {
		t.Error("the address without a frontend was removed")
	}
}

func TestARestartDoesNothingWhenNothingHasChanged(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		c := newChecker(t, nil)
		d := randomDice(seed).state()
		w := c.fresh()
		c.write(w, desired{}, d)
		c.settle(w)
		before := c.fake.Operations()
		w = c.restart()
		c.write(w, d, d)
		c.prune(w, d)
		c.settle(w)
		if n := c.fake.Operations() - before; n != 0 {
			t.Fatalf("seed %d: %d operations", seed, n)
		}
	}
}

func TestMemoryIsGivenBack(t *testing.T) {
	c := &checker{t: t, fake: maps.NewFake(nil), now: time.Unix(0, 0)}
	w := c.fresh()
	all := desired{}
	for i := range 2000 {
		ports := simple(i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
		all[ports[0].Name.ServiceName] = ports
	}
	var heap []uint64
	for range 6 {
		for _, way := range [][]plan.Change{changes(desired{}, all), changes(all, desired{})} {
			if err := w.Write(way).Err(); err != nil {
				t.Fatal(err)
			}
			c.settle(w)
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heap = append(heap, m.HeapAlloc)
	}
	if heap[5] > heap[1]+heap[1]/10 {
		t.Errorf("bytes in use after each round: %v", heap)
	}
	runtime.KeepAlive(w)
}

func TestASwitchThatFailsDoesNotLeaveAFrontendWithAnotherService(t *testing.T) {
	t.Parallel()
	c := newChecker(t, nil)
	w := c.fresh()
	from, to := simple(1, 1), simple(2, 2)
	to[0].Frontends = from[0].Frontends
	c.write(w, desired{}, services(from))
	c.steady = nil
	c.fake.SetCapacity(maps.MapBackends, 1)
	r := w.Write(changes(services(from), services(to)))
	if len(r.Failures) != 1 || r.Failures[0].Port != to[0].Name {
		t.Fatalf("%+v", r)
	}
	if _, there, _ := c.fake.Service(frontendKey(from[0].Frontends[0].FrontendKey)); there {
		t.Error("the frontend still leads to the Service that has lost it")
	}
}

func TestAServicePortThatFailsLosesAFrontendThatNobodyWants(t *testing.T) {
	t.Parallel()
	c := newChecker(t, nil)
	w := c.fresh()
	from, to := simple(1, 1), simple(1, 1, 2)
	from[0].Frontends = append(from[0].Frontends, simple(2)[0].Frontends...)
	c.write(w, desired{}, services(from))
	c.steady = nil
	c.fake.SetCapacity(maps.MapBackends, 1)
	if r := w.Write(changes(desired{}, services(to))); len(r.Failures) != 1 {
		t.Fatalf("%+v", r)
	}
	for i, want := range []bool{true, false} {
		if _, there, _ := c.fake.Service(frontendKey(from[0].Frontends[i].FrontendKey)); there != want {
			t.Errorf("%s is there: %t", from[0].Frontends[i].FrontendKey, there)
		}
	}
}

func TestNodeAddressesThatDoNotFitAreReported(t *testing.T) {
	t.Parallel()
	fake := maps.NewFake(map[string]uint32{maps.MapAddresses: 1})
	w := New(fake, plan.New(LimitsOf(fake)), Options{})
	addresses := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.2")}
	r := w.SetNodeAddresses(addresses, nil)
	if r.Operations != 1 || len(r.Failures) != 1 || !errors.Is(r.Err(), maps.ErrFull) {
		t.Fatalf("%+v", r)
	}
	fake.SetCapacity(maps.MapAddresses, 2)
	if r := w.SetNodeAddresses(addresses, nil); r.Operations != 1 || r.Err() != nil {
		t.Fatalf("%+v", r)
	}
	if f, _, _ := fake.Address(maps.AddressOf(addresses[1])); f != maps.AddressNodePorts {
		t.Errorf("flags are %b", f)
	}
}
