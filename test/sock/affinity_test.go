// SPDX-License-Identifier: Apache-2.0

package sock

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
)

// bound makes count connections, which must all reach one server, and returns it.
func bound(t *testing.T, client *lab.Process, to netip.AddrPort, count int) string {
	t.Helper()
	result := client.Connects(tcp, to, count)
	if result.Total() != count || len(result.Servers) != 1 {
		t.Fatalf("%s to %s: %v %v, want one server", client.Name, to, result.Servers, result.Errnos)
	}
	for server := range result.Servers {
		return server
	}
	return ""
}

// sticky is a service with affinity and eight backends, in the two families.
func sticky(w *world, timeout time.Duration) []*service {
	w.t.Helper()
	var servers []*lab.Process
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		servers = append(servers, w.pod(name))
	}
	var all []*service
	for _, frontend := range []string{"10.96.0.10:80", "[fd00:96::10]:80"} {
		s := w.serve(tcp, frontend, servers...)
		s.affinity = timeout
		all = append(all, w.program(s))
	}
	return all
}

func TestAffinityBindsAPodToOneBackendByItsAddress(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	for _, s := range sticky(w, 24*time.Hour) {
		first := bound(t, client, s.frontends[0], 20)
		address := client.Address4
		if s.frontends[0].Addr().Is6() {
			address = client.Address6
		}
		key := maps.AffinityKey{Client: maps.AddressOf(address), ServiceID: s.id}
		value, found, err := w.maps.Affinity(key)
		if err != nil || !found {
			t.Fatalf("no binding under the pod's address: %v", err)
		}
		if i := slices.Index(s.backendIDs, value.BackendID); i < 0 || string(rune('a'+i)) != first {
			t.Errorf("bound to backend %d of %v, connected to %s", value.BackendID, s.backendIDs, first)
		}
		// A socket with an address of its own is the same client.
		for range 5 {
			socket := client.Open(socketBoundTo(address))
			if outcome := socket.Connect(s.frontends[0]); !outcome.OK() {
				t.Fatalf("connect: %s", outcome.Errno)
			}
			if reply := socket.Exchange("x"); reply.Server != first {
				t.Errorf("a bound socket reached %s, not %s", reply.Server, first)
			}
		}
		// v4-mapped dials are IPv4's client.
		if s.frontends[0].Addr().Is4() {
			if server := bound(t, client, mapped(s.frontends[0]), 5); server != first {
				t.Errorf("the v4-mapped address reached %s, not %s", server, first)
			}
		}
	}
}

func TestAffinityIsByPodAndForTheNodeAsOne(t *testing.T) {
	w := newWorld(t)
	s := sticky(w, time.Hour)[0]
	servers := map[string]bool{}
	// 12 pods of 8 backends: one server for all has a probability of 8^-11.
	for range 12 {
		servers[bound(t, w.node.Pod(lab.PodOptions{}).Process(), s.frontends[0], 3)] = true
	}
	if len(servers) == 1 {
		t.Errorf("all pods are bound to %v", servers)
	}
	node := bound(t, w.node.Process(), s.frontends[0], 10)
	if other := bound(t, w.node.Process(), s.frontends[0], 10); other != node {
		t.Errorf("two processes of the node reached %s and %s", node, other)
	}
}

func TestAffinityGivesWayWhenTheBackendGoesOrTheSetChanges(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	s := sticky(w, time.Hour)[0]
	first := bound(t, client, s.frontends[0], 5)
	i := int(first[0] - 'a')

	// Out of the cluster set, as an unready endpoint of a service with a local set: still there, no longer eligible.
	backend, _, err := w.maps.Backend(s.backendIDs[i])
	w.must(err)
	backend.Flags = maps.BackendLocal
	_, err = w.maps.PutBackends([]maps.Backend{backend})
	w.must(err)
	rest := slices.Delete(slices.Clone(s.backendIDs), i, i+1)
	run := maps.Run{Base: w.slots, Count: uint32(len(rest))}
	w.slots += run.Count
	w.must(w.maps.PutSlots(run.Base, rest))
	keys, values := s.elements(run)
	_, err = w.maps.PutServices(keys, values)
	w.must(err)
	second := bound(t, client, s.frontends[0], 20)
	if second == first {
		t.Fatalf("still bound to %s, which is not in the set", first)
	}

	// It returns: the client stays with the new one.
	backend.Flags = maps.BackendCluster
	_, err = w.maps.PutBackends([]maps.Backend{backend})
	w.must(err)
	s.backends = append(slices.Delete(slices.Clone(s.backends), i, i+1), s.backends[i])
	if again := bound(t, client, s.frontends[0], 5); again != second {
		t.Errorf("bound to %s again, not %s", again, second)
	}

	// Without affinity the choice is free, with it again there is a binding.
	s.affinity = 0
	w.program(s)
	if result := client.Connects(tcp, s.frontends[0], 40); len(result.Servers) < 2 {
		t.Errorf("without affinity: %v", result.Servers)
	}
}

func TestAffinityExpiresAndIsRenewedByNewConnections(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	s := sticky(w, 24*time.Hour)[0]
	first := bound(t, client, s.frontends[0], 1)
	key := maps.AffinityKey{Client: maps.AddressOf(client.Address4), ServiceID: s.id}
	affinity := w.datapath.Maps[maps.MapAffinity]
	read := func() maps.AffinityValue {
		t.Helper()
		value, found, err := w.maps.Affinity(key)
		if err != nil || !found {
			t.Fatalf("no binding: %v", err)
		}
		return value
	}
	// The clock is the kernel's: what moves is the time of the last use. Just within the timeout, then over it.
	value := read()
	now := value.LastUsedNs
	value.LastUsedNs = now - uint64(24*time.Hour-time.Minute)
	if int64(value.LastUsedNs) > 0 {
		w.must(affinity.Put(key, value))
	}
	if again := bound(t, client, s.frontends[0], 5); again != first {
		t.Errorf("bound to %s, not %s", again, first)
	}
	if renewed := read(); renewed.LastUsedNs <= now {
		t.Error("a new connection has not renewed the binding")
	}
	s.affinity = time.Second
	w.program(s)
	servers := map[string]bool{}
	for range 20 {
		value := read()
		value.LastUsedNs -= uint64(time.Second)
		w.must(affinity.Put(key, value))
		servers[bound(t, client, s.frontends[0], 1)] = true
	}
	if len(servers) < 2 {
		t.Errorf("an expired binding is still in force: %v", servers)
	}
}

func TestAffinityWithoutKernelMemoryGoesByNamespace(t *testing.T) {
	w := newWorld(t, func(o *loader.Options) { o.Without.ReadKernel = true })
	client := w.pod("client")
	s := sticky(w, time.Hour)[0]
	bound(t, client, s.frontends[0], 10)
	entries := 0
	for entry, err := range w.maps.AffinityEntries() {
		w.must(err)
		entries++
		if entry.Key.Client != (maps.Address{}) || entry.Key.NetnsCookie == 0 {
			t.Errorf("bound under %+v", entry.Key)
		}
	}
	if entries != 1 {
		t.Errorf("%d bindings", entries)
	}
}

func TestAffinityOfUDPIsForEachFlow(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	s := w.serve(udp, "10.96.0.10:53", w.pod("a"), w.pod("b"), w.pod("c"), w.pod("d"), w.pod("e"), w.pod("f"))
	s.affinity = time.Hour
	w.program(s)
	servers := map[string]bool{}
	for i := range 10 {
		if i%2 == 0 {
			servers[client.Dial(udp, s.frontends[0]).Exchange("x").Server] = true
		} else {
			servers[sendMany(t, unconnected(client, s.frontends[0]), s.frontends[0], 1)] = true
		}
	}
	if len(servers) != 1 {
		t.Errorf("answered by %v", servers)
	}
}
