// SPDX-License-Identifier: Apache-2.0

// Package packet proves the packet path with real traffic: two nodes and a client of the lab, the programs on one
// node's devices and none in its sockets, the maps written by hand. How the agent finds devices, and programs what
// manifests say, is the subject of package packetpath.
package packet

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/firewall"
	"github.com/shunt-lb/shunt/test/lab/process"
	"github.com/vishvananda/netlink"
)

const (
	tcp = process.TCP
	udp = process.UDP
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// world is a node with the packet programs on its devices, another node with none, and a client outside.
type world struct {
	t        *testing.T
	lab      *lab.Lab
	node     *lab.Node
	far      *lab.Node
	client   *lab.Process
	maps     *maps.Kernel
	packets  *loader.Packets
	datapath *loader.Datapath
	pins     *loader.Directory
	mode     attach.TCMode
	settings maps.PacketSettings

	services, backends, slots uint32
}

// variant is how the node is made.
type variant struct {
	name   string
	layout lab.Layout
	mode   attach.TCMode
	flows  uint32 // 0: 1024
}

var variants = []variant{
	{"routed pods, TCX", lab.Routed, attach.TCX, 0},
	{"bridged pods, TCX", lab.Bridged, attach.TCX, 0},
	{"routed pods, clsact", lab.Routed, attach.TCClsact, 0},
	{"bridged pods, clsact", lab.Bridged, attach.TCClsact, 0},
}

func newWorld(t *testing.T, v variant) *world {
	t.Helper()
	l := lab.New(t)
	w := &world{t: t, lab: l, mode: v.mode, services: 1, backends: 1}
	w.node = l.Node(lab.NodeOptions{Layout: v.layout})
	w.far = l.Node(lab.NodeOptions{Layout: v.layout})
	w.client = l.Client(lab.ClientOptions{}).Process()
	// What a careful node has: strict reverse path filters, and a firewall that trusts nothing it cannot follow.
	w.must(w.node.Set("ipv4/conf/all/rp_filter", "1"))
	switch err := firewall.DropInvalid(w.node); {
	case errors.Is(err, exec.ErrNotFound):
		t.Logf("without a firewall on the node: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	if v.flows == 0 {
		v.flows = 1024
	}
	w.load(v.flows)
	return w
}

func (w *world) load(flows uint32) {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	w.pins, err = loader.Lock(w.node.BPFFS)
	w.must(err)
	w.t.Cleanup(func() { w.pins.Close() })
	cookie, err := w.node.Cookie()
	w.must(err)
	w.datapath, err = loader.Load(loader.Options{
		Directory: w.pins, NetnsCookie: cookie, Log: log,
		Capacity: loader.Capacity{Services: 256, Backends: 256, Slots: 1024, Affinity: 256, SourceRanges: 64},
	})
	w.must(err)
	w.t.Cleanup(func() { w.datapath.Close() })
	w.packets, err = w.datapath.LoadPackets(loader.PacketOptions{
		Flows: flows, NodeAddress4: w.node.Address4, NodeAddress6: w.node.Address6, Log: log,
	})
	w.must(err)
	w.t.Cleanup(func() { w.packets.Close() })
	w.maps, err = maps.Open(w.pins.Path, maps.Options{})
	w.must(err)
	w.t.Cleanup(w.maps.Close)
	w.settings = maps.DefaultPacketSettings()
	w.settings.Flags = maps.PacketNodePods
	w.settings.Pods[0], w.settings.Pods[1] = prefixOf(w.node.Pods4), prefixOf(w.node.Pods6)
	w.settings.Services[0] = prefixOf(netip.MustParsePrefix("10.96.0.0/16"))
	w.settings.Services[1] = prefixOf(netip.MustParsePrefix("fd00:96::/112"))
	w.must(w.packets.Configure(w.settings))
	w.attach()
}

func prefixOf(p netip.Prefix) maps.Prefix {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return maps.Prefix{Address: maps.AddressOf(p.Addr()), Bits: uint32(bits)}
}

// attach puts the programs on the devices that the node has now, as the agent will.
func (w *world) attach() {
	w.t.Helper()
	w.must(w.node.Do(func() error {
		best, err := attach.NewPacketPath(w.pins, w.packets.Programs, attach.TCAuto)
		if err != nil {
			return err
		}
		if best.Mode != attach.TCX {
			w.mode = attach.TCClsact // a kernel before 6.6
		}
		path, err := attach.NewPacketPath(w.pins, w.packets.Programs, w.mode)
		if err != nil {
			return err
		}
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Type() == "bridge" || l.Attrs().Name == "lo" {
				continue
			}
			d := maps.Device{}
			ethernet := l.Attrs().EncapType == "ether"
			if ethernet {
				d.Flags |= maps.DeviceEthernet
			}
			copy(d.MAC[:], l.Attrs().HardwareAddr)
			if master := l.Attrs().MasterIndex; master != 0 {
				bridge, err := netlink.LinkByIndex(master)
				if err != nil {
					return err
				}
				d.Flags |= maps.DeviceBridgePort
				copy(d.MAC[:], bridge.Attrs().HardwareAddr)
			}
			if err := w.packets.SetDevice(l.Attrs().Index, d); err != nil {
				return err
			}
			if err := path.Attach(l.Attrs().Index, ethernet); err != nil {
				return err
			}
		}
		return nil
	}))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func protocolOf(network string) uint8 {
	if network == udp {
		return 17
	}
	return 6
}

// serve makes one frontend with a backend in each of the processes, which listen there as servers of their names.
func (w *world) serve(network string, frontend netip.AddrPort, kind maps.ServiceKind, servers ...*lab.Process) {
	w.t.Helper()
	var backends []netip.AddrPort
	for _, p := range servers {
		at := p.Address4
		if frontend.Addr().Is6() {
			at = p.Address6
		}
		listening := p.Listen(network, netip.AddrPortFrom(at, 0), p.Name)
		backends = append(backends, netip.AddrPortFrom(at, listening.Port()))
	}
	w.program(protocolOf(network), frontend, kind, backends...)
}

// program writes one frontend and its backends.
func (w *world) program(protocol uint8, frontend netip.AddrPort, kind maps.ServiceKind, addresses ...netip.AddrPort) {
	w.t.Helper()
	id := w.services
	w.services++
	var backends []maps.Backend
	var ids []uint32
	for _, a := range addresses {
		b := maps.Backend{BackendID: w.backends, ServiceID: id, Address: maps.AddressOf(a.Addr()), Port: a.Port(),
			Protocol: protocol, Flags: maps.BackendCluster}
		if w.node.Pods4.Contains(a.Addr()) || w.node.Pods6.Contains(a.Addr()) || a.Addr() == w.node.Address4 ||
			a.Addr() == w.node.Address6 {
			b.Flags |= maps.BackendOnNode | maps.BackendLocal
		}
		w.backends++
		backends, ids = append(backends, b), append(ids, b.BackendID)
	}
	run := maps.Run{Base: w.slots, Count: uint32(len(ids))}
	w.slots += run.Count
	_, err := w.maps.PutBackends(backends)
	w.must(err)
	w.must(w.maps.PutSlots(run.Base, ids))
	key := maps.Frontend{Address: maps.AddressOf(frontend.Addr()), Port: frontend.Port(), Protocol: protocol}
	_, err = w.maps.PutServices([]maps.Frontend{key}, []maps.Service{{
		ServiceID: id, FrontendCheck: key.Check(), Internal: run, External: run, Kind: kind,
	}})
	w.must(err)
}

func (w *world) address(a netip.Addr, flags maps.AddressFlags) {
	w.t.Helper()
	_, err := w.maps.PutAddresses([]maps.Address{maps.AddressOf(a)}, []maps.AddressFlags{flags})
	w.must(err)
}

// nodePort makes a node port, valid on the node's addresses, and returns what to dial.
func (w *world) nodePort(network string, family int, port uint16, servers ...*lab.Process) netip.AddrPort {
	w.t.Helper()
	at, any := w.node.Address4, netip.IPv4Unspecified()
	if family == 6 {
		at, any = w.node.Address6, netip.IPv6Unspecified()
	}
	w.serve(network, netip.AddrPortFrom(any, port), maps.KindNodePort, servers...)
	w.address(at, maps.AddressNodePorts|maps.AddressOnNode)
	return netip.AddrPortFrom(at, port)
}

// clusterIP makes a ClusterIP and returns what to dial.
func (w *world) clusterIP(network string, family int, port uint16, servers ...*lab.Process) netip.AddrPort {
	w.t.Helper()
	at := netip.AddrPortFrom(netip.MustParseAddr("10.96.0.10"), port)
	if family == 6 {
		at = netip.AddrPortFrom(netip.MustParseAddr("fd00:96::10"), port)
	}
	w.serve(network, at, maps.KindClusterIP, servers...)
	w.address(at.Addr(), maps.AddressClusterIP)
	return at
}

// expect exchanges a few lines with what is dialled and tells who answered, and whom it has seen.
func (w *world) expect(client *lab.Process, network string, dialled netip.AddrPort, server string, peer netip.Addr) {
	w.t.Helper()
	socket := client.Dial(network, dialled)
	defer socket.Close()
	if !socket.OK() {
		w.t.Fatalf("dial %s %v: %s\n%s", network, dialled, socket.Errno, w.state())
	}
	for i := range 3 {
		answer := socket.Exchange(fmt.Sprintf("question %d", i))
		if !answer.OK() {
			w.t.Fatalf("ask %s %v: %s\n%s", network, dialled, answer.Errno, w.state())
		}
		if answer.Server != server || answer.Peer.Addr().Unmap() != peer {
			w.t.Fatalf("%s %v: %s answered, and saw %v; want %s and %v", network, dialled, answer.Server,
				answer.Peer, server, peer)
		}
	}
}

// state is what the programs have counted and tracked, for messages.
func (w *world) state() string {
	text := "counted:" + w.counted()
	var key maps.ConntrackKey
	var value maps.ConntrackValue
	it := w.datapath.Maps[maps.MapConntrack].Iterate()
	for it.Next(&key, &value) {
		text += fmt.Sprintf("\n%v:%d -> %v:%d becomes %v:%d -> %v:%d, flags %d, %d packets", key.Source.Addr(),
			key.SourcePort, key.Destination.Addr(), key.DestinationPort, value.To.Source.Addr(), value.To.SourcePort,
			value.To.Destination.Addr(), value.To.DestinationPort, value.To.Flags, value.Packets)
	}
	return text
}

// defaultRoutes gives the node a way for everything, as a node on a real network has: towards the client.
func (w *world) defaultRoutes() {
	w.t.Helper()
	w.must(w.node.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), "eth0", w.client.Address4))
	w.must(w.node.AddRoute(netip.MustParsePrefix("::/0"), "eth0", w.client.Address6))
}

// nodeClients makes the packet path translate the node's own packets.
func (w *world) nodeClients() {
	w.t.Helper()
	w.settings.Flags |= maps.PacketNodeClients
	w.must(w.packets.Configure(w.settings))
	w.address(w.node.Address4, maps.AddressNodePorts|maps.AddressOnNode)
	w.address(w.node.Address6, maps.AddressNodePorts|maps.AddressOnNode)
}
