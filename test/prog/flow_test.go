// SPDX-License-Identifier: Apache-2.0

package prog

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
)

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// family has the addresses of one IP version.
type family struct {
	name                                      string
	vip, node, client, pod, other, local, far string
	thin, nodeUp, unspecified, unallocated    string
}

var families = []family{
	{name: "IPv4", vip: "10.96.0.10", node: "198.51.100.1", client: "198.51.100.9", pod: "10.244.1.5",
		other: "10.244.1.6", local: "10.244.1.7", far: "10.244.2.7", thin: "10.244.4.7", nodeUp: "10.0.0.1",
		unspecified: "0.0.0.0", unallocated: "10.96.9.9"},
	{name: "IPv6", vip: "fd00:96::10", node: "2001:db8:1::1", client: "2001:db8:1::9", pod: "fd00:244:1::5",
		other: "fd00:244:1::6", local: "fd00:244:1::7", far: "fd00:244:2::7", thin: "fd00:244:4::7", nodeUp: "fd00::1",
		unspecified: "::", unallocated: "fd00:96::99"},
}

func port(address string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)).String()
}

var protocols = []struct {
	name  string
	proto uint8
}{{"TCP", protoTCP}, {"UDP", protoUDP}, {"SCTP", protoSCTP}}

var (
	sctpInit    = []byte{1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 10, 0, 10, 5, 6, 7, 8}
	sctpInitAck = []byte{2, 0, 0, 20, 9, 2, 3, 4, 0, 1, 0, 0, 0, 10, 0, 10, 5, 6, 7, 8}
	sctpData    = []byte{0, 3, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 'a', 'b', 'c', 'd'}
)

// opening returns the first packet of a flow, answer the first reply, more a later packet.
func opening(proto uint8, from, to string) packet {
	p := packet{from: at(from), to: at(to), proto: proto, id: 7, payload: []byte("question")}
	switch proto {
	case protoTCP:
		p.flags, p.seq, p.window, p.payload = flagSYN, 1000, 65000, nil
		p.tcpOptions = []byte{2, 4, 5, 0xb4, 1, 1, 4, 2}
	case protoSCTP:
		p.payload = sctpInit
	}
	return p
}

func answer(proto uint8, from, to string) packet {
	p := packet{from: at(from), to: at(to), proto: proto, id: 8, payload: []byte("an answer of odd length")}
	switch proto {
	case protoTCP:
		p.flags, p.seq, p.ack, p.window, p.payload = flagSYN|flagACK, 5000, 1001, 64000, nil
	case protoSCTP:
		p.tag, p.payload = 0x01020304, sctpInitAck
	}
	return p
}

func more(proto uint8, from, to string) packet {
	p := packet{from: at(from), to: at(to), proto: proto, id: 9, payload: []byte("more of it")}
	switch proto {
	case protoTCP:
		p.flags, p.seq, p.ack, p.window = flagPSH|flagACK, 1001, 5001, 64000
	case protoSCTP:
		p.tag, p.payload = 0x09020304, sctpData
	}
	return p
}

// forEach runs a test for each protocol and family, in a world of its own.
func forEach(t *testing.T, test func(t *testing.T, w *world, proto uint8, f family)) {
	for _, p := range protocols {
		for _, f := range families {
			t.Run(fmt.Sprintf("%s/%s", p.name, f.name), func(t *testing.T) {
				test(t, newWorld(t), p.proto, f)
			})
		}
	}
}

func TestPodReachesABackendThroughAClusterIPAndKeepsItsAddress(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.addService(1, port(f.vip, 80), proto, nil, endpoint{address: port(f.local, 8080), onNode: true})
		w.addAddress(f.vip, maps.AddressClusterIP)
		pod, vip, backend := port(f.pod, 40000), port(f.vip, 80), port(f.local, 8080)

		w.expect(w.pod, w.ingress(w.pod, opening(proto, pod, vip)), next, opening(proto, pod, backend))
		w.expectPairs(1)
		// Where the answer enters the node nothing is done; where it leaves towards the pod it is.
		w.expect(w.pod, w.ingress(w.pod, answer(proto, backend, pod)), next, answer(proto, backend, pod))
		w.expect(w.pod, w.egress(w.pod, answer(proto, backend, pod)), next, answer(proto, vip, pod))
		w.expect(w.pod, w.ingress(w.pod, more(proto, pod, vip)), next, more(proto, pod, backend))
		// Leaving towards the backend, the translated packet is left alone.
		w.expect(w.pod, w.egress(w.pod, more(proto, pod, backend)), next, more(proto, pod, backend))
		w.expectPairs(1)
		w.expectDrops(map[string]uint64{})

		var stats []maps.PacketStats
		if err := w.maps["packet_stats"].Lookup(uint32(1), &stats); err != nil {
			t.Fatal(err)
		}
		var sum maps.PacketStats
		for _, s := range stats {
			sum.Flows += s.Flows
			sum.PacketsForward += s.PacketsForward
			sum.PacketsReply += s.PacketsReply
			sum.BytesForward += s.BytesForward
			sum.BytesReply += s.BytesReply
		}
		want := maps.PacketStats{Flows: 1, PacketsForward: 2, PacketsReply: 1,
			BytesForward: uint64(len(opening(proto, pod, vip).ip()) + len(more(proto, pod, vip).ip())),
			BytesReply:   uint64(len(answer(proto, backend, pod).ip()))}
		if sum != want {
			t.Errorf("counted %+v, want %+v", sum, want)
		}
	})
}

func TestOutsideClientReachesALocalPodThroughANodePortAndKeepsItsAddress(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.addService(1, port(f.unspecified, 30080), proto, nil, endpoint{address: port(f.local, 8080), onNode: true})
		w.addAddress(f.node, maps.AddressNodePorts|maps.AddressOnNode)
		client, dialled, backend := port(f.client, 40000), port(f.node, 30080), port(f.local, 8080)

		w.expect(w.client, w.ingress(w.client, opening(proto, client, dialled)), next, opening(proto, client, backend))
		w.expect(w.client, w.egress(w.client, answer(proto, backend, client)), next, answer(proto, dialled, client))
		w.expect(w.client, w.ingress(w.client, more(proto, client, dialled)), next, more(proto, client, backend))
		w.expectPairs(1)
		// Another port of the node is the node's own.
		own := opening(proto, client, port(f.node, 22))
		w.expect(w.client, w.ingress(w.client, own), next, own)
		w.expectPairs(1)
		w.expectDrops(map[string]uint64{})
	})
}

func TestOutsideClientReachesAPodOfAnotherNodeWithTheNodesAddress(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		w.addService(1, port(f.unspecified, 30080), proto, nil, endpoint{address: port(f.far, 8080)})
		w.addAddress(f.node, maps.AddressNodePorts|maps.AddressOnNode)
		client, dialled, backend := port(f.client, 40000), port(f.node, 30080), port(f.far, 8080)

		got := w.ingress(w.client, opening(proto, client, dialled))
		if got.verdict != redirect {
			t.Fatalf("verdict %d, drops %v", int32(got.verdict), w.drops())
		}
		w.expectPairs(1)
		snat := w.snatPort(f)
		masked := port(f.nodeUp, snat)
		hop := func(p packet) packet { return p.with(func(p *packet) { p.ttl = 63 }) }
		w.expect(w.client, got, redirect, hop(opening(proto, masked, backend)))
		w.expect(w.up, w.ingress(w.up, answer(proto, backend, masked)), redirect, hop(answer(proto, dialled, client)))
		w.expect(w.client, w.ingress(w.client, more(proto, client, dialled)), redirect, hop(more(proto, masked, backend)))
		// The packet on its way out is not ours to translate again.
		w.expect(w.up, w.egress(w.up, hop(more(proto, masked, backend))), next, hop(more(proto, masked, backend)))
		w.expectPairs(1)
		w.expectDrops(map[string]uint64{})
	})
}

// snatPort returns the source port of the only flow.
func (w *world) snatPort(f family) int {
	w.t.Helper()
	for _, e := range w.conntrack() {
		if e.value.To.Flags&maps.ConntrackReply == 0 {
			if got := e.value.To.Source.Addr().String(); got != f.nodeUp {
				w.t.Fatalf("the backend sees %s, want the address of the route, %s", got, f.nodeUp)
			}
			if p := e.value.To.SourcePort; p < w.settings.SNATPortMin {
				w.t.Fatalf("port %d is below the range", p)
			}
			return int(e.value.To.SourcePort)
		}
	}
	w.t.Fatal("no flow")
	return 0
}

func TestPodThatIsGivenItselfSeesTheNode(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		// pod0 has no address of its own: the kernel takes another device's.
		w.addService(1, port(f.vip, 80), proto, nil, endpoint{address: port(f.pod, 8080), onNode: true})
		pod, vip, backend := port(f.pod, 40000), port(f.vip, 80), port(f.pod, 8080)

		got := w.ingress(w.pod, opening(proto, pod, vip))
		w.expectPairs(1)
		var masked string
		for _, e := range w.conntrack() {
			if e.value.To.Flags&maps.ConntrackReply == 0 {
				masked = port(e.value.To.Source.Addr().String(), int(e.value.To.SourcePort))
			}
		}
		hop := func(p packet) packet { return p.with(func(p *packet) { p.ttl = 63 }) }
		w.expect(w.pod, got, redirect, hop(opening(proto, masked, backend)))
		w.expect(w.pod, w.ingress(w.pod, answer(proto, backend, masked)), redirect, hop(answer(proto, vip, pod)))
	})
}
