// SPDX-License-Identifier: Apache-2.0

package prog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// variants are ways in which a packet may look and still be the flow's.
func variants(proto uint8, f family) map[string]func(*packet) {
	all := map[string]func(*packet){
		"plain":            func(*packet) {},
		"padding behind":   func(p *packet) { p.padding = 6 },
		"traffic class":    func(p *packet) { p.tos = 0xb8 },
		"wrong checksum":   func(p *packet) { p.wrong = 0x1234 },
		"hop limit 1":      func(p *packet) { p.ttl = 1 },
		"much payload":     func(p *packet) { p.payload = append(p.payload, make([]byte, 1200)...) },
		"don't fragment":   func(p *packet) { p.df = !p.is6() },
		"no checksum":      func(p *packet) { p.noChecksum = true },
		"left to a device": func(p *packet) { p.crcZero = true },
	}
	if proto == protoSCTP {
		delete(all, "wrong checksum")
		all["much payload"] = func(p *packet) { p.payload = append(append([]byte{}, sctpData...), make([]byte, 1204)...) }
	} else {
		delete(all, "left to a device")
	}
	if proto != protoUDP {
		delete(all, "no checksum")
	}
	if f.name == "IPv4" {
		all["options"] = func(p *packet) { p.options = []byte{148, 4, 0, 0, 1, 1, 1, 0} }
		all["all options"] = func(p *packet) { p.options = bytes.Repeat([]byte{1}, 40) }
		return all
	}
	all["hop-by-hop"] = func(p *packet) { p.ext = []header{{extHopByHop, []byte{5, 2, 0, 0, 1, 0}}} }
	all["a chain"] = func(p *packet) {
		p.ext = []header{{extHopByHop, []byte{5, 2, 0, 0, 1, 0}}, {extDestination, make([]byte, 14)},
			{extRouting, make([]byte, 22)}, {extDestination, make([]byte, 6)}}
	}
	all["an atomic fragment"] = func(p *packet) { p.ext = []header{{extFragment, []byte{0, 0, 1, 2, 3, 4}}} }
	return all
}

func TestEachVariantIsRewrittenAndNothingElseInIt(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		pod, vip, backend := w.localFlow(proto, f)
		w.establish(proto, pod, vip, backend)
		for name, change := range variants(proto, f) {
			t.Log(name)
			w.expect(w.pod, w.ingress(w.pod, more(proto, pod, vip).with(change)), next, more(proto, pod, backend).with(change))
			w.expect(w.pod, w.egress(w.pod, more(proto, backend, pod).with(change)), next, more(proto, vip, pod).with(change))
		}
		w.expectPairs(1)
		w.expectDrops(map[string]uint64{})
	})
}

func TestEachVariantIsRewrittenWithBothAddresses(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		dialled, backend := w.farFlow(proto, f)
		client := port(f.client, 40000)
		w.ingress(w.client, opening(proto, client, dialled))
		masked := port(f.nodeUp, w.snatPort(f))
		for name, change := range variants(proto, f) {
			if name == "hop limit 1" {
				continue
			}
			t.Log(name)
			hop := func(p *packet) {
				change(p)
				p.ttl = 63
			}
			w.expect(w.client, w.ingress(w.client, more(proto, client, dialled).with(change)), redirect,
				more(proto, masked, backend).with(hop))
			w.expect(w.up, w.ingress(w.up, more(proto, backend, masked).with(change)), redirect,
				more(proto, dialled, client).with(hop))
		}
		w.expectPairs(1)
		w.expectDrops(map[string]uint64{})
	})
}

// A checksum may come out as zero at each rewriting; for UDP that would say that there is none.
func TestUDPChecksumNeverBecomesNone(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w := newWorld(t)
			pod, vip, backend := w.localFlow(protoUDP, f)
			w.establish(protoUDP, pod, vip, backend)
			hits := 0
			for i := range 65536 {
				p := more(protoUDP, pod, backend)
				p.payload = binary.BigEndian.AppendUint16([]byte("find a sum of zero"), uint16(i))
				if b := p.udp(); b[6] != 0xff || b[7] != 0xff {
					continue
				}
				q := more(protoUDP, pod, vip)
				q.payload = p.payload
				w.expect(w.pod, w.ingress(w.pod, q), next, p)
				hits++
			}
			if hits == 0 {
				t.Fatal("no payload found")
			}
		})
	}
}

func TestNextHopWithASmallerMTUIsToldToTheClient(t *testing.T) {
	for _, proto := range []uint8{protoTCP, protoUDP} {
		for _, f := range families {
			t.Run(fmt.Sprintf("%d/%s", proto, f.name), func(t *testing.T) {
				w := newWorld(t)
				w.noCheckSum = true
				w.addService(1, port(f.unspecified, 30080), proto, nil, endpoint{address: port(f.thin, 8080)})
				w.addAddress(f.node, maps.AddressNodePorts|maps.AddressOnNode)
				client, dialled := port(f.client, 40000), port(f.node, 30080)
				if got := w.ingress(w.client, opening(proto, client, dialled)); got.verdict != redirect {
					t.Fatalf("verdict %d, drops %v", int32(got.verdict), w.drops())
				}
				for _, length := range []int{1400, 1401, 1500} {
					p := more(proto, client, dialled)
					p.df = !p.is6()
					p.payload = make([]byte, length-(len(p.ip())-len(p.payload)))
					got := w.ingress(w.client, p)
					if length == 1400 {
						if got.verdict != redirect || len(got.frame) != 14+length {
							t.Fatalf("verdict %d and %d bytes", int32(got.verdict), len(got.frame))
						}
						continue
					}
					e := unreachable(p, dialled)
					e.icmpType, e.icmpCode, e.icmpRest = 3, 4, 1400
					if p.is6() {
						e.icmpType, e.icmpCode = 2, 0
					}
					w.expectAnswer(w.client, got, e)
				}
				w.expectDrops(map[string]uint64{"too_big": 2})
				// A large packet that will be segmented counts by its segments.
				p := more(protoTCP, client, dialled)
				if proto == protoTCP {
					p.payload = make([]byte, 2900)
					if got := w.run("tc_ingress", w.client, w.framed(w.client, p).bytes(), 1300); got.verdict != redirect || len(got.frame) < 2900 {
						t.Errorf("verdict %d and %d bytes", int32(got.verdict), len(got.frame))
					}
					if got := w.run("tc_ingress", w.client, w.framed(w.client, p).bytes(), 1400); got.verdict != redirect || len(got.frame) > 1300 {
						t.Errorf("verdict %d and %d bytes", int32(got.verdict), len(got.frame))
					}
				}
			})
		}
	}
}

func TestHopLimitEndsHere(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		dialled, _ := w.farFlow(proto, f)
		client := port(f.client, 40000)
		p := opening(proto, client, dialled)
		p.ttl = 1
		e := unreachable(p, dialled)
		e.icmpType, e.icmpCode = 11, 0
		if p.is6() {
			e.icmpType, e.icmpCode = 3, 0
		}
		w.expectAnswer(w.client, w.refused(w.client, p), e)
		w.expectDrops(map[string]uint64{"hop_limit": 1})
	})
}

// fragmentsOf cuts a packet's transport part at the given offsets, multiples of eight.
func fragmentsOf(p packet, cuts ...int) []packet {
	p.fragment, p.fragID = true, 77
	length := len(p.transport())
	var all []packet
	for i, from := range append([]int{0}, cuts...) {
		to := length
		if i < len(cuts) {
			to = cuts[i]
		}
		all = append(all, p.with(func(p *packet) { p.fragFrom, p.fragTo = from, to }))
	}
	return all
}

func TestFragmentsFollowTheFirst(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		pod, vip, backend := w.localFlow(proto, f)
		w.establish(proto, pod, vip, backend)
		large := func(p *packet) { p.payload = append(append([]byte{}, p.payload...), make([]byte, 3000)...) }
		in := fragmentsOf(more(proto, pod, vip).with(large), 1480, 2960)
		want := fragmentsOf(more(proto, pod, backend).with(large), 1480, 2960)
		out := fragmentsOf(more(proto, backend, pod).with(large), 1480, 2960)
		wantOut := fragmentsOf(more(proto, vip, pod).with(large), 1480, 2960)
		for i := range in {
			if proto == protoSCTP && i == 0 {
				// The checksum covers what is not here; with other ports it cannot be kept right.
				in[0].fragID, in[0].id = 78, 78
				w.expect(w.pod, w.ingress(w.pod, in[0]), drop, want[0].with(func(p *packet) {
					*p = in[0]
					p.to = at(port(f.local, 80))
				}))
				return
			}
			w.expect(w.pod, w.ingress(w.pod, in[i]), next, want[i])
			w.expect(w.pod, w.egress(w.pod, out[i]), next, wantOut[i])
		}
		w.expectDrops(map[string]uint64{})
	})
}

func TestFragmentsThatComeBeforeTheFirstAreHeldBack(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w := newWorld(t)
			w.noCheckSum = true
			pod, vip, backend := w.localFlow(protoUDP, f)
			large := func(p *packet) { p.payload = make([]byte, 3000) }
			in := fragmentsOf(opening(protoUDP, pod, vip).with(large), 1480, 2960)
			want := fragmentsOf(opening(protoUDP, pod, backend).with(large), 1480, 2960)
			w.expect(w.pod, w.ingress(w.pod, in[2]), drop, in[2])
			w.expect(w.pod, w.ingress(w.pod, in[1]), drop, in[1])
			w.expectDrops(map[string]uint64{"fragment_held": 2})
			// Both are received again, by the device, when the first has come; it is itself again afterwards.
			w.expect(w.pod, w.ingress(w.pod, in[0]), next, want[0])
			w.expectDrops(map[string]uint64{"fragment_held": 2, "fragment_released": 2})
			w.expect(w.pod, w.ingress(w.pod, in[2]), next, want[2])
			w.expect(w.pod, w.ingress(w.pod, in[1]), next, want[1])
			if n := count(w.maps["held_fragments"]); n != 0 {
				t.Errorf("%d fragments are still held", n)
			}

			// Of each datagram there is room for a few.
			stray := in[1].with(func(p *packet) { p.fragID, p.id = 79, 79 })
			for range 8 {
				w.expect(w.pod, w.ingress(w.pod, stray), drop, stray)
			}
			w.expect(w.pod, w.ingress(w.pod, stray), next, stray)
			w.expectDrops(map[string]uint64{"fragment_held": 10, "fragment_released": 2, "fragment_unknown": 1})
			// What is not ours does not wait.
			foreign := stray.with(func(p *packet) { p.to = at(port(f.far, 53)) })
			w.expect(w.pod, w.ingress(w.pod, foreign), next, foreign)
			w.expect(w.pod, w.egress(w.pod, foreign), next, foreign)
		})
	}
}

func count(m *ebpf.Map) (n int) {
	var key, value []byte
	for it := m.Iterate(); it.Next(&key, &value); {
		n++
	}
	return n
}

// errorsAbout returns the ICMP errors that a flow's packets cause.
func errorAbout(about packet, from, to string, quote int) packet {
	e := packet{from: at(port(from, 0)), to: at(port(to, 0)), proto: protoICMP, icmpType: 3, icmpCode: 4, icmpRest: 1280}
	if about.is6() {
		e.proto, e.icmpType, e.icmpCode = protoICMPv6, 2, 0
	}
	e.payload = about.ip()
	e.payload = e.payload[:min(len(e.payload), quote)]
	return e
}

func TestErrorsAboutAFlowAreTranslatedWithWhatTheyQuote(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		pod, vip, backend := w.localFlow(proto, f)
		w.establish(proto, pod, vip, backend)
		header := 20
		if f.name == "IPv6" {
			header = 40
		}
		odd := func(p *packet) { p.payload = append(append([]byte{}, p.payload...), 1, 2, 3) }
		for _, quote := range []int{header + 8, header + 16, header + 18, header + 20, 128, 1 << 16} {
			if proto == protoSCTP {
				quote = header + 8 // behind it is the checksum, which a quote does not keep
			}
			forward, back := more(proto, pod, vip), more(proto, vip, pod)
			forwardInside, backInside := more(proto, pod, backend), more(proto, backend, pod)
			if proto != protoSCTP {
				for _, p := range []*packet{&forward, &back, &forwardInside, &backInside} {
					odd(p)
				}
			}
			// A router between node and backend, then the backend itself, complains about what the pod has sent.
			w.expect(w.pod, w.egress(w.pod, errorAbout(forwardInside, f.far, f.pod, quote)), next,
				errorAbout(forward, f.far, f.pod, quote))
			w.expect(w.pod, w.egress(w.pod, errorAbout(forwardInside, f.local, f.pod, quote)), next,
				errorAbout(forward, f.vip, f.pod, quote))
			// The pod complains about an answer.
			w.expect(w.pod, w.ingress(w.pod, errorAbout(back, f.pod, f.vip, quote)), next,
				errorAbout(backInside, f.pod, f.local, quote))
			w.expect(w.pod, w.ingress(w.pod, errorAbout(back, f.other, f.vip, quote)), next,
				errorAbout(backInside, f.other, f.local, quote))
		}
		w.expectPairs(1)
		w.expectDrops(map[string]uint64{})
	})
}

func TestErrorsAboutAMaskedFlowReachTheClient(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		dialled, backend := w.farFlow(proto, f)
		client := port(f.client, 40000)
		w.ingress(w.client, opening(proto, client, dialled))
		masked := port(f.nodeUp, w.snatPort(f))
		hop := func(p packet) packet { return p.with(func(p *packet) { p.ttl = 63 }) }
		quote := 28
		if f.name == "IPv6" {
			quote = 48
		}
		w.expect(w.up, w.ingress(w.up, errorAbout(more(proto, masked, backend), f.other, f.nodeUp, quote)), redirect,
			hop(errorAbout(more(proto, client, dialled), f.other, f.client, quote)))
		w.expect(w.up, w.ingress(w.up, errorAbout(more(proto, masked, backend), f.far, f.nodeUp, quote)), redirect,
			hop(errorAbout(more(proto, client, dialled), f.node, f.client, quote)))
		w.expect(w.client, w.ingress(w.client, errorAbout(more(proto, dialled, client), f.client, f.node, quote)), redirect,
			hop(errorAbout(more(proto, backend, masked), f.nodeUp, f.far, quote)))
		w.expectDrops(map[string]uint64{})
	})
}

func TestErrorsAboutOtherFlowsPass(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		pod, vip, backend := w.localFlow(proto, f)
		w.establish(proto, pod, vip, backend)
		e := errorAbout(more(proto, port(f.other, 40000), backend), f.far, f.other, 128)
		w.expect(w.pod, w.egress(w.pod, e), next, e)
		w.expect(w.pod, w.ingress(w.pod, e), next, e)
		// An error of which nothing but the type is there.
		short := errorAbout(more(proto, pod, backend), f.far, f.pod, 12)
		w.expect(w.pod, w.egress(w.pod, short), next, short)
	})
}

func TestHostilePacketsPassUntouched(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		pod, vip, backend := w.localFlow(proto, f)
		w.establish(proto, pod, vip, backend)
		good := w.framed(w.pod, more(proto, pod, vip)).bytes()
		l4 := 34
		if f.name == "IPv6" {
			l4 = 54
		}
		bad := map[string][]byte{}
		// Cut anywhere (a test run insists on a whole IP header): its length says more than there is.
		for n := l4; n < len(good); n++ {
			bad[fmt.Sprintf("cut to %d bytes", n)] = good[:n]
		}
		change := func(name string, offset int, value byte) {
			b := bytes.Clone(good)
			b[offset] = value
			bad[name] = b
		}
		change("version 0", 14, 0x05)
		change("version 5", 14, 0x55)
		if f.name == "IPv4" {
			change("header length 0", 14, 0x40)
			change("header length 16", 14, 0x44)
			change("header longer than the packet", 17, 19)
			change("length 0", 17, 0)
		} else {
			change("length beyond the end", 18, 0xff)
			for _, next := range []byte{extHopByHop, extRouting, extDestination} {
				change(fmt.Sprintf("extension %d that is none", next), 20, next)
			}
		}
		if proto == protoTCP {
			change("TCP header length 0", l4+12, 0x00)
			change("TCP header length 16", l4+12, 0x40)
		}
		for name, frame := range bad {
			for _, program := range []string{"tc_ingress", "tc_egress"} {
				got := w.run(program, w.pod, frame, 0)
				if got.verdict != next || !bytes.Equal(got.frame, frame) {
					t.Errorf("%s, %s: verdict %d\n%s", name, program, int32(got.verdict), hex.Dump(got.frame))
				}
			}
		}
		if w.drops()["malformed"] == 0 {
			t.Error("nothing was counted as malformed")
		}
	})
}
