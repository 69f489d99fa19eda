// SPDX-License-Identifier: Apache-2.0

package prog

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
)

// The builder below shares nothing with the programs: it writes each packet from the beginning and computes each
// checksum over all bytes, so that a packet that the programs have changed can be compared with one that was built
// as it should be.

const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132

	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10

	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extDestination = 60
)

// header is an IPv6 extension header, without its first two bytes (next header, length).
type header struct {
	kind uint8
	body []byte // 6 + 8n bytes
}

// packet is a frame in words. Zero values are left out or zero on the wire.
type packet struct {
	noEthernet     bool
	toMAC, fromMAC net.HardwareAddr
	padding        int // bytes behind the IP packet

	from, to netip.AddrPort
	proto    uint8
	ttl      uint8 // 0: 64
	tos      uint8
	id       uint16
	df       bool
	options  []byte // IPv4, a multiple of four bytes
	ext      []header

	// Fragments: payload is cut out of the transport packet at [fragFrom, fragTo).
	fragment         bool
	fragFrom, fragTo int
	fragID           uint32

	flags      uint8
	seq, ack   uint32
	window     uint16
	tcpOptions []byte
	noChecksum bool
	tag        uint32
	payload    []byte // SCTP: the chunks
	crcZero    bool

	// ICMP errors and others: type, code, second word, quoted bytes as payload.
	icmpType, icmpCode uint8
	icmpRest           uint32

	// wrong makes the transport checksum wrong by so much.
	wrong uint16
}

func (p packet) with(change func(*packet)) packet {
	change(&p)
	return p
}

func (p packet) is6() bool { return p.to.Addr().Is6() }

func sum16(sum uint32, b []byte) uint32 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return sum
}

func (p packet) pseudo(length int) uint32 {
	b := append(p.from.Addr().AsSlice(), p.to.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	b = binary.BigEndian.AppendUint32(b, uint32(p.proto))
	return sum16(0, b)
}

// transport returns the transport header and payload of the whole, unfragmented packet.
func (p packet) transport() []byte {
	switch p.proto {
	case protoTCP:
		return p.tcp()
	case protoUDP:
		return p.udp()
	case protoSCTP:
		return p.sctp()
	case protoICMP, protoICMPv6:
		return p.icmp()
	}
	return p.payload
}

func (p packet) tcp() []byte {
	b := make([]byte, 20, 20+len(p.tcpOptions)+len(p.payload))
	binary.BigEndian.PutUint16(b[0:], p.from.Port())
	binary.BigEndian.PutUint16(b[2:], p.to.Port())
	binary.BigEndian.PutUint32(b[4:], p.seq)
	binary.BigEndian.PutUint32(b[8:], p.ack)
	b[12] = uint8(5+len(p.tcpOptions)/4) << 4
	b[13] = p.flags
	binary.BigEndian.PutUint16(b[14:], p.window)
	b = append(append(b, p.tcpOptions...), p.payload...)
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum16(p.pseudo(len(b))+uint32(p.wrong), b)))
	return b
}

func (p packet) udp() []byte {
	b := make([]byte, 8, 8+len(p.payload))
	binary.BigEndian.PutUint16(b[0:], p.from.Port())
	binary.BigEndian.PutUint16(b[2:], p.to.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(p.payload)))
	b = append(b, p.payload...)
	if p.noChecksum {
		return b
	}
	sum := ^uint16(sum16(p.pseudo(len(b))+uint32(p.wrong), b))
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], sum)
	return b
}

func (p packet) sctp() []byte {
	b := make([]byte, 12, 12+len(p.payload))
	binary.BigEndian.PutUint16(b[0:], p.from.Port())
	binary.BigEndian.PutUint16(b[2:], p.to.Port())
	binary.BigEndian.PutUint32(b[4:], p.tag)
	b = append(b, p.payload...)
	if !p.crcZero {
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	}
	return b
}

func (p packet) icmp() []byte {
	b := []byte{p.icmpType, p.icmpCode, 0, 0}
	b = append(binary.BigEndian.AppendUint32(b, p.icmpRest), p.payload...)
	var sum uint32
	if p.proto == protoICMPv6 {
		sum = p.pseudo(len(b))
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum16(sum, b)))
	return b
}

// ip returns the packet without its Ethernet header.
func (p packet) ip() []byte {
	body := p.transport()
	if p.fragment {
		to := min(p.fragTo, len(body))
		more := to < len(body)
		body = body[p.fragFrom:to]
		if p.is6() {
			offset := uint16(p.fragFrom)
			if more {
				offset |= 1
			}
			h := header{kind: extFragment, body: binary.BigEndian.AppendUint16(nil, offset)}
			h.body = binary.BigEndian.AppendUint32(h.body, p.fragID)
			p.ext = append(append([]header{}, p.ext...), h)
			return p.ip6(body)
		}
		offset := uint16(p.fragFrom / 8)
		if more {
			offset |= 0x2000
		}
		return p.ip4(body, offset)
	}
	if p.is6() {
		return p.ip6(body)
	}
	return p.ip4(body, 0)
}

func (p packet) hops() uint8 {
	if p.ttl == 0 {
		return 64
	}
	return p.ttl
}

func (p packet) ip4(body []byte, fragment uint16) []byte {
	b := make([]byte, 20, 20+len(p.options)+len(body))
	b[0] = 0x40 | uint8(5+len(p.options)/4)
	b[1] = p.tos
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(p.options)+len(body)))
	binary.BigEndian.PutUint16(b[4:], p.id)
	if p.df {
		fragment |= 0x4000
	}
	binary.BigEndian.PutUint16(b[6:], fragment)
	b[8] = p.hops()
	b[9] = p.proto
	copy(b[12:], p.from.Addr().AsSlice())
	copy(b[16:], p.to.Addr().AsSlice())
	b = append(b, p.options...)
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum16(0, b)))
	return append(b, body...)
}

func (p packet) ip6(body []byte) []byte {
	var ext []byte
	for i, h := range p.ext {
		next := p.proto
		if i+1 < len(p.ext) {
			next = p.ext[i+1].kind
		}
		length := uint8((len(h.body)+2)/8 - 1)
		if h.kind == extFragment {
			length = 0
		}
		ext = append(append(ext, next, length), h.body...)
	}
	first := p.proto
	if len(p.ext) > 0 {
		first = p.ext[0].kind
	}
	b := make([]byte, 40, 40+len(ext)+len(body))
	b[0] = 0x60 | p.tos>>4
	b[1] = p.tos << 4
	binary.BigEndian.PutUint16(b[4:], uint16(len(ext)+len(body)))
	b[6] = first
	b[7] = p.hops()
	copy(b[8:], p.from.Addr().AsSlice())
	copy(b[24:], p.to.Addr().AsSlice())
	return append(append(b, ext...), body...)
}

// bytes returns the frame.
func (p packet) bytes() []byte {
	ip := append(p.ip(), make([]byte, p.padding)...)
	if p.noEthernet {
		return ip
	}
	b := append(append([]byte{}, p.toMAC...), p.fromMAC...)
	if p.is6() {
		b = append(b, 0x86, 0xdd)
	} else {
		b = append(b, 0x08, 0x00)
	}
	return append(b, ip...)
}
