// SPDX-License-Identifier: Apache-2.0

package sock

import (
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// TestRefusalsWithoutSetRetval is the way of kernels before 5.18.
func TestRefusalsWithoutSetRetval(t *testing.T) {
	w := newWorld(t, func(o *loader.Options) { o.Without.SetRetval = true })
	if w.datapath.Features.SetRetval {
		t.Fatal("the programs still use bpf_set_retval")
	}
	client := w.pod("client")
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			to := addrPort(family.dialled)
			s := w.program(&service{protocol: protocolTCP, frontends: []netip.AddrPort{to}})
			expectErrno(t, "connect", client.Dial(tcp, to).Outcome, "ECONNREFUSED")
			socket := client.Open(socketBoundTo(ownAddress(client.Address4, client.Address6, to)))
			expectErrno(t, "connect of a bound socket", socket.Connect(to), "ECONNREFUSED")
			if stats := w.stats(s); stats != (maps.ServiceStats{Refused: 2, NoBackend: 2}) {
				t.Errorf("counted %+v", stats)
			}

			w.program(&service{protocol: protocolUDP, frontends: []netip.AddrPort{to}})
			connected := client.Dial(udp, to)
			expectErrno(t, "connect of a UDP socket", connected.Outcome, "")
			if sent := connected.Send(netip.AddrPort{}, "x"); to.Addr().Is4In6() {
				expectErrno(t, "its first datagram", sent, "EINVAL")
			} else {
				expectErrno(t, "its answer", connected.Receive(usual).Outcome, "ECONNREFUSED")
			}
			expectErrno(t, "send", unconnected(client, to).Send(to, "x"), "EPERM")
		})
	}
}

func ownAddress(address4, address6 netip.Addr, to netip.AddrPort) netip.Addr {
	if to.Addr().Is4In6() {
		return netip.IPv6Unspecified()
	}
	if to.Addr().Is4() {
		return address4
	}
	return address6
}

func TestHostOnlyTranslatesTheNodesOwnSockets(t *testing.T) {
	w := newWorld(t, func(o *loader.Options) { o.HostOnly = true })
	s := w.serve(udp, "10.96.0.10:53", w.pod("server"))
	if reply := w.node.Process().Dial(udp, s.frontends[0]).Exchange("x"); reply.Server != "server" {
		t.Errorf("from the node: %+v", reply)
	}
	socket := w.pod("client").Dial(udp, s.frontends[0])
	if remote := socket.Inspect().KernelRemote; remote != s.frontends[0] {
		t.Errorf("from a pod the kernel dialled %s", remote)
	}
}

func TestASocketForIPv6AloneDoesNotReachIPv4(t *testing.T) {
	w := newWorld(t)
	w.serve(tcp, "10.96.0.10:80", w.pod("server"))
	socket := w.pod("client").Open(process.SocketRequest{Network: tcp, Family: 6, OnlyIPv6: true})
	expectErrno(t, "connect", socket.Connect(addrPort("[::ffff:10.96.0.10]:80")), "ENETUNREACH")
}
