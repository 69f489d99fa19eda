// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// foreign is the backend of a service that nobody in these tests dials.
const (
	foreignService = 9
	foreignBackend = 90
)

// raced is a program run with something that happens at the same time.
type raced struct {
	*interpreter
	frontend, nodePort, external netip.AddrPort
	backend                      netip.AddrPort
}

func newRaced(t *testing.T) *raced {
	t.Helper()
	spec := littleEndianSock(t)
	r := &raced{
		interpreter: newInterpreter(t, spec, "sock_connect4"),
		frontend:    netip.MustParseAddrPort("10.96.0.10:80"),
		nodePort:    netip.MustParseAddrPort("172.20.0.10:30080"),
		external:    netip.MustParseAddrPort("192.0.2.1:80"),
		backend:     netip.MustParseAddrPort("10.244.1.5:8080"),
	}
	programFew(r.interpreter, r.nodePort.Addr(), r.backend)
	r.constants(spec, settings{Flags: settingSetRetval, NodeNetnsCookie: 1})
	key := maps.Frontend{Address: maps.AddressOf(r.external.Addr()), Port: 80, Protocol: 6}
	r.element(maps.MapServices, key, maps.Service{ServiceID: 1, FrontendCheck: key.Check(),
		Internal: maps.Run{Base: 1, Count: 1}, Kind: maps.KindExternalIP})
	r.element(maps.MapAddresses, key.Address, maps.AddressService)
	return r
}

// encoded is a value as it is in a map.
func encoded(t *testing.T, value any) []byte {
	t.Helper()
	b, err := binary.Append(nil, binary.LittleEndian, value)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// otherService is the value of another frontend, which leads to another service's backend.
func otherService(t *testing.T) []byte {
	key := maps.Frontend{Address: maps.AddressOf(netip.MustParseAddr("10.96.0.99")), Port: 80, Protocol: 6}
	return encoded(t, maps.Service{ServiceID: foreignService, FrontendCheck: key.Check(),
		Internal: maps.Run{Base: foreignBackend, Count: 1}})
}

func otherBackend(t *testing.T) []byte {
	return encoded(t, maps.Backend{BackendID: foreignBackend, ServiceID: foreignService,
		Address: maps.AddressOf(netip.MustParseAddr("10.244.9.9")), Port: 9, Protocol: 6, Flags: maps.BackendCluster})
}

// TestAConcurrentWriterIsNeverMistaken: whatever a lookup finds for a moment, the dial reaches its own backend, or, if
// that never ends, is refused.
func TestAConcurrentWriterIsNeverMistaken(t *testing.T) {
	rows := []struct {
		name string
		dial func(*raced) netip.AddrPort
		// found is what the n-th lookup in the map finds instead of its value.
		mapName string
		found   func(t *testing.T, n int, value []byte) []byte
		refused bool
	}{
		{"a ClusterIP's element is missed once", (*raced).clusterIP, maps.MapServices, missedOnce, false},
		{"an external address's element is missed once", (*raced).externalIP, maps.MapServices, missedOnce, false},
		{"a node port's element is missed once", (*raced).nodePortOf, maps.MapServices,
			func(_ *testing.T, n int, value []byte) []byte {
				if n <= 2 { // the exact frontend, and the first look for the node port
					return nil
				}
				return value
			}, false},
		{"the memory of services has another frontend", (*raced).clusterIP, maps.MapServices,
			func(t *testing.T, n int, value []byte) []byte {
				if n <= 2 {
					return otherService(t)
				}
				return value
			}, false},
		{"the memory of services always has another frontend", (*raced).clusterIP, maps.MapServices,
			func(t *testing.T, _ int, _ []byte) []byte { return otherService(t) }, true},
		{"a backend's element is missed once", (*raced).clusterIP, maps.MapBackends, missedOnce, false},
		{"the memory of backends has another backend", (*raced).clusterIP, maps.MapBackends,
			func(t *testing.T, n int, value []byte) []byte {
				if n == 1 {
					return otherBackend(t)
				}
				return value
			}, false},
		{"a cell has a backend of another service", (*raced).clusterIP, maps.MapSlots,
			func(t *testing.T, n int, value []byte) []byte {
				if n == 1 {
					return encoded(t, uint32(foreignBackend))
				}
				return value
			}, false},
		{"the run's cells have been given to another service", (*raced).clusterIP, maps.MapSlots,
			func(t *testing.T, _ int, _ []byte) []byte { return encoded(t, uint32(foreignBackend)) }, true},
		{"the backends of the run are gone", (*raced).clusterIP, maps.MapBackends,
			func(*testing.T, int, []byte) []byte { return nil }, true},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			r := newRaced(t)
			r.element(maps.MapSlots, uint32(foreignBackend), uint32(foreignBackend))
			r.put(maps.MapBackends, string(encoded(t, uint32(foreignBackend))), otherBackend(t))
			r.found = func(name string, n int, value []byte) []byte {
				if name != row.mapName {
					return value
				}
				return row.found(t, n, value)
			}
			to := row.dial(r)
			allowed, dialled := r.dial(to)
			switch {
			case row.refused && allowed:
				t.Errorf("dialled %s, want a refusal", dialled)
			case !row.refused && (!allowed || dialled != r.backend):
				t.Errorf("allowed: %t, dialled %s, want %s", allowed, dialled, r.backend)
			}
		})
	}
}

func TestABoundClientStaysBoundWhenItsBackendIsMissedOnce(t *testing.T) {
	r := newRaced(t)
	key := maps.Frontend{Address: maps.AddressOf(netip.MustParseAddr("10.96.0.11")), Port: 80, Protocol: 6}
	r.element(maps.MapServices, key, maps.Service{ServiceID: 2, FrontendCheck: key.Check(), AffinityTimeout: 60,
		Internal: maps.Run{Base: 20, Count: 2}})
	// The first of the run is what the client would get; it is bound to the second.
	for i := range uint32(2) {
		r.element(maps.MapSlots, 20+i, 20+i)
		r.element(maps.MapBackends, 20+i, maps.Backend{BackendID: 20 + i, ServiceID: 2,
			Address: maps.AddressOf(r.backend.Addr()), Port: uint16(1 + i), Protocol: 6, Flags: maps.BackendCluster})
	}
	r.element(maps.MapAffinity, maps.AffinityKey{NetnsCookie: 1, ServiceID: 2},
		maps.AffinityValue{LastUsedNs: 1, BackendID: 21})
	r.found = func(name string, n int, value []byte) []byte {
		if name == maps.MapBackends {
			return missedOnce(t, n, value)
		}
		return value
	}
	if _, dialled := r.dial(netip.MustParseAddrPort("10.96.0.11:80")); dialled.Port() != 2 {
		t.Errorf("dialled %s, bound to port 2", dialled)
	}
}

func missedOnce(_ *testing.T, n int, value []byte) []byte {
	if n == 1 {
		return nil
	}
	return value
}

func (r *raced) clusterIP() netip.AddrPort  { return r.frontend }
func (r *raced) externalIP() netip.AddrPort { return r.external }
func (r *raced) nodePortOf() netip.AddrPort { return r.nodePort }

// TestAValueThatChangesUnderTheCopyIsReadAgain puts another frontend's value, or another backend's, into the memory
// after any number of loads from it.
func TestAValueThatChangesUnderTheCopyIsReadAgain(t *testing.T) {
	for mapName, other := range map[string]func(*testing.T) []byte{
		maps.MapServices: otherService, maps.MapBackends: otherBackend,
	} {
		changed := 0
		for after := range 8 {
			r := newRaced(t)
			var memory []byte
			loads := 0
			r.found = func(name string, n int, value []byte) []byte {
				if name == mapName && n == 1 {
					memory = append([]byte(nil), value...)
					return memory
				}
				return value
			}
			r.read = func(address uint64) {
				number := address >> 32
				if memory == nil || number >= uint64(len(r.regions)) || len(r.regions[number]) == 0 ||
					&r.regions[number][0] != &memory[0] {
					return
				}
				if loads == after {
					copy(memory, other(t))
					changed++
				}
				loads++
			}
			if allowed, dialled := r.dial(r.frontend); !allowed || dialled != r.backend {
				t.Errorf("%s changed after %d loads: allowed: %t, dialled %s", mapName, after, allowed, dialled)
			}
		}
		if changed < 5 {
			t.Errorf("%s was changed under %d copies, want each of its words", mapName, changed)
		}
	}
}
