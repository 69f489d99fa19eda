// SPDX-License-Identifier: Apache-2.0

package sock

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// unconnected opens a UDP socket of the family that dials the address.
func unconnected(p *lab.Process, to netip.AddrPort) *lab.Socket {
	return p.Open(process.SocketRequest{Network: udp, Family: family(to.Addr())})
}

func TestUnconnectedUDPKeepsItsBackendUntilItGoes(t *testing.T) {
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			w := newWorld(t)
			client := w.pod("client")
			s := w.serve(udp, family.frontend, w.pod("a"), w.pod("b"), w.pod("c"))
			to := addrPort(family.dialled)
			socket := unconnected(client, to)
			first := sendMany(t, socket, to, 20)
			if stats := w.stats(s); stats.Connections != 1 {
				t.Errorf("one flow counted as %d", stats.Connections)
			}
			var left []netip.AddrPort
			for i, name := range []string{"a", "b", "c"} {
				if name != first {
					left = append(left, s.backends[i])
				}
			}
			s.backends = left
			w.program(s)
			if second := sendMany(t, socket, to, 20); second == first {
				t.Errorf("%s still answers after it has gone", first)
			}
		})
	}
}

// sendMany sends datagrams and returns the one server that answered all, each from the frontend.
func sendMany(t *testing.T, socket *lab.Socket, to netip.AddrPort, count int) string {
	t.Helper()
	var server string
	for i := range count {
		text := fmt.Sprint(i)
		reply := socket.ExchangeWith(to, text)
		if !reply.OK() || reply.Text != text || reply.From != to {
			t.Fatalf("datagram %d to %s: %+v", i, to, reply)
		}
		if server != "" && reply.Server != server {
			t.Fatalf("datagram %d: %s answered, before it %s", i, reply.Server, server)
		}
		server = reply.Server
	}
	return server
}

// TestRepliesOfASharedBackendComeFromTheirFrontends is user case B02.
func TestRepliesOfASharedBackendComeFromTheirFrontends(t *testing.T) {
	w := newWorld(t)
	client, server := w.pod("client"), w.pod("server")
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			one := addrPort(family.dialled)
			two := netip.AddrPortFrom(one.Addr().Next(), one.Port())
			first := w.serve(udp, one.String(), server)
			w.program(&service{protocol: protocolUDP, frontends: []netip.AddrPort{two}, backends: first.backends})
			socket := unconnected(client, one)
			for _, order := range [][]netip.AddrPort{{one, two}, {two, one}, {one, one, two, one, two, two}} {
				for _, to := range order {
					if sent := socket.Send(to, to.String()); !sent.OK() {
						t.Fatalf("send to %s: %s", to, sent.Errno)
					}
				}
				for _, to := range order {
					if from := socket.Receive(5 * time.Second).From; from != to {
						t.Errorf("order %v: the reply to %s came from %s", order, to, from)
					}
				}
			}
			// The backend dialled by its own address, beside the frontends.
			for _, to := range []netip.AddrPort{one, sameForm(first.backends[0], one), two} {
				if reply := socket.ExchangeWith(to, "x"); reply.From != to {
					t.Errorf("the reply to %s came from %s", to, reply.From)
				}
			}
		})
	}
}

// sameForm writes an address as the other one is written, v4-mapped or not.
func sameForm(a, as netip.AddrPort) netip.AddrPort {
	if as.Addr().Is4In6() {
		return mapped(a)
	}
	return a
}

func TestMoreFrontendsThanCellsForgetTheOneIdleLongest(t *testing.T) {
	w := newWorld(t)
	client, server := w.pod("client"), w.pod("server")
	const cells = 8
	var frontends []netip.AddrPort
	for i := range cells + 1 {
		frontends = append(frontends, w.serve(udp, fmt.Sprintf("10.96.3.%d:53", i+1), server).frontends[0])
	}
	socket := unconnected(client, frontends[0])
	for _, to := range frontends[:cells] {
		if reply := socket.ExchangeWith(to, "x"); reply.From != to {
			t.Fatalf("the reply to %s came from %s", to, reply.From)
		}
	}
	// The first is used once more: the second is now the one idle longest.
	socket.ExchangeWith(frontends[0], "x")
	socket.Send(frontends[1], "late")
	late := socket.Receive(5 * time.Second)
	if late.From != frontends[1] {
		t.Fatalf("the reply to %s came from %s", frontends[1], late.From)
	}
	if n := w.drops(reasonFlowReplaced); n != 0 {
		t.Fatalf("%d flows replaced too early", n)
	}
	if reply := socket.ExchangeWith(frontends[cells], "x"); reply.From != frontends[cells] {
		t.Errorf("the reply to the ninth came from %s", reply.From)
	}
	if n := w.drops(reasonFlowReplaced); n != 1 {
		t.Errorf("%d flows replaced, want 1", n)
	}
	for i, to := range frontends {
		if i == 2 {
			continue // forgotten: it had been idle longest
		}
		before := w.drops(reasonFlowReplaced)
		if reply := socket.ExchangeWith(to, "x"); reply.From != to {
			t.Errorf("the reply to %s came from %s", to, reply.From)
		}
		if w.drops(reasonFlowReplaced) != before {
			t.Errorf("%s had been forgotten", to)
		}
	}
}

func TestAReplyOfAForgottenFlowShowsTheBackend(t *testing.T) {
	w := newWorld(t)
	client, server := w.pod("client"), w.pod("server")
	forgotten := w.serve(udp, "10.96.3.1:53", w.pod("other"))
	socket := unconnected(client, forgotten.frontends[0])
	socket.Send(forgotten.frontends[0], "x")
	for i := range 8 {
		to := w.serve(udp, fmt.Sprintf("10.96.4.%d:53", i+1), server).frontends[0]
		if sent := socket.Send(to, "x"); !sent.OK() {
			t.Fatalf("send to %s: %s", to, sent.Errno)
		}
	}
	from := map[netip.AddrPort]int{}
	for range 9 {
		from[socket.Receive(usual).From]++
	}
	if len(from) != 9 || from[forgotten.backends[0]] != 1 || from[forgotten.frontends[0]] != 0 {
		t.Errorf("replies came from %v", from)
	}
}

func TestAnIdleFlowChoosesAnew(t *testing.T) {
	w := newWorld(t, func(o *loader.Options) { o.UDPIdle = time.Nanosecond })
	client := w.pod("client")
	s := w.serve(udp, "10.96.0.10:53", w.pod("a"), w.pod("b"))
	socket := unconnected(client, s.frontends[0])
	for range 10 {
		if reply := socket.ExchangeWith(s.frontends[0], "x"); reply.From != s.frontends[0] {
			t.Fatalf("the reply came from %s", reply.From)
		}
	}
	if stats := w.stats(s); stats.Connections != 10 {
		t.Errorf("%d choices, want one for each datagram", stats.Connections)
	}
}

func TestAServiceThatHasGoneNoLongerTranslates(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	s := w.serve(udp, "10.96.0.10:53", w.pod("server"))
	w.address("10.96.0.10", maps.AddressClusterIP)
	socket := unconnected(client, s.frontends[0])
	sendMany(t, socket, s.frontends[0], 1)
	keys, _ := s.elements(maps.Run{})
	_, err := w.maps.DeleteServices(keys)
	w.must(err)
	expectErrno(t, "send", socket.Send(s.frontends[0], "x"), "ECONNREFUSED")
}

func TestAConnectedSocketAfterDisconnectIsAsUnconnected(t *testing.T) {
	w := newWorld(t)
	client, server := w.pod("client"), w.pod("server")
	s := w.serve(udp, "10.96.0.10:53", server)
	socket := client.Dial(udp, s.frontends[0])
	if reply := socket.Exchange("x"); reply.From != s.frontends[0] {
		t.Fatalf("connected: the reply came from %s", reply.From)
	}
	// sendto with an address on a connected socket, then the same backend by its own address.
	if reply := socket.ExchangeWith(s.frontends[0], "x"); reply.From != s.frontends[0] {
		t.Errorf("sendto: the reply came from %s", reply.From)
	}
	if outcome := socket.Connect(s.backends[0]); !outcome.OK() {
		t.Fatalf("connect: %s", outcome.Errno)
	}
	if reply := socket.Exchange("x"); reply.From != s.backends[0] {
		t.Errorf("connected to the backend itself: the reply came from %s", reply.From)
	}
}

// TestAConnectedSocketMayNameItsPeerInASend: sendto on a connected socket passes a hook that send does not. It must not
// choose another backend, of which the socket receives nothing.
func TestAConnectedSocketMayNameItsPeerInASend(t *testing.T) {
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			w := newWorld(t)
			client := w.pod("client")
			s := w.serve(udp, family.frontend, w.pod("a"), w.pod("b"), w.pod("c"))
			to := addrPort(family.dialled)
			const sockets = 16
			for range sockets {
				socket := client.Dial(udp, to)
				server := sendMany(t, socket, to, 2)
				if reply := socket.Exchange("x"); reply.Server != server || reply.From != to {
					t.Errorf("send is answered by %s as %s, sendto by %s as %s", reply.Server, reply.From, server, to)
				}
				socket.Close()
			}
			if stats := w.stats(s); stats.Connections != sockets {
				t.Errorf("%d connections counted, %d made", stats.Connections, sockets)
			}
		})
	}
}
