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
	"strings"
	"sync"
	"testing"
	"time"

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
	node                  netns.NsHandle
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

// shared is made once for all tests: the namespace ends with the process.
var shared = sync.OnceValues(makeNode)

func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	node, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	w := *node
	w.t = t
	w.enter()
	w.clear()
	w.nextBackend = 1
	w.settings = maps.DefaultPacketSettings()
	// Short timeouts: a machine may not be up for long, and its clock has no negative times.
	w.settings.TCPSynNs, w.settings.TCPEstablishedNs = uint64(5*time.Second), uint64(10*time.Second)
	w.settings.TCPCloseWaitNs, w.settings.TCPClosingNs = uint64(8*time.Second), uint64(6*time.Second)
	w.settings.ResetNs, w.settings.SCTPEstablishedNs = uint64(4*time.Second), uint64(10*time.Second)
	w.settings.UDPUnrepliedNs, w.settings.UDPRepliedNs = uint64(5*time.Second), uint64(10*time.Second)
	w.settings.FlowCapacity = flowCapacity
	w.settings.Pods[0] = prefixOf("10.244.1.0/24")
	w.settings.Pods[1] = prefixOf("fd00:244:1::/64")
	w.settings.Services[0] = prefixOf("10.96.0.0/16")
	w.settings.Services[1] = prefixOf("fd00:96::/112")
	w.settings.Flags = maps.PacketNodePods
	w.applySettings()
	return &w
}

// makeNode makes the namespace, its devices, and the programs over small maps.
func makeNode() (*world, error) {
	w := &world{}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer before.Close()
	if w.node, err = netns.New(); err != nil {
		return nil, err
	}
	err = errors.Join(w.addDevices(), w.load())
	if back := netns.Set(before); back == nil {
		runtime.UnlockOSThread() // otherwise the thread ends with this goroutine
	}
	return w, err
}

// enter moves the test's thread into the namespace for as long as the test runs.
func (w *world) enter() {
	w.t.Helper()
	runtime.LockOSThread()
	before := must[netns.NsHandle](w.t)(netns.Get())
	if err := netns.Set(w.node); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := netns.Set(before); err == nil {
			runtime.UnlockOSThread()
		}
		before.Close()
	})
}

// clear empties the maps of what an earlier test has left.
func (w *world) clear() {
	w.t.Helper()
	for name, m := range w.maps {
		if name == "settings" || strings.HasPrefix(name, ".") {
			continue
		}
		if err := clearMap(m); err != nil {
			w.t.Fatalf("clear %s: %v", name, err)
		}
	}
}

func clearMap(m *ebpf.Map) error {
	switch m.Type() {
	case ebpf.Array, ebpf.PerCPUArray:
		var zero any = make([]byte, m.ValueSize())
		if m.Type() == ebpf.PerCPUArray {
			each := make([][]byte, ebpf.MustPossibleCPU())
			for i := range each {
				each[i] = make([]byte, m.ValueSize())
			}
			zero = each
		}
		for i := range min(m.MaxEntries(), 64) {
			if err := m.Put(i, zero); err != nil {
				return err
			}
		}
	case ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie:
		var keys [][]byte
		var key, value []byte
		it := m.Iterate()
		for it.Next(&key, &value) {
			keys = append(keys, bytes.Clone(key))
		}
		for _, k := range keys {
			if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
		}
		return it.Err()
	}
	return nil
}

func prefixOf(s string) maps.Prefix {
	p := netip.MustParsePrefix(s)
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return maps.Prefix{Address: maps.AddressOf(p.Addr()), Bits: uint32(bits)}
}

func (w *world) addDevices() error {
	for _, path := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/thread-self/root/proc/sys/net/"+path, []byte("1"), 0o644); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		device    *device
		name      string
		mtu       int
		addresses []string
	}{
		{&w.client, "client0", 1500, []string{"198.51.100.1/24", "2001:db8:1::1/64"}},
		{&w.up, "up0", 1500, []string{"10.0.0.1/24", "fd00::1/64"}},
		{&w.pod, "pod0", 1500, nil},
		{&w.thin, "thin0", 1400, []string{"10.0.4.1/24", "fd00:4::1/64"}},
	} {
		var err error
		if *d.device, err = addDevice(d.name, d.mtu, d.addresses); err != nil {
			return fmt.Errorf("add device %s: %w", d.name, err)
		}
	}
	return errors.Join(
		addRoute("10.244.1.0/24", w.pod, ""), addRoute("fd00:244:1::/64", w.pod, ""),
		addRoute("10.244.2.0/24", w.up, "10.0.0.2"), addRoute("fd00:244:2::/64", w.up, "fd00::2"),
		addRoute("0.0.0.0/0", w.up, "10.0.0.2"), addRoute("::/0", w.up, "fd00::2"),
		addRoute("10.244.4.0/24", w.thin, "10.0.4.2"), addRoute("fd00:244:4::/64", w.thin, "fd00:4::2"))
}

func addDevice(name string, mtu int, addresses []string) (device, error) {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: name + "p"}
	if err := netlink.LinkAdd(veth); err != nil {
		return device{}, err
	}
	for _, n := range []string{name, name + "p"} {
		link, err := netlink.LinkByName(n)
		if err != nil {
			return device{}, err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return device{}, err
		}
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return device{}, err
	}
	for _, a := range addresses {
		address, err := netlink.ParseAddr(a)
		if err != nil {
			return device{}, err
		}
		address.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, address); err != nil {
			return device{}, err
		}
	}
	return device{index: link.Attrs().Index, mac: link.Attrs().HardwareAddr}, nil
}

func addRoute(to string, over device, gateway string) error {
	destination, err := netlink.ParseIPNet(to)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: over.index, Dst: destination}
	if gateway != "" {
		route.Gw = net.ParseIP(gateway)
	}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add route %s: %w", to, err)
	}
	return nil
}

func (w *world) load() error {
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	spec, err := loader.PacketSpec()
	if err != nil {
		return err
	}
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
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) {
		return fmt.Errorf("%+v", refused)
	}
	if err != nil {
		return err
	}
	w.programs, w.maps = collection.Programs, collection.Maps
	return nil
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
