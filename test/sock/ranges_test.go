// SPDX-License-Identifier: Apache-2.0

package sock

import (
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

func socketBoundTo(a netip.Addr) process.SocketRequest {
	return process.SocketRequest{Network: tcp, Family: family(a), Bind: netip.AddrPortFrom(a, 0)}
}

// guarded is a load-balancer address that only the given clients may use.
func guarded(w *world, frontend string, server *lab.Process, allowed ...netip.Prefix) *service {
	w.t.Helper()
	s := w.serve(tcp, frontend, server)
	s.kind = maps.KindLoadBalancer
	s.flags = maps.ServiceSourceRanges
	var ranges []maps.SourceRange
	for _, p := range allowed {
		bits := p.Bits()
		if p.Addr().Is4() {
			bits += 96
		}
		ranges = append(ranges, maps.SourceRange{
			PrefixBits: uint32(32 + bits), ServiceID: s.id, Address: maps.AddressOf(p.Masked().Addr()),
		})
	}
	_, err := w.maps.PutSourceRanges(ranges)
	w.must(err)
	return w.program(s)
}

func TestSourceRangesJudgeAPodByItsAddress(t *testing.T) {
	w := newWorld(t)
	server, friend, stranger := w.pod("server"), w.pod("friend"), w.pod("stranger")
	guarded(w, "192.0.2.20:80", server, netip.PrefixFrom(friend.Address4, 32))
	guarded(w, "[2001:db8::20]:80", server, netip.PrefixFrom(friend.Address6, 128))
	for _, to := range []string{"192.0.2.20:80", "[2001:db8::20]:80", "[::ffff:192.0.2.20]:80"} {
		if socket := friend.Dial(tcp, addrPort(to)); !socket.OK() || socket.Exchange("x").Server != "server" {
			t.Errorf("%s from a client in the ranges: %s", to, socket.Errno)
		}
		before := w.drops(reasonSourceRange)
		expectErrno(t, to+" from another client", stranger.Dial(tcp, addrPort(to)).Outcome, "ETIMEDOUT")
		if n := w.drops(reasonSourceRange) - before; n != 1 {
			t.Errorf("%s: counted %d times", to, n)
		}
	}
	// A bound socket is judged by its own address, which may be a second one of the pod.
	socket := friend.Open(socketBoundTo(friend.Address4))
	if outcome := socket.Connect(addrPort("192.0.2.20:80")); !outcome.OK() {
		t.Errorf("a bound socket: %s", outcome.Errno)
	}
}

func TestSourceRangesJudgeTheNodesProcessesByTheNodesAddress(t *testing.T) {
	w := newWorld(t)
	node, server := w.node.Process(), w.pod("server")
	guarded(w, "192.0.2.20:80", server, netip.PrefixFrom(w.node.Address4, 24))
	guarded(w, "192.0.2.21:80", server, netip.MustParsePrefix("10.244.0.0/16"))
	guarded(w, "[2001:db8::20]:80", server, netip.PrefixFrom(w.node.Address6, 64))
	check := func(configured string) {
		t.Helper()
		for _, to := range []string{"192.0.2.20:80", "[2001:db8::20]:80"} {
			expectErrno(t, to+" "+configured, node.Dial(tcp, addrPort(to)).Outcome, "")
		}
	}
	check("with the node's address given")
	expectErrno(t, "outside", node.Dial(tcp, addrPort("192.0.2.21:80")).Outcome, "ETIMEDOUT")
	w.load(func(o *loader.Options) { o.NodeAddress4, o.NodeAddress6 = netip.Addr{}, netip.Addr{} })
	check("with the namespace's address")
}

func TestSourceRangesWithoutAKnownClientLeaveTheDialAlone(t *testing.T) {
	w := newWorld(t, func(o *loader.Options) { o.Without.ReadKernel = true })
	client, server := w.pod("client"), w.pod("server")
	s := guarded(w, "192.0.2.20:80", server, netip.MustParsePrefix("10.244.0.0/16"))
	socket := client.Open(process.SocketRequest{Network: udp, Family: 4})
	socket.Close()
	client.Dial(tcp, s.frontends[0])
	if n := w.drops(reasonClientUnknown); n != 1 {
		t.Errorf("counted %d times", n)
	}
	if stats := w.stats(s); stats != (maps.ServiceStats{}) {
		t.Errorf("service counted %+v", stats)
	}
	// A socket bound to an address tells who it is.
	bound := client.Open(socketBoundTo(client.Address4))
	if outcome := bound.Connect(s.frontends[0]); !outcome.OK() {
		t.Errorf("a bound socket: %s", outcome.Errno)
	}
}
