// SPDX-License-Identifier: Apache-2.0

package prog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// wire is what a frame says, read by a parser that shares nothing with the programs.
type wire struct {
	from, to netip.AddrPort
	proto    uint8
	l3, l4   int
	end      int // of the IP packet
	fragment bool
	later    bool
}

// read parses a frame; false if it is no whole, consistent packet of a protocol that Services have.
func read(frame []byte) (w wire, ok bool) {
	if len(frame) < 34 {
		return w, false
	}
	w.l3 = 14
	b := frame[14:]
	var from, to netip.Addr
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		header := int(b[0]&15) * 4
		length := int(binary.BigEndian.Uint16(b[2:]))
		if b[0]>>4 != 4 || header < 20 || length < header || length > len(b) {
			return w, false
		}
		from, to = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		fragment := binary.BigEndian.Uint16(b[6:])
		w.fragment, w.later = fragment&0x3fff != 0, fragment&0x1fff != 0
		w.proto, w.l4, w.end = b[9], 14+header, 14+length
	case 0x86dd:
		if len(b) < 40 || b[0]>>4 != 6 {
			return w, false
		}
		length := 40 + int(binary.BigEndian.Uint16(b[4:]))
		if length > len(b) {
			return w, false
		}
		from, to = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		w.proto, w.l4, w.end = b[6], 14+40, 14+length
		if !w.skipExtensions(frame) {
			return w, false
		}
	default:
		return w, false
	}
	if w.later {
		w.from, w.to = netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0)
		return w, true
	}
	if w.l4+8 > w.end {
		return w, false
	}
	w.from = netip.AddrPortFrom(from, binary.BigEndian.Uint16(frame[w.l4:]))
	w.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(frame[w.l4+2:]))
	switch w.proto {
	case protoTCP:
		return w, w.l4+20 <= w.end && frame[w.l4+12]>>4 >= 5
	case protoUDP:
		return w, true
	case protoSCTP:
		return w, w.l4+16 <= w.end
	}
	return w, false
}

func (w *wire) skipExtensions(frame []byte) bool {
	for range 6 {
		switch w.proto {
		case extHopByHop, extDestination, extRouting, extFragment:
		default:
			return true
		}
		if w.l4+8 > w.end {
			return false
		}
		h := frame[w.l4:w.end]
		length := 8 + 8*int(h[1])
		if w.proto == extFragment {
			offset := binary.BigEndian.Uint16(h[2:])
			w.fragment, w.later = offset&0xfff9 != 0, offset&0xfff8 != 0
			length = 8
		}
		if w.proto == extRouting && h[3] != 0 {
			return false
		}
		w.proto = h[0]
		w.l4 += length
		if w.later {
			return true
		}
	}
	return false
}

// sums returns whether the checksums are right: the IPv4 header's, and the transport's where the whole packet is here.
func (w wire) sums(frame []byte) (header, transport bool) {
	header, transport = true, true
	if w.from.Addr().Is4() {
		header = sum16(0, frame[w.l3:w.l3+int(frame[w.l3]&15)*4]) == 0xffff
	}
	if w.fragment {
		return header, true
	}
	segment := frame[w.l4:w.end]
	if w.proto == protoSCTP {
		crc := binary.LittleEndian.Uint32(segment[8:])
		zeroed := bytes.Clone(segment)
		copy(zeroed[8:], []byte{0, 0, 0, 0})
		return header, crc == 0 || crc == crc32.Checksum(zeroed, crc32.MakeTable(crc32.Castagnoli))
	}
	if w.proto == protoUDP && segment[6] == 0 && segment[7] == 0 {
		return header, true
	}
	p := packet{from: w.from, to: w.to, proto: w.proto}
	return header, sum16(p.pseudo(len(segment)), segment) == 0xffff
}

// fuzzServices are the Services of the fuzzer's node.
func (w *world) fuzzServices() {
	id := uint32(1)
	for _, f := range families {
		for _, p := range protocols {
			w.addService(id, port(f.vip, 80), p.proto, nil, endpoint{address: port(f.local, 8080), onNode: true})
			w.addService(id+1, port(f.unspecified, 30080), p.proto, nil, endpoint{address: port(f.far, 8080)})
			w.addService(id+2, port(f.vip, 81), p.proto, nil)
			w.addService(id+3, port(f.vip, 82), p.proto, nil, endpoint{address: port(f.pod, 8080), onNode: true})
			id += 4
		}
		w.addAddress(f.vip, maps.AddressClusterIP)
		w.addAddress(f.node, maps.AddressNodePorts|maps.AddressOnNode)
	}
}

// pair is two packets that come in one after the other, behind pod0 or client0.
type pair struct {
	outside       bool
	first, second []byte
}

// goodPairs are what the fuzzer bends.
func goodPairs() []pair {
	var all []pair
	for _, f := range families {
		for _, p := range protocols {
			pod, client := port(f.pod, 40000), port(f.client, 40000)
			vip, node := port(f.vip, 80), port(f.node, 30080)
			for _, change := range variants(p.proto, f) {
				all = append(all,
					pair{false, opening(p.proto, pod, vip).with(change).ip(), more(p.proto, pod, vip).with(change).ip()},
					pair{true, opening(p.proto, client, node).with(change).ip(), more(p.proto, client, node).with(change).ip()})
			}
			for _, to := range []string{port(f.vip, 81), port(f.vip, 82), port(f.unallocated, 80), port(f.local, 80)} {
				all = append(all, pair{false, opening(p.proto, pod, to).ip(), more(p.proto, pod, to).ip()})
			}
			complaint := errorAbout(more(p.proto, vip, pod), f.pod, f.vip, 100)
			all = append(all, pair{false, opening(p.proto, pod, vip).ip(), complaint.ip()})
			parts := fragmentsOf(opening(p.proto, pod, vip).with(func(p *packet) { p.payload = make([]byte, 600) }), 256)
			all = append(all, pair{false, parts[0].ip(), parts[1].ip()}, pair{false, parts[1].ip(), parts[0].ip()})
		}
	}
	return all
}

func (w *world) checkPair(p pair) {
	w.t.Helper()
	at := w.pod
	if p.outside {
		at = w.client
	}
	for _, ip := range [][]byte{p.first, p.second} {
		if len(ip) >= 20 && len(ip) <= 2000 {
			w.check(at, ip)
		}
	}
}

// FuzzPackets throws two packets at each program. Seeds are good packets; the fuzzer bends them.
func FuzzPackets(f *testing.F) {
	for _, p := range goodPairs() {
		f.Add(p.outside, p.first, p.second)
	}
	f.Fuzz(func(t *testing.T, outside bool, first, second []byte) {
		w := newWorld(t)
		w.noCheckSum = true
		w.fuzzServices()
		w.checkPair(pair{outside, first, second})
	})
}

// The fuzzer's engine does not see into the kernel, so chance does as well: each good pair bent in some bytes.
func TestBentPackets(t *testing.T) {
	w := newWorld(t)
	w.noCheckSum = true
	w.fuzzServices()
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	seed := random.Uint64()
	random = rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	rounds := 20
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		for _, p := range goodPairs() {
			p.first, p.second = bent(random, p.first), bent(random, p.second)
			w.checkPair(p)
		}
		for _, name := range []string{"conntrack", "fragments", "held_fragments", "reject_budget"} {
			if err := clearMap(w.maps[name]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// bent changes up to three bytes, mostly of the headers, or cuts the packet.
func bent(random *rand.Rand, ip []byte) []byte {
	b := bytes.Clone(ip)
	for range random.IntN(4) {
		b[random.IntN(min(len(b), 1+random.IntN(len(b))))] = byte(random.Uint32())
	}
	if random.IntN(16) == 0 {
		b = b[:20+random.IntN(len(b)-19)]
	}
	return b
}

// check runs one packet through both programs and holds them to what must be true of each.
func (w *world) check(at device, ip []byte) {
	w.t.Helper()
	frame := append(append(bytes.Clone(at.mac), gatewayMAC...), 0x08, 0x00)
	if ip[0]>>4 == 6 {
		if len(ip) < 40 {
			return // a test run insists on a whole IP header
		}
		frame[12], frame[13] = 0x86, 0xdd
	}
	frame = append(frame, ip...)
	if out := w.run("tc_egress", at, frame, 0); out.verdict != next {
		w.t.Fatalf("a packet of nobody leaves with verdict %d\n%s", int32(out.verdict), hex.Dump(frame))
	}
	before := w.drops()
	got := w.run("tc_ingress", at, frame, 0)
	in, whole := read(frame)
	switch got.verdict {
	case drop:
		if counted(w.drops()) == counted(before) {
			w.t.Fatalf("dropped without a reason\n%s", hex.Dump(frame))
		}
		return
	case next, redirect:
	default:
		w.t.Fatalf("verdict %d", int32(got.verdict))
	}
	if bytes.Equal(got.frame, frame) {
		return
	}
	if !whole {
		if !w.isError(frame) && counted(w.drops()) == counted(before) {
			w.t.Fatalf("changed what is no whole packet\n%s\n%s", hex.Dump(frame), hex.Dump(got.frame))
		}
		return
	}
	w.checkTranslated(at, frame, in, got, before)
}

func counted(drops map[string]uint64) (n uint64) {
	for _, c := range drops {
		n += c
	}
	return n
}

// isError tells an ICMP or ICMPv6 packet, extension headers or not.
func (w *world) isError(frame []byte) bool {
	p, _ := read(frame)
	return p.proto == protoICMP || p.proto == protoICMPv6
}

func (w *world) checkTranslated(at device, frame []byte, in wire, got result, before map[string]uint64) {
	w.t.Helper()
	out, ok := read(got.frame)
	if !ok || out.proto != in.proto || out.from.Addr() == in.to.Addr() && got.verdict == redirect && counted(w.drops()) > counted(before) {
		// An answer. It is right by itself.
		if counted(w.drops()) == counted(before) {
			w.t.Fatalf("neither translated nor refused\n%s\n%s", hex.Dump(frame), hex.Dump(got.frame))
		}
		if header, transport := out.sums(got.frame); ok && !(header && transport) {
			w.t.Fatalf("answered with wrong checksums\n%s", hex.Dump(got.frame))
		}
		return
	}
	header, transport := in.sums(frame)
	headerOut, transportOut := out.sums(got.frame)
	if header != headerOut || transport != transportOut {
		w.t.Fatalf("checksums were %v, %v and are %v, %v\n%s\n%s", header, transport, headerOut, transportOut,
			hex.Dump(frame), hex.Dump(got.frame))
	}
	if in.later {
		return
	}
	var value maps.ConntrackValue
	key := maps.ConntrackKey{Source: maps.AddressOf(in.from.Addr()), Destination: maps.AddressOf(in.to.Addr()),
		SourcePort: in.from.Port(), DestinationPort: in.to.Port(), Protocol: in.proto}
	if err := w.maps["conntrack"].Lookup(key, &value); err != nil {
		w.t.Fatalf("translated, and not in conntrack: %v\n%s\n%s", err, hex.Dump(frame), hex.Dump(got.frame))
	}
	w.checkReply(at, in, out, got)
}

// checkReply answers a translated packet and expects that the client sees the answer of whom it has dialled.
func (w *world) checkReply(at device, in, out wire, got result) {
	w.t.Helper()
	reply := answer(out.proto, out.to.String(), out.from.String())
	run, leaves := w.egress, at
	if got.verdict == redirect {
		run, leaves = w.ingress, w.up
		if out.to.Addr() == in.from.Addr() {
			leaves = w.pod
		}
	}
	back, ok := read(run(leaves, reply).frame)
	if !ok || back.from != in.to || back.to != in.from {
		w.t.Fatalf("dialled %v from %v; answered by %v to %v", in.to, in.from, back.from, back.to)
	}
	if header, transport := back.sums(run(leaves, reply).frame); !header || !transport {
		w.t.Fatalf("the reply's checksums are %v, %v", header, transport)
	}
}
