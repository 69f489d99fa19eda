// SPDX-License-Identifier: Apache-2.0

// Package prog runs the packet programs on packets made here, in the kernel but on no device, and compares verdict,
// each byte, counters and map content.
package prog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	next     = ^uint32(0) // TC_ACT_UNSPEC
	drop     = uint32(2)  // TC_ACT_SHOT
	redirect = uint32(7)  // TC_ACT_REDIRECT

	// BPF_F_TEST_SKB_CHECKSUM_COMPLETE: the kernel checks that its sum over the packet is right afterwards (6.16).
	checkSum = 1 << 2

	flowCapacity = 64
)

// device is one end of a veth of the test's namespace.
type device struct {
	index int
	mac   net.HardwareAddr
}

// world is the programs over empty maps, in a network namespace that is a node: clients behind client0, other nodes
// behind up0, pods of this node behind pod0; narrow0 leads to other nodes with an MTU of 1400.
type world struct {
	t                     testing.TB
	programs              map[string]*ebpf.Program
	maps                  map[string]*ebpf.Map
	client, up, pod, thin device
	settings              maps.PacketSettings
	nextBackend           uint32
	slot                  uint32
	noCheckSum            bool
}

var gatewayMAC = net.HardwareAddr{2, 0, 0, 0, 0, 9} // of who sends

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := &world{t: t, programs: map[string]*ebpf.Program{}, maps: map[string]*ebpf.Map{}, nextBackend: 1}
	w.enterNode()
	w.load()
	w.settings = maps.DefaultPacketSettings()
	w.settings.FlowCapacity = flowCapacity
	w.settings.Pods[0] = prefixOf("10.244.1.0/24")
	w.settings.Pods[1] = prefixOf("fd00:244:1::/64")
	w.settings.Services[0] = prefixOf("10.96.0.0/16")
	w.settings.Services[1] = prefixOf("fd00:96::/112")
	w.settings.Flags = maps.PacketNodePods
	w.applySettings()
	return w
}

func prefixOf(s string) maps.Prefix {
	p := netip.MustParsePrefix(s)
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return maps.Prefix{Address: maps.AddressOf(p.Addr()), Bits: uint32(bits)}
}

// enterNode moves the test's thread into a new namespace; a thread that cannot return ends with its goroutine.
func (w *world) enterNode() {
	runtime.LockOSThread()
	before := must[netns.NsHandle](w.t)(netns.Get())
	node := must[netns.NsHandle](w.t)(netns.New())
	w.t.Cleanup(func() {
		if err := netns.Set(before); err == nil {
			runtime.UnlockOSThread()
		}
		before.Close()
		node.Close()
	})
	for _, path := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/thread-self/root/proc/sys/net/"+path, []byte("1"), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	w.client = w.addDevice("client0", 1500, "198.51.100.1/24", "2001:db8:1::1/64")
	w.up = w.addDevice("up0", 1500, "10.0.0.1/24", "fd00::1/64")
	w.pod = w.addDevice("pod0", 1500)
	w.thin = w.addDevice("thin0", 1400, "10.0.4.1/24", "fd00:4::1/64")
	w.addRoute("10.244.1.0/24", w.pod, "")
	w.addRoute("fd00:244:1::/64", w.pod, "")
	w.addRoute("10.244.2.0/24", w.up, "10.0.0.2")
	w.addRoute("fd00:244:2::/64", w.up, "fd00::2")
	w.addRoute("10.244.4.0/24", w.thin, "10.0.4.2")
	w.addRoute("fd00:244:4::/64", w.thin, "fd00:4::2")
}

func (w *world) addDevice(name string, mtu int, addresses ...string) device {
	w.t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: name + "p"}
	if err := netlink.LinkAdd(veth); err != nil {
		w.t.Fatal(err)
	}
	for _, n := range []string{name, name + "p"} {
		if err := netlink.LinkSetUp(must[netlink.Link](w.t)(netlink.LinkByName(n))); err != nil {
			w.t.Fatal(err)
		}
	}
	link := must[netlink.Link](w.t)(netlink.LinkByName(name))
	for _, a := range addresses {
		address := must[*netlink.Addr](w.t)(netlink.ParseAddr(a))
		address.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, address); err != nil {
			w.t.Fatal(err)
		}
	}
	return device{index: link.Attrs().Index, mac: link.Attrs().HardwareAddr}
}

func (w *world) addRoute(to string, over device, gateway string) {
	w.t.Helper()
	route := &netlink.Route{LinkIndex: over.index, Dst: must[*net.IPNet](w.t)(netlink.ParseIPNet(to))}
	if gateway != "" {
		route.Gw = net.ParseIP(gateway)
	}
	if err := netlink.RouteAdd(route); err != nil {
		w.t.Fatalf("add route %s: %v", to, err)
	}
}

func (w *world) load() {
	w.t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		w.t.Fatal(err)
	}
	spec := must[*ebpf.CollectionSpec](w.t)(loader.PacketSpec())
	for name, m := range spec.Maps {
		switch name {
		case "conntrack":
			m.MaxEntries = 2 * flowCapacity
		case "conntrack_ring":
			m.MaxEntries = flowCapacity
		default:
			m.MaxEntries = min(m.MaxEntries, 4096)
		}
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		var refused *ebpf.VerifierError
		if errors.As(err, &refused) {
			w.t.Fatalf("%+v", refused)
		}
		w.t.Fatal(err)
	}
	w.t.Cleanup(collection.Close)
	w.programs, w.maps = collection.Programs, collection.Maps
}

func (w *world) put(name string, key, value any) {
	w.t.Helper()
	if err := w.maps[name].Put(key, value); err != nil {
		w.t.Fatalf("put into %s: %v", name, err)
	}
}

func (w *world) applySettings() {
	w.t.Helper()
	w.put("packet_settings", uint32(0), w.settings)
}

// endpoint is a backend of a service under test.
type endpoint struct {
	address string // with port
	onNode  bool
	flags   maps.BackendFlags // 0: in both sets if on the node, else in the cluster set
}

// addService programs one service port under one frontend, and returns the ids of its backends.
func (w *world) addService(id uint32, frontend string, proto uint8, change func(*maps.Service), endpoints ...endpoint) []uint32 {
	w.t.Helper()
	at := netip.MustParseAddrPort(frontend)
	var all, local []uint32
	for _, e := range endpoints {
		a := netip.MustParseAddrPort(e.address)
		b := maps.Backend{BackendID: w.nextBackend, ServiceID: id, Address: maps.AddressOf(a.Addr()), Port: a.Port(),
			Protocol: proto, Flags: maps.BackendCluster}
		if e.onNode {
			b.Flags |= maps.BackendLocal | maps.BackendOnNode
		}
		if e.flags != 0 {
			b.Flags = e.flags
		}
		w.nextBackend++
		w.put("backends", b.BackendID, b)
		all = append(all, b.BackendID)
		if b.Flags&maps.BackendLocal != 0 {
			local = append(local, b.BackendID)
		}
	}
	cluster := w.addRun(all)
	w.addRun(local)
	key := maps.Frontend{Address: maps.AddressOf(at.Addr()), Port: at.Port(), Protocol: proto}
	s := maps.Service{ServiceID: id, FrontendCheck: key.Check(), Internal: cluster, External: cluster, Kind: maps.KindClusterIP}
	if at.Addr().IsUnspecified() {
		s.Kind = maps.KindNodePort
	}
	if change != nil {
		change(&s)
	}
	w.put("services", key, s)
	return all
}

func (w *world) addRun(backends []uint32) maps.Run {
	run := maps.Run{Base: w.slot, Count: uint32(len(backends))}
	for _, b := range backends {
		w.put("slots", w.slot, b)
		w.slot++
	}
	return run
}

func (w *world) addAddress(address string, flags maps.AddressFlags) {
	w.put("addresses", maps.AddressOf(netip.MustParseAddr(address)), flags)
}

// result is what a program made of a packet.
type result struct {
	verdict uint32
	frame   []byte
}

// context is struct __sk_buff, as far as a test may set it.
func context(index, gsoSize int) []byte {
	b := make([]byte, 192)
	binary.NativeEndian.PutUint32(b[40:], uint32(index))
	binary.NativeEndian.PutUint32(b[176:], uint32(gsoSize))
	return b
}

func (w *world) run(program string, at device, frame []byte, gsoSize int) result {
	w.t.Helper()
	options := ebpf.RunOptions{
		Data:    frame,
		DataOut: make([]byte, len(frame)+2048),
		Context: context(at.index, gsoSize),
	}
	if !w.noCheckSum {
		options.Flags = checkSum
	}
	verdict, err := w.programs[program].Run(&options)
	if errors.Is(err, unix.EINVAL) && !w.noCheckSum {
		w.noCheckSum = true
		return w.run(program, at, frame, gsoSize)
	}
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", program, err, hex.Dump(frame))
	}
	return result{verdict, options.DataOut}
}

// ingress runs a packet in at a device; MAC addresses are filled in.
func (w *world) ingress(at device, p packet) result {
	w.t.Helper()
	return w.run("tc_ingress", at, w.framed(at, p).bytes(), 0)
}

// egress runs a packet out of a device.
func (w *world) egress(at device, p packet) result {
	w.t.Helper()
	return w.run("tc_egress", at, w.framed(at, p).bytes(), 0)
}

func (w *world) framed(at device, p packet) packet {
	if p.toMAC == nil {
		p.toMAC = at.mac
	}
	if p.fromMAC == nil {
		p.fromMAC = gatewayMAC
	}
	return p
}

// expect compares with a packet that is built as it should be.
func (w *world) expect(at device, got result, verdict uint32, p packet) {
	w.t.Helper()
	if got.verdict != verdict {
		w.t.Fatalf("verdict %d, want %d; drops: %v", int32(got.verdict), int32(verdict), w.drops())
	}
	want := w.framed(at, p).bytes()
	if !bytes.Equal(got.frame, want) {
		w.t.Fatalf("got\n%swant\n%s", hex.Dump(got.frame), hex.Dump(want))
	}
}

// drops returns the counters that are not zero.
func (w *world) drops() map[string]uint64 {
	w.t.Helper()
	counts := map[string]uint64{}
	for reason := 0; maps.ReasonWord(reason) != ""; reason++ {
		var perCPU []uint64
		if err := w.maps["drops"].Lookup(uint32(reason), &perCPU); err != nil {
			w.t.Fatal(err)
		}
		for _, n := range perCPU {
			if n > 0 {
				counts[maps.ReasonWord(reason)] += n
			}
		}
	}
	return counts
}

// expectDrops compares all counters.
func (w *world) expectDrops(want map[string]uint64) {
	w.t.Helper()
	if got := w.drops(); fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Fatalf("counted %v, want %v", got, want)
	}
}

type entry struct {
	key   maps.ConntrackKey
	value maps.ConntrackValue
}

// conntrack returns all elements.
func (w *world) conntrack() []entry {
	w.t.Helper()
	var all []entry
	var e entry
	it := w.maps["conntrack"].Iterate()
	for it.Next(&e.key, &e.value) {
		all = append(all, e)
	}
	if err := it.Err(); err != nil {
		w.t.Fatal(err)
	}
	return all
}

// expectPairs checks that there are this many flows, each with both its elements.
func (w *world) expectPairs(flows int) {
	w.t.Helper()
	all := w.conntrack()
	if len(all) != 2*flows {
		w.t.Fatalf("%d elements in conntrack, want %d", len(all), 2*flows)
	}
	for _, e := range all {
		var other maps.ConntrackValue
		key := e.key.Other(e.value.To)
		if err := w.maps["conntrack"].Lookup(key, &other); err != nil {
			w.t.Fatalf("element %+v has no other half: %v", e.key, err)
		}
		if back := key.Other(other.To); back != e.key {
			w.t.Fatalf("the other half of %+v leads to %+v", e.key, back)
		}
	}
}
