// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"slices"
	"testing"
)

func TestAFakeStopsAtTheFirstElementThatFails(t *testing.T) {
	t.Parallel()
	f := NewFake(map[string]uint32{MapBackends: 2})
	backends := []Backend{{BackendID: 1}, {BackendID: 2}, {BackendID: 1, Port: 9}, {BackendID: 3}, {BackendID: 2, Port: 9}}
	done, err := f.PutBackends(backends)
	var full *FullError
	if done != 3 || !errors.As(err, &full) || *full != (FullError{Map: MapBackends, Size: 2}) {
		t.Fatalf("%d, %v", done, err)
	}
	var got []Backend
	for b := range f.Backends() {
		got = append(got, b)
	}
	if want := []Backend{backends[2], backends[1]}; !slices.Equal(got, want) {
		t.Errorf("backends are %+v", got)
	}
	if n := f.Operations(); n != 4 {
		t.Errorf("%d operations were tried", n)
	}
}

func TestAFakeShowsEachOperationToItsHooks(t *testing.T) {
	t.Parallel()
	f := NewFake(nil)
	refused := errors.New("refused")
	var done []Operation
	f.Before(func(o Operation) error {
		if o.Number == 1 {
			return refused
		}
		return nil
	})
	f.After(func(o Operation) { done = append(done, o) })
	key := Address{15: 1}
	for range 2 {
		if _, err := f.PutAddresses([]Address{key}, []AddressFlags{1}); err != nil && !errors.Is(err, refused) {
			t.Fatal(err)
		}
	}
	if err := f.PutSlots(3, []uint32{7, 8}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.DeleteAddresses([]Address{key}); err != nil {
		t.Fatal(err)
	}
	want := []Operation{
		{Number: 0, Map: MapAddresses, Key: key},
		{Number: 2, Map: MapSlots, Key: Run{Base: 3, Count: 2}},
		{Number: 3, Map: MapAddresses, Delete: true, Key: key},
	}
	if !slices.Equal(done, want) {
		t.Errorf("operations are %+v", done)
	}
}

func TestAFakeHasWhatProgramsWrite(t *testing.T) {
	t.Parallel()
	f := NewFake(nil)
	key := AffinityKey{ServiceID: 2}
	f.PutAffinity(key, AffinityValue{BackendID: 7})
	f.PutAffinity(AffinityKey{ServiceID: 1, NetnsCookie: 5}, AffinityValue{BackendID: 8})
	if v, there, err := f.Affinity(key); v.BackendID != 7 || !there || err != nil {
		t.Errorf("affinity is %+v, %t, %v", v, there, err)
	}
	var services []uint32
	for e := range f.AffinityEntries() {
		services = append(services, e.Key.ServiceID)
	}
	if !slices.Equal(services, []uint32{1, 2}) {
		t.Errorf("affinity of services %v", services)
	}
	f.AddServiceStats(4, ServiceStats{Connections: 2})
	f.AddServiceStats(4, ServiceStats{Connections: 3, Refused: 1})
	if s, err := f.ServiceStats([]uint32{4, 5}); err != nil || !slices.Equal(s, []ServiceStats{{Connections: 5, Refused: 1}, {}}) {
		t.Errorf("counters are %+v, %v", s, err)
	}
	f.SetDrops([]uint64{1, 2})
	if d, err := f.Drops(); err != nil || !slices.Equal(d, []uint64{1, 2}) {
		t.Errorf("drops are %v, %v", d, err)
	}
}
