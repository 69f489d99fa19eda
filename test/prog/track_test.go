// SPDX-License-Identifier: Apache-2.0

package prog

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"golang.org/x/sys/unix"
)

func monotonic(t testing.TB) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano())
}

// age makes the elements for which which is true look as if they had seen their last packet so long ago.
func (w *world) age(by time.Duration, which func(maps.ConntrackValue) bool) {
	w.t.Helper()
	now := monotonic(w.t)
	if now < uint64(by) {
		w.t.Skip("this machine has not been up for so long")
	}
	then := now - uint64(by)
	for _, e := range w.conntrack() {
		if which(e.value) && e.value.LastSeenNs != 0 {
			e.value.LastSeenNs = then
			w.put("conntrack", e.key, e.value)
		}
	}
}

func anyHalf(maps.ConntrackValue) bool { return true }
func replyHalf(v maps.ConntrackValue) bool {
	return v.To.Flags&maps.ConntrackReply != 0
}
func forwardHalf(v maps.ConntrackValue) bool { return !replyHalf(v) }

func (w *world) removeHalf(which func(maps.ConntrackValue) bool) {
	w.t.Helper()
	for _, e := range w.conntrack() {
		if which(e.value) {
			if err := w.maps["conntrack"].Delete(e.key); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// local is a service with one backend on this node, dialled by a pod, and the flow's three addresses.
func (w *world) localFlow(proto uint8, f family) (pod, vip, backend string) {
	w.addService(1, port(f.vip, 80), proto, nil, endpoint{address: port(f.local, 8080), onNode: true})
	w.addAddress(f.vip, maps.AddressClusterIP)
	return port(f.pod, 40000), port(f.vip, 80), port(f.local, 8080)
}

// establish runs the handshake of a flow.
func (w *world) establish(proto uint8, pod, vip, backend string) {
	w.t.Helper()
	w.expect(w.pod, w.ingress(w.pod, opening(proto, pod, vip)), next, opening(proto, pod, backend))
	w.expect(w.pod, w.egress(w.pod, answer(proto, backend, pod)), next, answer(proto, vip, pod))
	w.expect(w.pod, w.ingress(w.pod, more(proto, pod, vip)), next, more(proto, pod, backend))
}

func TestFlowEndsAfterItsTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		proto  uint8
		opened bool // nothing but the opening packet
		limit  func(maps.PacketSettings) uint64
	}{
		"TCP half open":    {protoTCP, true, func(s maps.PacketSettings) uint64 { return s.TCPSynNs }},
		"TCP established":  {protoTCP, false, func(s maps.PacketSettings) uint64 { return s.TCPEstablishedNs }},
		"UDP unanswered":   {protoUDP, true, func(s maps.PacketSettings) uint64 { return s.UDPUnrepliedNs }},
		"UDP answered":     {protoUDP, false, func(s maps.PacketSettings) uint64 { return s.UDPRepliedNs }},
		"SCTP half open":   {protoSCTP, true, func(s maps.PacketSettings) uint64 { return s.TCPSynNs }},
		"SCTP established": {protoSCTP, false, func(s maps.PacketSettings) uint64 { return s.SCTPEstablishedNs }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			limit := time.Duration(c.limit(w.settings))
			pod, vip, backend := w.localFlow(c.proto, families[0])
			if c.opened {
				w.ingress(w.pod, opening(c.proto, pod, vip))
			} else {
				w.establish(c.proto, pod, vip, backend)
			}
			w.age(limit-2*time.Second, anyHalf)
			w.expect(w.pod, w.ingress(w.pod, more(c.proto, pod, vip)), next, more(c.proto, pod, backend))
			w.expectPairs(1)
			if c.opened {
				if c.proto != protoUDP {
					w.age(limit+time.Second, anyHalf)
					w.expect(w.pod, w.ingress(w.pod, more(c.proto, pod, vip)), next, more(c.proto, pod, vip))
					w.expectPairs(0)
				}
				return
			}
			// One direction alone keeps the flow.
			w.age(limit+time.Second, forwardHalf)
			w.expect(w.pod, w.ingress(w.pod, more(c.proto, pod, vip)), next, more(c.proto, pod, backend))
			w.age(limit+time.Second, anyHalf)
			w.expect(w.pod, w.egress(w.pod, more(c.proto, backend, pod)), next, more(c.proto, backend, pod))
			w.expectPairs(0)
			w.expectDrops(map[string]uint64{})
		})
	}
}

func TestClosingShortensTheTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		close func(w *world, pod, vip, backend string)
		limit time.Duration
	}{
		"a reset": {func(w *world, pod, vip, _ string) {
			p := more(protoTCP, pod, vip)
			p.flags = flagRST
			w.ingress(w.pod, p)
		}, 4 * time.Second},
		"both have closed": {func(w *world, pod, vip, backend string) {
			p := more(protoTCP, pod, vip)
			p.flags |= flagFIN
			w.ingress(w.pod, p)
			p = more(protoTCP, backend, pod)
			p.flags |= flagFIN
			w.egress(w.pod, p)
		}, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pod, vip, backend := w.localFlow(protoTCP, families[0])
			w.establish(protoTCP, pod, vip, backend)
			c.close(w, pod, vip, backend)
			w.age(c.limit-2*time.Second, anyHalf)
			w.expect(w.pod, w.ingress(w.pod, more(protoTCP, pod, vip)), next, more(protoTCP, pod, backend))
			w.age(c.limit+time.Second, anyHalf)
			w.expect(w.pod, w.ingress(w.pod, more(protoTCP, pod, vip)), next, more(protoTCP, pod, vip))
			w.expectPairs(0)
		})
	}
}

func TestSYNAfterTheEndIsANewFlowAndARepeatedSYNIsNot(t *testing.T) {
	w := newWorld(t)
	f := families[0]
	ids := w.addService(1, port(f.vip, 80), protoTCP, nil, endpoint{address: port(f.local, 8080), onNode: true},
		endpoint{address: port(f.other, 8080), onNode: true})
	pod, vip := port(f.pod, 40000), port(f.vip, 80)
	backend := func() (uint32, string) {
		for _, e := range w.conntrack() {
			if forwardHalf(e.value) {
				return e.value.To.BackendID, port(e.value.To.Destination.Addr().String(), 8080)
			}
		}
		t.Fatal("no flow")
		return 0, ""
	}
	w.ingress(w.pod, opening(protoTCP, pod, vip))
	first, address := backend()
	for range 20 {
		w.expect(w.pod, w.ingress(w.pod, opening(protoTCP, pod, vip)), next, opening(protoTCP, pod, address))
	}
	// The backend goes: a repeated SYN goes to the other one, packets of the open flow would not.
	if err := w.maps["backends"].Delete(first); err != nil {
		t.Fatal(err)
	}
	w.expect(w.pod, w.ingress(w.pod, more(protoTCP, pod, vip)), next, more(protoTCP, pod, address))
	w.ingress(w.pod, opening(protoTCP, pod, vip))
	second, address2 := backend()
	if second == first || second != ids[0] && second != ids[1] {
		t.Fatalf("backend %d after %d of %v", second, first, ids)
	}
	w.expectPairs(1)
	w.expect(w.pod, w.egress(w.pod, answer(protoTCP, address2, pod)), next, answer(protoTCP, vip, pod))
	// The flow is reset; its tuple is free for another at once.
	p := more(protoTCP, pod, vip)
	p.flags = flagRST
	w.ingress(w.pod, p)
	w.expect(w.pod, w.ingress(w.pod, opening(protoTCP, pod, vip)), next, opening(protoTCP, pod, address2))
	for _, e := range w.conntrack() {
		if forwardHalf(e.value) && (e.value.Packets != 1 || e.value.Seen != 0) {
			t.Errorf("the SYN has joined the flow that was reset: %+v", e.value)
		}
	}
	w.expectPairs(1)
}

func TestUDPFlowMovesWhenItsBackendIsGone(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w := newWorld(t)
			ids := w.addService(1, port(f.vip, 53), protoUDP, nil, endpoint{address: port(f.local, 53), onNode: true},
				endpoint{address: port(f.other, 53), onNode: true})
			pod, vip := port(f.pod, 40000), port(f.vip, 53)
			w.ingress(w.pod, opening(protoUDP, pod, vip))
			all := w.conntrack()
			gone, left := port(f.local, 53), port(f.other, 53)
			id := all[0].value.To.BackendID
			if id == ids[1] {
				gone, left = left, gone
			}
			for range 20 {
				w.expect(w.pod, w.ingress(w.pod, more(protoUDP, pod, vip)), next, more(protoUDP, pod, gone))
			}
			if err := w.maps["backends"].Delete(id); err != nil {
				t.Fatal(err)
			}
			w.expect(w.pod, w.ingress(w.pod, more(protoUDP, pod, vip)), next, more(protoUDP, pod, left))
			w.expect(w.pod, w.egress(w.pod, answer(protoUDP, left, pod)), next, answer(protoUDP, vip, pod))
			w.expectPairs(1)
		})
	}
}

func TestUDPFlowWithoutABackendLeftIsRefused(t *testing.T) {
	w := newWorld(t)
	f := families[0]
	pod, vip, _ := w.localFlow(protoUDP, f)
	w.ingress(w.pod, opening(protoUDP, pod, vip))
	w.addService(1, vip, protoUDP, nil)
	if err := w.maps["backends"].Delete(uint32(1)); err != nil {
		t.Fatal(err)
	}
	p := more(protoUDP, pod, vip)
	w.expectAnswer(w.pod, w.refused(w.pod, p), unreachable(p, vip))
	w.expectPairs(0)
}

func TestFlowThatLostAHalfGetsItAgain(t *testing.T) {
	for name, lost := range map[string]func(maps.ConntrackValue) bool{"reply": replyHalf, "forward": forwardHalf} {
		for _, p := range protocols {
			t.Run(name+" of "+p.name, func(t *testing.T) {
				w := newWorld(t)
				pod, vip, backend := w.localFlow(p.proto, families[0])
				w.establish(p.proto, pod, vip, backend)
				w.removeHalf(lost)
				w.age(2*time.Second, anyHalf)
				if name == "reply" {
					w.expect(w.pod, w.ingress(w.pod, more(p.proto, pod, vip)), next, more(p.proto, pod, backend))
				}
				w.expect(w.pod, w.egress(w.pod, more(p.proto, backend, pod)), next, more(p.proto, vip, pod))
				w.expectPairs(1)
				w.expect(w.pod, w.ingress(w.pod, more(p.proto, pod, vip)), next, more(p.proto, pod, backend))
				w.expectDrops(map[string]uint64{"conntrack_healed": 1})
				w.age(7*time.Second, anyHalf)
				w.expect(w.pod, w.ingress(w.pod, more(p.proto, pod, vip)), next, more(p.proto, pod, backend))
			})
		}
	}
}

func TestFullTableKeepsWhatIsInUseAndCountsWhatItRefuses(t *testing.T) {
	w := newWorld(t)
	f := families[0]
	_, vip, backend := w.localFlow(protoTCP, f)
	for i := range flowCapacity {
		w.establish(protoTCP, port(f.pod, 40000+i), vip, backend)
	}
	w.expectPairs(flowCapacity)
	late := opening(protoTCP, port(f.pod, 50000), vip)
	w.expect(w.pod, w.ingress(w.pod, late), drop, late)
	w.expectDrops(map[string]uint64{"conntrack_full": 1})
	for i := range flowCapacity {
		pod := port(f.pod, 40000+i)
		w.expect(w.pod, w.ingress(w.pod, more(protoTCP, pod, vip)), next, more(protoTCP, pod, backend))
		w.expect(w.pod, w.egress(w.pod, more(protoTCP, backend, pod)), next, more(protoTCP, vip, pod))
	}
	// As soon as flows have ended their cells are found: after four walks round the ring at most.
	w.age(11*time.Second, anyHalf)
	w.expect(w.pod, w.ingress(w.pod, late), next, opening(protoTCP, port(f.pod, 50000), backend))
	w.expectPairs(flowCapacity)
}

func TestHalfOpenFlowsGiveWayInAFullTable(t *testing.T) {
	w := newWorld(t)
	f := families[0]
	_, vip, backend := w.localFlow(protoTCP, f)
	const inUse = 8
	for i := range inUse {
		w.establish(protoTCP, port(f.pod, 30000+i), vip, backend)
	}
	for i := range 10 * flowCapacity {
		pod := port(f.pod, 40000+i)
		w.expect(w.pod, w.ingress(w.pod, opening(protoTCP, pod, vip)), next, opening(protoTCP, pod, backend))
	}
	w.expectPairs(flowCapacity)
	for i := range inUse {
		pod := port(f.pod, 30000+i)
		w.expect(w.pod, w.ingress(w.pod, more(protoTCP, pod, vip)), next, more(protoTCP, pod, backend))
	}
	if n := w.drops()["conntrack_replaced"]; n != 10*flowCapacity+inUse-flowCapacity {
		t.Errorf("counted %d replaced flows", n)
	}
}

func TestTwoAddressesOfTheNodeFromOneSourcePort(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.addService(1, port(f.unspecified, 30080), proto, nil, endpoint{address: port(f.local, 8080), onNode: true})
		w.addAddress(f.node, maps.AddressNodePorts)
		w.addAddress(f.nodeUp, maps.AddressNodePorts)
		client, backend := port(f.client, 40000), port(f.local, 8080)
		one, two := port(f.node, 30080), port(f.nodeUp, 30080)
		w.expect(w.client, w.ingress(w.client, opening(proto, client, one)), next, opening(proto, client, backend))
		got := w.ingress(w.client, opening(proto, client, two))
		w.expectPairs(2)
		var other int
		for _, e := range w.conntrack() {
			if forwardHalf(e.value) && e.key.Destination.Addr().String() == f.nodeUp {
				other = int(e.value.To.SourcePort)
			}
		}
		if other < 1024 || other == 40000 {
			t.Fatalf("source port %d", other)
		}
		w.expect(w.client, got, next, opening(proto, port(f.client, other), backend))
		w.expect(w.client, w.egress(w.client, answer(proto, backend, client)), next, answer(proto, one, client))
		w.expect(w.client, w.egress(w.client, answer(proto, backend, port(f.client, other))), next, answer(proto, two, client))
		w.expectDrops(map[string]uint64{})
	})
}

// farFlow is a service with one backend on another node, dialled from outside.
func (w *world) farFlow(proto uint8, f family) (dialled, backend string) {
	w.addService(1, port(f.unspecified, 30080), proto, nil, endpoint{address: port(f.far, 8080)})
	w.addAddress(f.node, maps.AddressNodePorts|maps.AddressOnNode)
	return port(f.node, 30080), port(f.far, 8080)
}

func TestSourcePortsNeverCollideAndExhaustionIsCounted(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.settings.SNATPortMin, w.settings.SNATPortMax = 61000, 61009
		w.applySettings()
		dialled, _ := w.farFlow(proto, f)
		for i := range 10 {
			if got := w.ingress(w.client, opening(proto, port(f.client, 40000+i), dialled)); got.verdict != redirect {
				t.Fatalf("flow %d: verdict %d, drops %v", i, int32(got.verdict), w.drops())
			}
		}
		w.expectPairs(10)
		used := map[uint16]bool{}
		for _, e := range w.conntrack() {
			if forwardHalf(e.value) {
				used[e.value.To.SourcePort] = true
			}
		}
		if len(used) != 10 {
			t.Fatalf("ports %v for ten flows", used)
		}
		late := opening(proto, port(f.client, 50000), dialled)
		w.expect(w.client, w.ingress(w.client, late), drop, late)
		w.expectPairs(10)
		w.expectDrops(map[string]uint64{"ports_exhausted": 1})
		// The flow that is idle longest gives way, as soon as it has been idle for a while. It has not ended.
		w.settings.TCPSynNs, w.settings.UDPRepliedNs = uint64(time.Hour), uint64(time.Hour)
		w.applySettings()
		w.age(8*time.Second, func(v maps.ConntrackValue) bool {
			return forwardHalf(v) && v.To.SourcePort == 61004
		})
		for _, e := range w.conntrack() {
			if replyHalf(e.value) && e.key.DestinationPort == 61004 {
				e.value.LastSeenNs = monotonic(t) - uint64(8*time.Second)
				w.put("conntrack", e.key, e.value)
			}
		}
		if got := w.ingress(w.client, late); got.verdict != redirect {
			t.Fatalf("verdict %d, drops %v", int32(got.verdict), w.drops())
		}
		w.expectPairs(10)
		w.expectDrops(map[string]uint64{"ports_exhausted": 1, "port_replaced": 1})
	})
}

func TestSourcePortOfANodesOwnSocketIsNotTaken(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w := newWorld(t)
			w.settings.SNATPortMin, w.settings.SNATPortMax = 61000, 61001
			w.applySettings()
			dialled, backend := w.farFlow(protoUDP, f)
			own := must[*net.UDPConn](t)(net.DialUDP("udp", net.UDPAddrFromAddrPort(at(port(f.nodeUp, 61000))),
				net.UDPAddrFromAddrPort(netip.MustParseAddrPort(backend))))
			defer own.Close()
			if got := w.ingress(w.client, opening(protoUDP, port(f.client, 40000), dialled)); got.verdict != redirect {
				t.Fatalf("verdict %d, drops %v", int32(got.verdict), w.drops())
			}
			if p := w.snatPort(f); p != 61001 {
				t.Errorf("took port %d", p)
			}
			late := opening(protoUDP, port(f.client, 40001), dialled)
			w.expect(w.client, w.ingress(w.client, late), drop, late)
			w.expectDrops(map[string]uint64{"ports_exhausted": 1})
		})
	}
}

func TestAffinityBindsAClientAddressAcrossPorts(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.addService(1, port(f.vip, 80), proto, func(s *maps.Service) { s.AffinityTimeout = 60 },
			endpoint{address: port(f.local, 8080), onNode: true}, endpoint{address: port(f.other, 8080), onNode: true})
		seen := map[string]bool{}
		for i := range 20 {
			w.ingress(w.pod, opening(proto, port(f.pod, 40000+i), port(f.vip, 80)))
		}
		for _, e := range w.conntrack() {
			if forwardHalf(e.value) {
				seen[e.value.To.Destination.Addr().String()] = true
			}
		}
		if len(seen) != 1 {
			t.Errorf("one client reached %v", seen)
		}
		w.expectPairs(20)
	})
}
