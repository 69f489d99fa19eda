// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
)

// world applies operations to a Cluster and remembers the objects that are left, and what a reader who asks for dirty
// Services alone knows about each.
type world struct {
	random    *rand.Rand
	cluster   *model.Cluster
	services  map[model.ServiceName]*model.Service
	slices    map[model.SliceName]*model.EndpointSlice
	node      model.Node
	addresses []netip.Addr
	known     map[model.ServiceName]state
}

// state is everything the Cluster says about one Service.
type state struct {
	ports    []model.ServicePort
	problems []model.Problem
	health   []model.HealthCheck
	serving  map[model.ServicePortName][]netip.AddrPort
}

func stateOf(c *model.Cluster, n model.ServiceName) state {
	s := state{ports: c.Desired(n), problems: c.Problems(n), health: c.HealthChecks(n)}
	s.serving = map[model.ServicePortName][]netip.AddrPort{}
	for _, p := range s.ports {
		s.serving[p.Name] = c.Serving(p.Name)
	}
	return s
}

func newWorld(seed uint64) *world {
	return &world{
		random:   rand.New(rand.NewPCG(seed, 0)),
		cluster:  model.New(model.Config{Node: node}),
		services: map[model.ServiceName]*model.Service{},
		slices:   map[model.SliceName]*model.EndpointSlice{},
		node:     node,
		known:    map[model.ServiceName]state{},
	}
}

// step applies one random operation. Names and addresses are few, so that all kinds of conflicts occur.
func (w *world) step() {
	switch w.random.IntN(12) {
	case 0, 1, 2:
		s := w.service()
		w.services[s.ServiceName] = s
		w.cluster.SetService(s)
	case 3:
		n := w.serviceName()
		delete(w.services, n)
		w.cluster.DeleteService(n)
	case 4, 5, 6, 7:
		s := w.slice()
		w.slices[s.SliceName] = s
		w.cluster.SetSlice(s)
	case 8:
		n := w.sliceName()
		delete(w.slices, n)
		w.cluster.DeleteSlice(n)
	case 9:
		w.node = model.Node{Name: pick(w, "n1", "n2", ""), Zone: pick(w, "a", "b", "")}
		w.cluster.SetNode(w.node)
	case 10:
		w.addresses = some(w, addrs("10.96.0.1", "10.96.0.2", "192.0.2.1", "fd96::1"))
		w.cluster.SetLocalAddresses(w.addresses)
	case 11:
		w.again()
	}
}

// again sets an object that is there already.
func (w *world) again() {
	for _, s := range w.services {
		same := *s
		w.cluster.SetService(&same)
		return
	}
}

func pick[T any](w *world, all ...T) T { return all[w.random.IntN(len(all))] }

func some[T any](w *world, all []T) []T {
	var out []T
	for _, x := range all {
		if w.random.IntN(3) == 0 {
			out = append(out, x)
		}
	}
	return out
}

func (w *world) flip() bool { return w.random.IntN(2) == 0 }

func (w *world) serviceName() model.ServiceName {
	return model.ServiceName{Namespace: "default", Name: pick(w, "a", "b", "c", "d")}
}

func (w *world) sliceName() model.SliceName {
	return model.SliceName{Namespace: "default", Name: pick(w, "s1", "s2", "s3", "s4", "s5")}
}

func (w *world) service() *model.Service {
	s := &model.Service{
		ServiceName:     w.serviceName(),
		Created:         born(w.random.IntN(3)),
		ClusterIPs:      some(w, addrs("10.96.0.1", "10.96.0.2", "fd96::1", "0.0.0.0", "::ffff:10.96.0.3")),
		ExternalIPs:     some(w, addrs("192.0.2.1", "10.96.0.1", "10.96.0.2", "2001:db8::1", "127.0.0.1", "192.0.2.1")),
		LoadBalancerIPs: some(w, addrs("192.0.2.1", "192.0.2.2", "2001:db8::1", "10.96.0.2")),
		SourceRanges:    some(w, prefixes("10.0.0.0/8", "10.0.0.0/8", "2001:db8::/32", "0.0.0.0/0")),
		InternalLocal:   w.flip(), ExternalLocal: w.flip(),
		Affinity:            pick(w, 0, time.Hour),
		HealthCheckNodePort: pick[uint16](w, 0, 31000),
	}
	for range w.random.IntN(4) {
		s.Ports = append(s.Ports, model.Port{
			Name: pick(w, "x", "y", "z"), Protocol: pick(w, model.TCP, model.UDP), Port: pick[uint16](w, 80, 81),
			NodePort: pick[uint16](w, 0, 30000, 30001),
		})
	}
	return s
}

func (w *world) slice() *model.EndpointSlice {
	s := &model.EndpointSlice{SliceName: w.sliceName(), Service: w.serviceName(), Family: pick(w, model.IPv4, model.IPv6)}
	for range w.random.IntN(3) {
		s.Ports = append(s.Ports, model.SlicePort{
			Name: pick(w, "x", "y"), Protocol: pick(w, model.TCP, model.UDP), Port: pick[uint16](w, 8080, 8081),
		})
	}
	for range w.random.IntN(5) {
		s.Endpoints = append(s.Endpoints, model.Endpoint{
			Address:  addr(pick(w, "10.244.0.1", "10.244.0.2", "10.244.0.3", "fd00::1", "fd00::2", "127.0.0.1")),
			NodeName: pick(w, "n1", "n2", ""),
			Ready:    w.flip(), Serving: w.flip(), Terminating: w.flip(),
			ForZones: pick(w, nil, []string{"a"}, []string{"b"}, []string{"a", "b"}),
			ForNodes: pick(w, nil, []string{"n1"}, []string{"n2"}),
		})
	}
	return s
}

// fresh returns a Cluster that is told the final objects alone, in the random order of maps.
func (w *world) fresh() *model.Cluster {
	c := model.New(model.Config{Node: w.node})
	c.SetLocalAddresses(w.addresses)
	for _, s := range w.slices {
		c.SetSlice(s)
	}
	for _, s := range w.services {
		c.SetService(s)
	}
	return c
}

// check compares what a reader of dirty Services knows with a fresh Cluster.
func (w *world) check() error {
	for _, n := range w.cluster.TakeDirty() {
		w.known[n] = stateOf(w.cluster, n)
	}
	fresh := w.fresh()
	for _, n := range []string{"a", "b", "c", "d"} {
		n := model.ServiceName{Namespace: "default", Name: n}
		got, want := w.known[n], stateOf(fresh, n)
		if got.serving == nil {
			got.serving = map[model.ServicePortName][]netip.AddrPort{}
		}
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("state of %v:\n got %+v\nwant %+v", n, got, want)
		}
	}
	if got, want := w.cluster.Services(), fresh.Services(); !reflect.DeepEqual(got, want) {
		return fmt.Errorf("services: got %v, want %v", got, want)
	}
	return invariants(fresh)
}

// invariants are what no state may break: a frontend has one owner, a backend is in a set, everything is sorted.
func invariants(c *model.Cluster) error {
	owners := map[model.FrontendKey]model.ServicePortName{}
	for _, n := range c.Services() {
		for _, p := range c.Desired(n) {
			for i, f := range p.Frontends {
				if other, twice := owners[f.FrontendKey]; twice {
					return fmt.Errorf("frontend %v belongs to %v and %v", f.FrontendKey, other, p.Name)
				}
				owners[f.FrontendKey] = p.Name
				if i > 0 && p.Frontends[i-1].Compare(f.FrontendKey) >= 0 {
					return fmt.Errorf("frontends of %v are not sorted", p.Name)
				}
				if model.FamilyOf(f.Address) != p.Name.Family {
					return fmt.Errorf("frontend %v is not of the family of %v", f.FrontendKey, p.Name)
				}
			}
			for i, b := range p.Backends {
				if !b.Cluster && !b.Local || b.Local && !b.OnNode {
					return fmt.Errorf("backend %+v of %v is in a wrong set", b, p.Name)
				}
				if model.FamilyOf(b.Address) != p.Name.Family {
					return fmt.Errorf("backend %v is not of the family of %v", b.Address, p.Name)
				}
				if i > 0 {
					a := p.Backends[i-1]
					if netip.AddrPortFrom(a.Address, a.Port).Compare(netip.AddrPortFrom(b.Address, b.Port)) >= 0 {
						return fmt.Errorf("backends of %v are not sorted", p.Name)
					}
				}
			}
		}
	}
	return nil
}

func runWorld(t *testing.T, seed uint64, steps int) {
	w := newWorld(seed)
	for i := range steps {
		w.step()
		// Readers are not always as quick as the source.
		if w.random.IntN(3) > 0 {
			continue
		}
		if err := w.check(); err != nil {
			t.Fatalf("seed %d, step %d: %v", seed, i, err)
		}
	}
	if err := w.check(); err != nil {
		t.Fatalf("seed %d, end: %v", seed, err)
	}
}

func TestChangesEndInTheStateOfAFreshCluster(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		runWorld(t, seed, 100)
	}
}

func FuzzChangesEndInTheStateOfAFreshCluster(f *testing.F) {
	f.Add(uint64(1), uint8(20))
	f.Add(uint64(2), uint8(200))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) { runWorld(t, seed, int(steps)) })
}

// A Cluster whose objects have all been deleted holds no claims and no indexes: whatever comes next is as in a new
// one.
func TestDeletingEverythingLeavesNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		w := newWorld(seed)
		for range 60 {
			w.step()
		}
		for n := range w.slices {
			w.cluster.DeleteSlice(n)
		}
		for n := range w.services {
			w.cluster.DeleteService(n)
		}
		if left := model.Left(w.cluster); left != "" {
			t.Fatalf("seed %d: left: %s", seed, left)
		}
	}
}
