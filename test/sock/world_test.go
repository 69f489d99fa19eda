// SPDX-License-Identifier: Apache-2.0

// Package sock proves the socket programs with real sockets: one node of the lab, the maps written by hand.
package sock

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const (
	tcp   = process.TCP
	udp   = process.UDP
	mptcp = process.MPTCP
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// world is a node with the socket programs attached.
type world struct {
	t        testing.TB
	node     *lab.Node
	pins     *loader.Directory
	datapath *loader.Datapath
	maps     *maps.Kernel

	services, backends, slots uint32
}

func newWorld(t testing.TB, change ...func(*loader.Options)) *world {
	t.Helper()
	w := &world{t: t, node: lab.New(t).Node(lab.NodeOptions{}), services: 1, backends: 1}
	var err error
	w.pins, err = loader.Lock(w.node.BPFFS)
	w.must(err)
	t.Cleanup(func() { w.pins.Close() })
	w.load(change...)
	return w
}

// smallCapacity makes maps that cost no time to make.
var smallCapacity = loader.Capacity{Services: 256, Backends: 256, Slots: 1024, Affinity: 256, SourceRanges: 64}

// load loads and attaches the programs as the agent does. Called again, it replaces them, over the same maps.
func (w *world) load(change ...func(*loader.Options)) {
	w.t.Helper()
	cookie, err := w.node.Cookie()
	w.must(err)
	options := loader.Options{
		Directory: w.pins, Capacity: smallCapacity, NetnsCookie: cookie, LoopbackNodePorts: true,
		NodeAddress4: w.node.Address4, NodeAddress6: w.node.Address6,
		Log: slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&options)
	}
	datapath, err := loader.Load(options)
	w.must(err)
	w.t.Cleanup(func() { datapath.Close() })
	w.datapath = datapath
	w.maps, err = maps.Open(w.pins.Path, maps.Options{})
	w.must(err)
	w.t.Cleanup(w.maps.Close)
	w.must(attach.Sockets(w.pins, w.node.CgroupRoot, datapath.Programs))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// service is what a test programs. Its frontends share one value but for the check of the key.
type service struct {
	id        uint32
	kind      maps.ServiceKind
	protocol  uint8
	frontends []netip.AddrPort
	backends  []netip.AddrPort
	flags     maps.ServiceFlags
	affinity  time.Duration

	backendIDs []uint32
}

const (
	protocolTCP = 6
	protocolUDP = 17

	usual = 5 * time.Second
)

func protocolOf(network string) uint8 {
	if network == udp {
		return protocolUDP
	}
	return protocolTCP
}

// program writes a service in the order of the design: backends, slots, the services elements last. Called again, it
// replaces the service.
func (w *world) program(s *service) *service {
	w.t.Helper()
	if s.id == 0 {
		s.id = w.services
		w.services++
	}
	if s.kind == 0 {
		s.kind = maps.KindClusterIP
	}
	old := s.backendIDs
	s.backendIDs = nil
	var backends []maps.Backend
	for _, b := range s.backends {
		backends = append(backends, maps.Backend{
			BackendID: w.backends, ServiceID: s.id, Address: maps.AddressOf(b.Addr()), Port: b.Port(),
			Protocol: s.protocol, Flags: maps.BackendCluster,
		})
		s.backendIDs = append(s.backendIDs, w.backends)
		w.backends++
	}
	run := maps.Run{Base: w.slots, Count: uint32(len(backends))}
	w.slots += run.Count
	_, err := w.maps.PutBackends(backends)
	w.must(err)
	w.must(w.maps.PutSlots(run.Base, s.backendIDs))
	keys, values := s.elements(run)
	_, err = w.maps.PutServices(keys, values)
	w.must(err)
	_, err = w.maps.DeleteBackends(old)
	w.must(err)
	return s
}

func (s *service) elements(run maps.Run) ([]maps.Frontend, []maps.Service) {
	var keys []maps.Frontend
	var values []maps.Service
	for _, f := range s.frontends {
		key := maps.Frontend{Address: maps.AddressOf(f.Addr()), Port: f.Port(), Protocol: s.protocol}
		keys = append(keys, key)
		values = append(values, maps.Service{
			ServiceID: s.id, FrontendCheck: key.Check(), Internal: run, Flags: s.flags,
			AffinityTimeout: uint32(s.affinity / time.Second), Kind: s.kind,
		})
	}
	return keys, values
}

// serve makes one service port with a backend in each of the processes, which listen there as servers of their names.
func (w *world) serve(network, frontend string, servers ...*lab.Process) *service {
	w.t.Helper()
	address := addrPort(frontend)
	s := &service{protocol: protocolOf(network), frontends: []netip.AddrPort{address}}
	for _, p := range servers {
		at := p.Address4
		if !address.Addr().Unmap().Is4() {
			at = p.Address6
		}
		s.backends = append(s.backends, p.Listen(network, netip.AddrPortFrom(at, 0), p.Name))
	}
	return w.program(s)
}

func (w *world) address(address string, flags maps.AddressFlags) {
	w.t.Helper()
	_, err := w.maps.PutAddresses([]maps.Address{maps.AddressOf(netip.MustParseAddr(address))}, []maps.AddressFlags{flags})
	w.must(err)
}

func (w *world) pod(name string) *lab.Process {
	return w.node.Pod(lab.PodOptions{Name: name}).Process()
}

func (w *world) stats(s *service) maps.ServiceStats {
	w.t.Helper()
	stats, err := w.maps.ServiceStats([]uint32{s.id})
	w.must(err)
	return stats[0]
}

func (w *world) drops(reason int) uint64 {
	w.t.Helper()
	drops, err := w.maps.Drops()
	w.must(err)
	return drops[reason]
}

// The reasons that tests look at, as in bpf/reason.h.
const (
	reasonNoBackend       = 0
	reasonLocalPolicyDrop = 1
	reasonUndefinedPort   = 2
	reasonSourceRange     = 3
	reasonFlowReplaced    = 5
	reasonClientUnknown   = 7
	reasonBindConflict    = 8
	reasonBindRefused     = 9
)

func addrPort(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// mapped returns an IPv4 address as a v4-mapped IPv6 one.
func mapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
}
