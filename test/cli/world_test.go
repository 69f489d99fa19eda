// SPDX-License-Identifier: Apache-2.0

// Package cli proves the commands against a real kernel: what explain says is what a socket meets, doctor sees what is
// attached, and cleanup leaves nothing.
package cli

import (
	"bytes"
	"net/netip"
	"os"
	"testing"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/cli"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/test/lab"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// world is a node with the socket programs attached, whose maps a test writes by hand.
type world struct {
	*maps.Kernel
	t         *testing.T
	node      *lab.Node
	directory *loader.Directory
	cells     uint32
	backends  uint32
}

func newWorld(t *testing.T, change ...func(*loader.Options)) *world {
	t.Helper()
	w := &world{t: t, node: lab.New(t).Node(lab.NodeOptions{}), cells: 1, backends: 1}
	var err error
	w.directory, err = loader.Lock(w.node.BPFFS)
	w.must(err)
	t.Cleanup(func() { w.directory.Close() })
	cookie, err := w.node.Cookie()
	w.must(err)
	options := loader.Options{
		Directory: w.directory, NetnsCookie: cookie, LoopbackNodePorts: true,
		NodeAddress4: w.node.Address4, NodeAddress6: w.node.Address6,
		Capacity: loader.Capacity{Services: 64, Backends: 64, Slots: 256, Affinity: 64, SourceRanges: 64},
	}
	for _, c := range change {
		c(&options)
	}
	datapath, err := loader.Load(options)
	w.must(err)
	t.Cleanup(func() { datapath.Close() })
	w.Kernel, err = maps.Open(w.directory.Path, maps.Options{})
	w.must(err)
	t.Cleanup(w.Kernel.Close)
	w.must(attach.Sockets(w.directory, w.node.CgroupRoot, datapath.Programs))
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wrote(_ int, err error) {
	w.t.Helper()
	w.must(err)
}

// run programs backends of a service and a run of them.
func (w *world) run(service uint32, flags maps.BackendFlags, addresses ...netip.AddrPort) maps.Run {
	w.t.Helper()
	run := maps.Run{Base: w.cells, Count: uint32(len(addresses))}
	var ids []uint32
	for _, a := range addresses {
		w.wrote(w.PutBackends([]maps.Backend{{
			BackendID: w.backends, ServiceID: service, Address: maps.AddressOf(a.Addr()), Port: a.Port(),
			Protocol: uint8(model.TCP), Flags: flags,
		}}))
		ids = append(ids, w.backends)
		w.backends++
	}
	w.must(w.PutSlots(run.Base, ids))
	w.cells += run.Count
	return run
}

func (w *world) service(frontend netip.AddrPort, p model.Protocol, s maps.Service) {
	w.t.Helper()
	key := maps.Frontend{Address: maps.AddressOf(frontend.Addr()), Port: frontend.Port(), Protocol: uint8(p)}
	s.FrontendCheck = key.Check()
	w.wrote(w.PutServices([]maps.Frontend{key}, []maps.Service{s}))
	name := maps.ServiceName{Protocol: uint8(p), Family: uint8(model.FamilyOf(frontend.Addr()))}
	copy(name.Namespace[:], "default")
	copy(name.Name[:], "web")
	w.wrote(w.PutServiceNames([]uint32{s.ServiceID}, []maps.ServiceName{name}))
}

func (w *world) address(a string, flags maps.AddressFlags) {
	w.t.Helper()
	w.wrote(w.PutAddresses([]maps.Address{maps.AddressOf(netip.MustParseAddr(a))}, []maps.AddressFlags{flags}))
}

// shunt runs a command line as on the node.
func (w *world) shunt(args ...string) (stdout, stderr string, status int) {
	w.t.Helper()
	var out, errs bytes.Buffer
	args = append(args, "--bpffs", w.node.BPFFS)
	w.must(w.node.Do(func() error {
		status = cli.Run(w.t.Context(), args, &out, &errs)
		return nil
	}))
	return out.String(), errs.String(), status
}

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
