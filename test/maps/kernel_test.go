// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"iter"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/shunt-lb/shunt/pkg/maps"
)

func frontend(i int) maps.Frontend {
	return maps.Frontend{Address: maps.Address{10: 0xff, 11: 0xff, 14: byte(i >> 8), 15: byte(i)}, Port: 80, Protocol: 6}
}

// frontends returns n elements for services.
func frontends(n int) ([]maps.Frontend, []maps.Service) {
	keys, values := make([]maps.Frontend, n), make([]maps.Service, n)
	for i := range n {
		keys[i] = frontend(i)
		values[i] = maps.Service{ServiceID: uint32(i + 1), FrontendCheck: keys[i].Check(), Kind: maps.KindClusterIP}
	}
	return keys, values
}

func backends(n int) []maps.Backend {
	all := make([]maps.Backend, n)
	for i := range all {
		all[i] = maps.Backend{BackendID: uint32(i + 1), ServiceID: 1, Port: 80, Flags: maps.BackendCluster}
	}
	return all
}

func ids(n int) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = uint32(i + 1)
	}
	return all
}

// collect reads an iteration to its end.
func collect[T any](t *testing.T, all iter.Seq2[T, error]) []T {
	t.Helper()
	var got []T
	for e, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	return got
}

func TestManyElementsAreWrittenReadAndDeleted(t *testing.T) {
	k, _ := kernel(t, nil)
	const n = 3000
	keys, values := frontends(n)
	if done, err := k.PutServices(keys, values); done != n || err != nil {
		t.Fatal(done, err)
	}
	got := map[maps.Frontend]maps.Service{}
	for _, e := range collect(t, k.Services()) {
		got[e.Key] = e.Value
	}
	for i := range keys {
		if got[keys[i]] != values[i] {
			t.Fatalf("%v is %+v", keys[i], got[keys[i]])
		}
	}
	// Every third key is deleted, with keys among them that are not there.
	var some []maps.Frontend
	for i := 0; i < n; i += 3 {
		some = append(some, keys[i], frontend(n+i))
	}
	if done, err := k.DeleteServices(some); done != len(some) || err != nil {
		t.Fatal(done, err)
	}
	for i := range keys {
		s, there, err := k.Service(keys[i])
		if err != nil || there != (i%3 != 0) || there && s != values[i] {
			t.Fatalf("%d: %+v, %t, %v", i, s, there, err)
		}
	}
	if left := len(collect(t, k.Services())); left != n-n/3 {
		t.Fatalf("%d elements are left", left)
	}
}

func TestAFullMapTellsWhichElementDidNotFit(t *testing.T) {
	k, _ := kernel(t, map[string]uint32{maps.MapServices: 8, maps.MapBackends: 8, maps.MapSourceRanges: 8})
	check := func(name string, done int, err error) {
		t.Helper()
		var full *maps.FullError
		if done != 8 || !errors.Is(err, maps.ErrFull) || !errors.As(err, &full) || *full != (maps.FullError{Map: name, Size: 8}) {
			t.Fatalf("%d, %v", done, err)
		}
	}
	keys, values := frontends(12)
	done, err := k.PutServices(keys, values)
	check(maps.MapServices, done, err)
	// What is there can still be replaced.
	values[3].AffinityTimeout = 7
	if done, err := k.PutServices(keys[2:8], values[2:8]); done != 6 || err != nil {
		t.Fatal(done, err)
	}
	if s, _, _ := k.Service(keys[3]); s != values[3] {
		t.Fatalf("%+v", s)
	}

	done, err = k.PutBackends(backends(12))
	check(maps.MapBackends, done, err)

	ranges := make([]maps.SourceRange, 12)
	for i := range ranges {
		ranges[i] = maps.SourceRange{PrefixBits: 160, ServiceID: 1, Address: maps.Address{15: byte(i)}}
	}
	done, err = k.PutSourceRanges(ranges)
	check(maps.MapSourceRanges, done, err)
}

func TestEachMapIsReadAsItWasWritten(t *testing.T) {
	k, _ := kernel(t, nil)
	all := backends(5)
	if _, err := k.PutBackends(all); err != nil {
		t.Fatal(err)
	}
	if b, there, err := k.Backend(3); b != all[2] || !there || err != nil {
		t.Errorf("backend: %+v, %t, %v", b, there, err)
	}
	if _, there, err := k.Backend(99); there || err != nil {
		t.Errorf("absent backend: %t, %v", there, err)
	}
	if _, err := k.DeleteBackends([]uint32{2, 4}); err != nil {
		t.Fatal(err)
	}
	got := collect(t, k.Backends())
	slices.SortFunc(got, func(a, b maps.Backend) int { return int(a.BackendID) - int(b.BackendID) })
	if want := []maps.Backend{all[0], all[2], all[4]}; !slices.Equal(got, want) {
		t.Errorf("backends: %+v", got)
	}

	name := maps.ServiceName{Protocol: 6, Family: 4}
	copy(name.Name[:], "web")
	if _, err := k.PutServiceNames(ids(2), []maps.ServiceName{name, name}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.DeleteServiceNames([]uint32{1}); err != nil {
		t.Fatal(err)
	}
	if names := collect(t, k.ServiceNames()); len(names) != 1 || names[0].Key != 2 || names[0].Value != name {
		t.Errorf("names: %v", names)
	}

	address := maps.Address{15: 9}
	if _, err := k.PutAddresses([]maps.Address{{15: 8}, address}, []maps.AddressFlags{1, 6}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.DeleteAddresses([]maps.Address{{15: 8}}); err != nil {
		t.Fatal(err)
	}
	want := []maps.Entry[maps.Address, maps.AddressFlags]{{Key: address, Value: 6}}
	if got := collect(t, k.Addresses()); !slices.Equal(got, want) {
		t.Errorf("addresses: %v", got)
	}
	if f, there, err := k.Address(address); f != 6 || !there || err != nil {
		t.Errorf("address: %v, %t, %v", f, there, err)
	}

	ranges := []maps.SourceRange{{PrefixBits: 32, ServiceID: 1}, {PrefixBits: 136, ServiceID: 1, Address: address}}
	if _, err := k.PutSourceRanges(ranges); err != nil {
		t.Fatal(err)
	}
	if _, err := k.DeleteSourceRanges(ranges[:1]); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, k.SourceRanges()); len(got) != 1 || got[0].PrefixBits != 136 {
		t.Errorf("source ranges: %v", got)
	}

	meta := maps.Meta{LayoutVersion: maps.LayoutVersion, NextBackendID: 77}
	if err := k.PutMeta(meta); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Meta(); got != meta || err != nil {
		t.Errorf("meta: %v, %v", got, err)
	}
}

func TestSlotsAreWrittenThroughTheMappingAndNotBeyondTheEnd(t *testing.T) {
	k, made := kernel(t, map[string]uint32{maps.MapSlots: 1001})
	if err := k.PutSlots(998, []uint32{7, 8, 9}); err != nil {
		t.Fatal(err)
	}
	var cell uint32
	if err := made[maps.MapSlots].Lookup(uint32(999), &cell); err != nil || cell != 8 {
		t.Errorf("a program finds %d, %v", cell, err)
	}
	if got, err := k.Slots(maps.Run{Base: 997, Count: 4}); !slices.Equal(got, []uint32{0, 7, 8, 9}) || err != nil {
		t.Errorf("slots: %v, %v", got, err)
	}
	// The mapping ends with a page, later than the map.
	if err := k.PutSlots(1000, []uint32{1, 2}); err == nil {
		t.Error("a cell beyond the map was written")
	}
	if _, err := k.Slots(maps.Run{Base: 1000, Count: 2}); err == nil {
		t.Error("a cell beyond the map was read")
	}
	if _, err := k.Slots(maps.Run{Base: 2, Count: ^uint32(0)}); err == nil {
		t.Error("a run of all the cells there can be was read")
	}
}

func TestCountersAreTheSumsOverAllCPUs(t *testing.T) {
	k, made := kernel(t, nil)
	cpus := ebpf.MustPossibleCPU()
	all := ids(size - 1)
	want := make([]maps.ServiceStats, len(all))
	for i, id := range all {
		perCPU := make([]maps.ServiceStats, cpus)
		for c := range perCPU {
			perCPU[c] = maps.ServiceStats{Connections: uint64(id), Refused: uint64(c), NoBackend: 1}
			want[i].Connections += perCPU[c].Connections
			want[i].Refused += perCPU[c].Refused
			want[i].NoBackend += perCPU[c].NoBackend
		}
		if err := made[maps.MapServiceStats].Put(id, perCPU); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := k.ServiceStats(all); err != nil || !slices.Equal(got, want) {
		t.Errorf("all: %v", err)
	}
	few := []uint32{9, 3, size - 1}
	if got, err := k.ServiceStats(few); err != nil || !slices.Equal(got, []maps.ServiceStats{want[8], want[2], want[size-2]}) {
		t.Errorf("few: %v, %v", got, err)
	}
	if _, err := k.ServiceStats([]uint32{size}); err == nil {
		t.Error("an id beyond the end has counters")
	}
	if done, err := k.ResetServiceStats([]uint32{3, 9}); done != 2 || err != nil {
		t.Fatal(done, err)
	}
	if got, err := k.ServiceStats(few); err != nil || !slices.Equal(got, []maps.ServiceStats{{}, {}, want[size-2]}) {
		t.Errorf("after the reset: %v, %v", got, err)
	}

	perCPU := make([]uint64, cpus)
	for c := range perCPU {
		perCPU[c] = uint64(c + 1)
	}
	if err := made[maps.MapDrops].Put(uint32(2), perCPU); err != nil {
		t.Fatal(err)
	}
	sum := uint64(cpus * (cpus + 1) / 2)
	if got, err := k.Drops(); err != nil || !slices.Equal(got, []uint64{0, 0, sum, 0, 0}) {
		t.Errorf("drops: %v, %v", got, err)
	}
}

func TestAffinityIsReadWhileProgramsChangeIt(t *testing.T) {
	k, made := kernel(t, map[string]uint32{maps.MapAffinity: 1 << 16})
	affinity := made[maps.MapAffinity]
	key := func(service, client uint32) maps.AffinityKey {
		return maps.AffinityKey{ServiceID: service, NetnsCookie: uint64(client)}
	}
	put := func(service, client uint32) {
		key, value := key(service, client), maps.AffinityValue{BackendID: client}
		if err := affinity.Put(&key, &value); err != nil {
			t.Error(err)
		}
	}
	const steady = 2000
	for i := range uint32(steady) {
		put(1, i)
	}
	stop := churn(func(i uint32) {
		put(2, i%500)
		old := key(2, (i+250)%500)
		if err := affinity.Delete(&old); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Error(err)
		}
	})
	for range 200 {
		seen := map[uint64]int{}
		for _, e := range collect(t, k.AffinityEntries()) {
			if e.Key.ServiceID == 1 {
				seen[e.Key.NetnsCookie]++
			}
		}
		if len(seen) != steady {
			t.Fatalf("%d of %d elements were seen", len(seen), steady)
		}
	}
	stop()
	if v, there, err := k.Affinity(key(1, 9)); v.BackendID != 9 || !there || err != nil {
		t.Errorf("%+v, %t, %v", v, there, err)
	}
}

// churn calls change with 0, 1, 2 … until the function that it returns is called.
func churn(change func(i uint32)) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := uint32(0); ; i++ {
			select {
			case <-done:
				return
			default:
				change(i)
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func TestSourceRangesAreReadWhileTheAgentChangesThem(t *testing.T) {
	dir := bpffs(t)
	pin(t, dir, map[string]uint32{maps.MapSourceRanges: 600})
	reader, agent := open(t, dir, maps.Options{ReadOnly: true}), open(t, dir, maps.Options{})
	source := func(service, i uint32) []maps.SourceRange {
		return []maps.SourceRange{{PrefixBits: 160, ServiceID: service, Address: maps.Address{14: byte(i >> 8), 15: byte(i)}}}
	}
	const steady = 300
	for i := range uint32(steady) {
		if _, err := agent.PutSourceRanges(source(1, i)); err != nil {
			t.Fatal(err)
		}
	}
	stop := churn(func(i uint32) {
		if _, err := agent.PutSourceRanges(source(i%3, 1000+i%100)); err != nil {
			t.Error(err)
		}
		if _, err := agent.DeleteSourceRanges(source((i+1)%3, 1000+(i+50)%100)); err != nil {
			t.Error(err)
		}
	})
	defer stop()
	for range 200 {
		seen := map[maps.SourceRange]bool{}
		n := 0
		for _, r := range collect(t, reader.SourceRanges()) {
			if seen[r] {
				t.Fatalf("%v is shown twice", r)
			}
			seen[r] = true
			if r.ServiceID == 1 && r.Address[14] < 2 {
				n++
			}
		}
		if n != steady {
			t.Fatalf("%d of %d elements were seen", n, steady)
		}
	}
}

func TestUsageCountsElementsAndCells(t *testing.T) {
	k, _ := kernel(t, nil)
	keys, values := frontends(3)
	for i := range values {
		values[i].Internal = maps.Run{Base: 0, Count: 4} // one run, whoever uses it
	}
	values[0].External = maps.Run{Base: 4, Count: 2}
	if _, err := k.PutServices(keys, values); err != nil {
		t.Fatal(err)
	}
	if _, err := k.PutBackends(backends(6)); err != nil {
		t.Fatal(err)
	}
	got, err := k.Usage()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]maps.Usage{}
	for _, name := range []string{maps.MapServices, maps.MapBackends, maps.MapSlots, maps.MapAddresses, maps.MapServiceNames,
		maps.MapSourceRanges, maps.MapAffinity} {
		want[name] = maps.Usage{Capacity: size}
	}
	want[maps.MapServices] = maps.Usage{Used: 3, Capacity: size}
	want[maps.MapBackends] = maps.Usage{Used: 6, Capacity: size}
	want[maps.MapSlots] = maps.Usage{Used: 6, Capacity: size}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("usage is %v", got)
	}
}
