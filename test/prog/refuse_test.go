// SPDX-License-Identifier: Apache-2.0

package prog

import (
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// unreachable is the ICMP error that refuses a packet, as it must arrive at its sender.
func unreachable(refused packet, from string) packet {
	p := packet{from: at(from), to: refused.from, proto: protoICMP, df: true, icmpType: 3, icmpCode: 3}
	limit := 576 - 28
	if refused.is6() {
		p.proto, p.icmpType, p.icmpCode = protoICMPv6, 1, 4
		limit = 1280 - 48
	}
	p.payload = refused.ip()
	p.payload = p.payload[:min(limit, len(p.payload))]
	return p
}

// reset is the RST that refuses a SYN.
func reset(syn packet) packet {
	return packet{from: syn.to, to: syn.from, proto: protoTCP, df: !syn.is6(), flags: flagRST | flagACK,
		ack: syn.seq + 1 + uint32(len(syn.payload))}
}

// refused runs a packet in that is to be answered. Cutting a packet takes the kernel's sum over it out of use, and the
// test run would compare it all the same.
func (w *world) refused(in device, p packet) result {
	w.t.Helper()
	w.noCheckSum = true
	defer func() { w.noCheckSum = false }()
	return w.ingress(in, p)
}

// expectAnswer compares with an answer that goes back to who sent the packet.
func (w *world) expectAnswer(in device, got result, p packet) {
	w.t.Helper()
	p.toMAC, p.fromMAC = gatewayMAC, in.mac
	w.expect(in, got, redirect, p)
}

func refusalOf(p packet) packet {
	switch p.proto {
	case protoTCP:
		return reset(p)
	case protoSCTP:
		// The tag of an ABORT is the one that the INIT tells.
		return packet{from: p.to, to: p.from, proto: protoSCTP, df: !p.is6(), tag: 0x01020304, payload: []byte{6, 0, 0, 4}}
	}
	return unreachable(p, p.to.String())
}

func TestServiceWithoutEndpointsIsRefusedAtOnce(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.addService(1, port(f.vip, 80), proto, nil)
		p := opening(proto, port(f.pod, 40000), port(f.vip, 80))
		w.expectAnswer(w.pod, w.refused(w.pod, p), refusalOf(p))
		w.expectPairs(0)
		w.expectDrops(map[string]uint64{"no_backend": 1})
		var stats []maps.PacketStats
		if err := w.maps["packet_stats"].Lookup(uint32(1), &stats); err != nil {
			t.Fatal(err)
		}
		var rejected uint64
		for _, s := range stats {
			rejected += s.Rejected
		}
		if rejected != 1 {
			t.Errorf("counted %d refusals of the service, want 1", rejected)
		}
	})
}

func TestUndefinedPortOfAClusterIPIsRefused(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.addAddress(f.vip, maps.AddressClusterIP)
		p := opening(proto, port(f.pod, 40000), port(f.vip, 81))
		w.expectAnswer(w.pod, w.refused(w.pod, p), refusalOf(p))
		w.expectDrops(map[string]uint64{"undefined_port": 1})
	})
}

func TestRefusedSYNWithDataIsAcknowledged(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w := newWorld(t)
			w.addService(1, port(f.vip, 80), protoTCP, nil)
			p := opening(protoTCP, port(f.pod, 40000), port(f.vip, 80))
			p.payload = []byte("fast open data, 29 bytes long")
			w.expectAnswer(w.pod, w.refused(w.pod, p), reset(p))
		})
	}
}

func TestRefusalQuotesNoMoreThanAnErrorMayHave(t *testing.T) {
	for _, f := range families {
		for _, size := range []int{0, 1, 31, 500, 519, 520, 521, 1183, 1184, 1185, 1400} {
			w := newWorld(t)
			w.addService(1, port(f.vip, 80), protoUDP, nil)
			p := opening(protoUDP, port(f.pod, 40000), port(f.vip, 80))
			p.payload = make([]byte, size)
			for i := range p.payload {
				p.payload[i] = byte(i * 7)
			}
			p.padding = 3 // bytes behind the packet are not quoted
			w.expectAnswer(w.pod, w.refused(w.pod, p), unreachable(p, port(f.vip, 80)))
		}
	}
}

func TestRefusalOfASYNBehindOptionsIsAnICMPError(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w := newWorld(t)
			w.addService(1, port(f.vip, 80), protoTCP, nil)
			p := opening(protoTCP, port(f.pod, 40000), port(f.vip, 80))
			if p.is6() {
				p.ext = []header{{extDestination, []byte{1, 4, 0, 0, 0, 0}}}
			} else {
				p.options = []byte{1, 1, 1, 0}
			}
			w.expectAnswer(w.pod, w.refused(w.pod, p), unreachable(p, port(f.vip, 80)))
		})
	}
}

func TestNobodyIsAnsweredWhoIsNotOneHost(t *testing.T) {
	for _, from := range []string{"0.0.0.0:9", "127.0.0.1:9", "224.0.0.5:9", "255.255.255.255:9", "[::]:9", "[::1]:9", "[ff02::1]:9"} {
		t.Run(from, func(t *testing.T) {
			w := newWorld(t)
			f := families[0]
			if at(from).Addr().Is6() {
				f = families[1]
			}
			w.addService(1, port(f.vip, 80), protoUDP, nil)
			p := opening(protoUDP, from, port(f.vip, 80))
			if got := w.ingress(w.pod, p); got.verdict != drop {
				t.Errorf("verdict %d, want a drop", int32(got.verdict))
			}
		})
	}
}

func TestAnswersAreLimitedAndTheRestCounted(t *testing.T) {
	w := newWorld(t)
	w.settings.RejectRate = 3
	w.applySettings()
	f := families[0]
	w.addService(1, port(f.vip, 80), protoTCP, nil)
	p := opening(protoTCP, port(f.pod, 40000), port(f.vip, 80))
	answered := 0
	const sent = 200
	for range sent {
		if w.refused(w.pod, p).verdict == redirect {
			answered++
		}
	}
	// Each CPU counts for itself, and a second may end meanwhile.
	if limited := w.drops()["answer_limited"]; answered < 3 || answered+int(limited) != sent || limited < sent/2 {
		t.Errorf("answered %d, counted %d as limited", answered, limited)
	}
}

func TestPolicyWithoutLocalEndpointsDrops(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.addService(1, port(f.unspecified, 30080), proto, func(s *maps.Service) {
			s.External = maps.Run{}
			s.Flags = maps.ServiceExternalLocal | maps.ServiceExternalDrop | maps.ServicePolicyLocal
		}, endpoint{address: port(f.far, 8080)})
		w.addAddress(f.node, maps.AddressNodePorts)
		p := opening(proto, port(f.client, 40000), port(f.node, 30080))
		w.expect(w.client, w.ingress(w.client, p), drop, p)
		w.expectDrops(map[string]uint64{"local_policy_drop": 1})
		// A pod of this node is given the cluster's endpoints, and keeps its address.
		inside := opening(proto, port(f.pod, 40000), port(f.node, 30080))
		w.expect(w.pod, w.ingress(w.pod, inside), next, opening(proto, port(f.pod, 40000), port(f.far, 8080)))
	})
}

func TestSourceRangesGuardTheLoadBalancerAddress(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		vip := port(f.unallocated, 443) // an address that is on no device
		w.addService(7, vip, proto, func(s *maps.Service) {
			s.Kind = maps.KindLoadBalancer
			s.Flags = maps.ServiceSourceRanges
		}, endpoint{address: port(f.local, 8080), onNode: true})
		allowed := prefixOf(map[string]string{"IPv4": "198.51.100.8/31", "IPv6": "2001:db8:1::8/127"}[f.name])
		w.put("source_ranges", maps.SourceRange{PrefixBits: 32 + allowed.Bits, ServiceID: 7, Address: allowed.Address}, uint32(0))

		w.expect(w.client, w.ingress(w.client, opening(proto, port(f.client, 40000), vip)), next,
			opening(proto, port(f.client, 40000), port(f.local, 8080)))
		p := opening(proto, port(f.pod, 40000), vip)
		w.expect(w.pod, w.ingress(w.pod, p), drop, p)
		w.expectDrops(map[string]uint64{"source_range": 1})
	})
}

func TestUnallocatedAddressOfTheServiceRangeIsDropped(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		p := opening(proto, port(f.pod, 40000), port(f.unallocated, 80))
		w.expect(w.pod, w.ingress(w.pod, p), drop, p)
		w.expectDrops(map[string]uint64{"unallocated_address": 1})
	})
}

func TestLoopbackDialledFromOutsideIsNoNodePort(t *testing.T) {
	for _, f := range families {
		w := newWorld(t)
		loopback := map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"}[f.name]
		w.addService(1, port(f.unspecified, 30080), protoTCP, nil, endpoint{address: port(f.local, 8080), onNode: true})
		w.addAddress(loopback, maps.AddressNodePorts)
		for _, to := range []string{loopback, f.unspecified} {
			p := opening(protoTCP, port(f.client, 40000), port(to, 30080))
			w.expect(w.client, w.ingress(w.client, p), next, p)
		}
	}
}

func TestWhatIsNotOursPassesUntouched(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.addService(1, port(f.vip, 80), proto, nil, endpoint{address: port(f.local, 8080), onNode: true})
		for name, p := range map[string]packet{
			"a pod dials a pod":     opening(proto, port(f.pod, 1), port(f.far, 80)),
			"a port of the node":    opening(proto, port(f.client, 1), port(f.node, 22)),
			"an unknown protocol":   {from: at(port(f.pod, 0)), to: at(port(f.vip, 0)), proto: 47, payload: []byte("gre")},
			"an echo request":       {from: at(port(f.pod, 0)), to: at(port(f.vip, 0)), proto: protoICMP, icmpType: 8, payload: []byte("ping")},
			"an echo request in v6": {from: at(port(f.pod, 0)), to: at(port(f.vip, 0)), proto: protoICMPv6, icmpType: 128, payload: []byte("ping")},
		} {
			t.Log(name)
			w.expect(w.pod, w.ingress(w.pod, p), next, p)
			w.expect(w.pod, w.egress(w.pod, p), next, p)
		}
		if proto != protoUDP {
			// Another proxy's flow during a migration.
			p := more(proto, port(f.pod, 40000), port(f.vip, 80))
			w.expect(w.pod, w.ingress(w.pod, p), next, p)
		}
		w.expectPairs(0)
		w.expectDrops(map[string]uint64{})
	})
}

func TestFrameForAnotherHostPasses(t *testing.T) {
	f := families[0]
	w := newWorld(t)
	w.addService(1, port(f.vip, 80), protoUDP, nil, endpoint{address: port(f.local, 8080), onNode: true})
	p := opening(protoUDP, port(f.pod, 40000), port(f.vip, 80))
	bridge := []byte{2, 0, 0, 0, 0, 77}
	p.toMAC = bridge
	w.expect(w.pod, w.ingress(w.pod, p), next, p)
	w.expectPairs(0)
	// Unless it is for the bridge that the device is a port of.
	device := maps.Device{Flags: maps.DeviceBridgePort}
	copy(device.MAC[:], bridge)
	w.put("devices", uint32(w.pod.index), device)
	want := opening(protoUDP, port(f.pod, 40000), port(f.local, 8080))
	want.toMAC = bridge
	w.expect(w.pod, w.ingress(w.pod, p), next, want)
	p.toMAC = []byte{2, 0, 0, 0, 0, 78}
	w.expect(w.pod, w.ingress(w.pod, p), next, p)
	p.toMAC = []byte{255, 255, 255, 255, 255, 255}
	w.expect(w.pod, w.ingress(w.pod, p), next, p)
}
