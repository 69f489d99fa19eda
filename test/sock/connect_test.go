// SPDX-License-Identifier: Apache-2.0

package sock

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// families are the three ways to name a frontend, with what getpeername then says.
var families = []struct {
	name, frontend, dialled string
}{
	{"IPv4", "10.96.0.10:80", "10.96.0.10:80"},
	{"IPv6", "[fd00:96::10]:80", "[fd00:96::10]:80"},
	{"v4-mapped", "10.96.0.10:80", "[::ffff:10.96.0.10]:80"},
}

func TestConnectReachesABackendAndShowsTheFrontend(t *testing.T) {
	w := newWorld(t)
	client, server := w.pod("client"), w.pod("server")
	for _, network := range []string{tcp, udp, mptcp} {
		for _, family := range families {
			t.Run(network+" "+family.name, func(t *testing.T) {
				s := w.serve(network, family.frontend, server)
				dialled := addrPort(family.dialled)
				socket := client.Dial(network, dialled)
				if !socket.OK() {
					t.Fatalf("connect: %s", socket.Errno)
				}
				defer socket.Close()
				reply := socket.Exchange("hello")
				if reply.Server != "server" || reply.Text != "hello" {
					t.Fatalf("answered %+v", reply)
				}
				if seen := reply.Peer.Addr(); seen != client.Address4 && seen != client.Address6 {
					t.Errorf("the server saw %s, not the client", seen)
				}
				inspected := socket.Inspect()
				if inspected.Peer != dialled {
					t.Errorf("getpeername says %s", inspected.Peer)
				}
				if network != mptcp && unmapped(inspected.KernelRemote) != s.backends[0] {
					t.Errorf("the kernel dialled %s, not %s", inspected.KernelRemote, s.backends[0])
				}
				if network == udp && reply.From != dialled {
					t.Errorf("recvfrom says %s", reply.From)
				}
				if stats := w.stats(s); stats != (maps.ServiceStats{Connections: 1}) {
					t.Errorf("counted %+v", stats)
				}
			})
		}
	}
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func TestConnectSpreadsEvenlyOverTheRun(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	s := w.serve(tcp, "10.96.0.10:80", w.pod("a"), w.pod("b"), w.pod("c"), w.pod("d"))
	const count = 2000
	result := client.Connects(tcp, s.frontends[0], count)
	if result.Total() != count {
		t.Fatalf("%d of %d connected: %v", result.Total(), count, result.Errnos)
	}
	// 500 each, six standard deviations of 19.4.
	for _, name := range []string{"a", "b", "c", "d"} {
		if n := result.Servers[name]; n < 384 || n > 616 {
			t.Errorf("%s answered %d of %d", name, n, count)
		}
	}
	if stats := w.stats(s); stats.Connections != count {
		t.Errorf("counted %d connections", stats.Connections)
	}
}

func TestProtocolsOfOnePortAreApart(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	w.serve(tcp, "10.96.0.10:53", w.pod("over-tcp"))
	w.serve(udp, "10.96.0.10:53", w.pod("over-udp"))
	for network, want := range map[string]string{tcp: "over-tcp", udp: "over-udp"} {
		if reply := client.Dial(network, addrPort("10.96.0.10:53")).Exchange("x"); reply.Server != want {
			t.Errorf("%s reached %q", network, reply.Server)
		}
	}
}

func TestWhatIsNoFrontendIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	client, server := w.pod("client"), w.pod("server")
	direct := server.Listen(tcp, netip.AddrPortFrom(server.Address4, 8080), "direct")
	socket := client.Dial(tcp, direct)
	if reply := socket.Exchange("x"); reply.Server != "direct" {
		t.Fatalf("answered %+v", reply)
	}
	if peer := socket.Inspect().Peer; peer != direct {
		t.Errorf("getpeername says %s", peer)
	}
	// An external address of a Service serves its declared ports alone, also as an address of the node.
	w.address(server.Address4.String(), maps.AddressService|maps.AddressOnNode)
	if reply := client.Dial(tcp, direct).Exchange("x"); reply.Server != "direct" {
		t.Errorf("an undeclared port of an external address: answered %+v", reply)
	}
	w.address(server.Address4.String(), maps.AddressClusterIP|maps.AddressOnNode)
	if reply := client.Dial(tcp, direct).Exchange("x"); reply.Server != "direct" {
		t.Errorf("a ClusterIP on a device of the node: answered %+v", reply)
	}
}

func TestRefusalsHaveTheRightErrnoAndAreCounted(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	rows := []struct {
		name   string
		flags  maps.ServiceFlags
		port   uint16
		errno  string
		reason int
		stats  maps.ServiceStats
	}{
		{"no endpoint", 0, 80, "ECONNREFUSED", reasonNoBackend, maps.ServiceStats{Refused: 2, NoBackend: 2}},
		{"policy excludes all", maps.ServiceInternalDrop, 80, "ETIMEDOUT", reasonLocalPolicyDrop,
			maps.ServiceStats{Refused: 2, NoBackend: 2}},
		{"port of no service", 0, 81, "ECONNREFUSED", reasonUndefinedPort, maps.ServiceStats{}},
	}
	for i, row := range rows {
		for _, network := range []string{tcp, udp} {
			for _, ip := range []string{fmt.Sprintf("10.96.1.%d", i), fmt.Sprintf("fd00:96::1:%d", i),
				fmt.Sprintf("::ffff:10.96.2.%d", i)} {
				t.Run(fmt.Sprintf("%s %s %s", row.name, network, ip), func(t *testing.T) {
					at := netip.MustParseAddr(ip)
					w.address(ip, maps.AddressClusterIP)
					s := w.program(&service{protocol: protocolOf(network), flags: row.flags,
						frontends: []netip.AddrPort{netip.AddrPortFrom(at, 80)}})
					before := w.drops(row.reason)
					to := netip.AddrPortFrom(at, row.port)
					expectErrno(t, "connect", client.Dial(network, to).Outcome, row.errno)
					if network == tcp {
						expectErrno(t, "connect again", client.Dial(network, to).Outcome, row.errno)
					} else {
						socket := client.Open(process.SocketRequest{Network: udp, Family: family(at)})
						expectErrno(t, "send", socket.Send(to, "x"), row.errno)
					}
					if n := w.drops(row.reason) - before; n != 2 {
						t.Errorf("reason counted %d times", n)
					}
					if stats := w.stats(s); stats != row.stats {
						t.Errorf("service counted %+v", stats)
					}
				})
			}
		}
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

func expectErrno(t *testing.T, what string, got process.Outcome, want string) {
	t.Helper()
	if got.Errno != want {
		t.Errorf("%s: %q, want %q", what, got.Errno, want)
	}
}

func TestConnectToANonServiceForgetsTheFrontend(t *testing.T) {
	w := newWorld(t)
	client, server := w.pod("client"), w.pod("server")
	s := w.serve(udp, "10.96.0.10:53", server)
	other := w.serve(udp, "10.96.0.11:53", w.pod("other"))
	socket := client.Dial(udp, s.frontends[0])
	for _, to := range []netip.AddrPort{s.frontends[0], other.frontends[0], s.backends[0], s.frontends[0]} {
		if outcome := socket.Connect(to); !outcome.OK() {
			t.Fatalf("connect to %s: %s", to, outcome.Errno)
		}
		if peer := socket.Inspect().Peer; peer != to {
			t.Errorf("connected to %s, getpeername says %s", to, peer)
		}
		if reply := socket.Exchange("x"); reply.From != to {
			t.Errorf("connected to %s, recvfrom says %s", to, reply.From)
		}
	}
}

// TestARefusedConnectLeavesAUDPSocketAsItWas: its peer is the backend it had, which it still knows by the frontend.
func TestARefusedConnectLeavesAUDPSocketAsItWas(t *testing.T) {
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			w := newWorld(t)
			client := w.pod("client")
			w.serve(udp, family.frontend, w.pod("server"))
			to := addrPort(family.dialled)
			w.address(to.Addr().Unmap().String(), maps.AddressClusterIP)
			socket := client.Dial(udp, to)
			expectErrno(t, "connect to an undefined port", socket.Connect(netip.AddrPortFrom(to.Addr(), 4)), "ECONNREFUSED")
			if reply := socket.Exchange("x"); !reply.OK() || reply.From != to {
				t.Errorf("after the refused connect the reply comes from %s %s, want %s", reply.From, reply.Errno, to)
			}
			if peer := socket.Inspect().Peer; peer != to {
				t.Errorf("after the refused connect getpeername says %s, want %s", peer, to)
			}
		})
	}
}

func TestASocketBoundToLoopbackIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	s := w.serve(tcp, "10.96.0.10:80", w.pod("server"))
	socket := client.Open(process.SocketRequest{Network: tcp, Family: 4, Bind: addrPort("127.0.0.1:0")})
	socket.Connect(s.frontends[0])
	if stats := w.stats(s); stats != (maps.ServiceStats{}) {
		t.Errorf("counted %+v", stats)
	}
	local := client.Listen(tcp, addrPort("127.0.0.1:0"), "loopback")
	loop := w.program(&service{protocol: protocolTCP, frontends: []netip.AddrPort{addrPort("10.96.0.11:80")},
		backends: []netip.AddrPort{local}})
	socket = client.Open(process.SocketRequest{Network: tcp, Family: 4, Bind: addrPort("127.0.0.1:0")})
	if outcome := socket.Connect(loop.frontends[0]); !outcome.OK() {
		t.Fatalf("a loopback backend: %s", outcome.Errno)
	}
	if reply := socket.Exchange("x"); reply.Server != "loopback" {
		t.Errorf("a loopback backend: answered %+v", reply)
	}
}
