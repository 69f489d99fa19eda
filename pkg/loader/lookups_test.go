// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	shunt "github.com/shunt-lb/shunt/pkg/maps"
)

// The members of struct bpf_sock_addr and struct bpf_sock (linux/bpf.h) that connect4 reads.
const (
	contextSize     = 72
	contextIP4      = 4
	contextPort     = 24
	contextType     = 32
	contextProtocol = 36
	contextSocket   = 64
	socketSize      = 80
)

// dial runs connect4 for a TCP socket.
func (in *interpreter) dial(to netip.AddrPort) (allowed bool, dialled netip.AddrPort) {
	context := make([]byte, contextSize)
	address := to.Addr().As4()
	copy(context[contextIP4:], address[:])
	binary.BigEndian.PutUint16(context[contextPort:], to.Port())
	binary.LittleEndian.PutUint32(context[contextType:], 1)
	binary.LittleEndian.PutUint32(context[contextProtocol:], 6)
	binary.LittleEndian.PutUint64(context[contextSocket:], in.region(make([]byte, socketSize)))
	var registers [11]uint64
	registers[1] = in.region(context)
	allowed = in.run(0, registers) == 1
	return allowed, netip.AddrPortFrom(netip.AddrFrom4([4]byte(context[contextIP4:])),
		binary.BigEndian.Uint16(context[contextPort:]))
}

// littleEndianSock returns the object for little-endian machines, on any machine.
func littleEndianSock(t testing.TB) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := loadSock()
	if err != nil {
		t.Fatal(err)
	}
	if spec.ByteOrder != binary.LittleEndian {
		t.Skip("the interpreter is for little-endian machines")
	}
	return spec
}

// TestADialCostsFewLookups: services, slots and backends for a hit, services and addresses for a miss; affinity has a
// lookup of its own. Counters and the socket's own storage are not part of the decision.
func TestADialCostsFewLookups(t *testing.T) {
	spec := littleEndianSock(t)
	backend := netip.MustParseAddrPort("10.244.1.5:8080")
	node := netip.MustParseAddr("172.20.0.10")
	rows := []struct {
		name    string
		to      netip.AddrPort
		allowed bool
		dialled netip.AddrPort
		lookups map[string]int
	}{
		{"hit", netip.MustParseAddrPort("10.96.0.10:80"), true, backend,
			map[string]int{"services": 1, "slots": 1, "backends": 1}},
		{"affinity", netip.MustParseAddrPort("10.96.0.11:80"), true, backend,
			map[string]int{"services": 1, "affinity": 1, "backends": 1}},
		{"miss", netip.MustParseAddrPort("198.51.100.1:80"), true, netip.MustParseAddrPort("198.51.100.1:80"),
			map[string]int{"services": 1, "addresses": 1}},
		{"refused", netip.MustParseAddrPort("10.96.0.10:81"), false, netip.MustParseAddrPort("10.96.0.10:81"),
			map[string]int{"services": 2, "addresses": 2}},
		{"node port", netip.AddrPortFrom(node, 30080), true, backend,
			map[string]int{"services": 2, "addresses": 1, "slots": 1, "backends": 1}},
		{"another port of the node", netip.AddrPortFrom(node, 22), true, netip.AddrPortFrom(node, 22),
			map[string]int{"services": 3, "addresses": 1}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			in := newInterpreter(t, spec, "sock_connect4")
			programFew(in, node, backend)
			in.constants(spec, settings{Flags: settingSetRetval, NodeNetnsCookie: 1})
			allowed, dialled := in.dial(row.to)
			if allowed != row.allowed || dialled != row.dialled {
				t.Errorf("allowed: %t, dialled %s", allowed, dialled)
			}
			delete(in.lookups, "service_stats")
			delete(in.lookups, "drops")
			if !maps.Equal(in.lookups, row.lookups) {
				t.Errorf("lookups %v, want %v", in.lookups, row.lookups)
			}
			t.Logf("%d instructions", in.executed)
		})
	}
}

// constants sets what the loader sets in .rodata.
func (in *interpreter) constants(spec *ebpf.CollectionSpec, s settings) {
	in.t.Helper()
	encoded, err := binary.Append(nil, binary.LittleEndian, s)
	if err != nil {
		in.t.Fatal(err)
	}
	rodata := bytes.Clone(spec.Maps[".rodata"].Contents[0].Value.([]byte))
	copy(rodata[spec.Variables["settings"].Offset:], encoded)
	in.constant[".rodata"] = in.region(rodata)
}

// programFew programs a Service with one backend, the same with affinity, to which the node's client is bound, and a
// node port.
func programFew(in *interpreter, node netip.Addr, backend netip.AddrPort) {
	in.t.Helper()
	for i, frontend := range []string{"10.96.0.10:80", "10.96.0.11:80", "0.0.0.0:30080"} {
		id := uint32(i + 1)
		address := netip.MustParseAddrPort(frontend)
		key := shunt.Frontend{Address: shunt.AddressOf(address.Addr()), Port: address.Port(), Protocol: 6}
		value := shunt.Service{ServiceID: id, FrontendCheck: key.Check(), Internal: shunt.Run{Base: id, Count: 1}}
		if id == 2 {
			value.AffinityTimeout = 10800
		}
		in.element(shunt.MapServices, key, value)
		in.element(shunt.MapSlots, id, id)
		in.element(shunt.MapBackends, id, shunt.Backend{
			BackendID: id, ServiceID: id, Address: shunt.AddressOf(backend.Addr()), Port: backend.Port(), Protocol: 6,
			Flags: shunt.BackendCluster,
		})
		in.element(shunt.MapAddresses, shunt.AddressOf(address.Addr()), shunt.AddressClusterIP)
	}
	in.element(shunt.MapAffinity, shunt.AffinityKey{NetnsCookie: 1, ServiceID: 2},
		shunt.AffinityValue{LastUsedNs: 1, BackendID: 2})
	in.element(shunt.MapAddresses, shunt.AddressOf(node), shunt.AddressNodePorts|shunt.AddressOnNode)
}
