// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"net/netip"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// Cases A05 and B01: every address of a Service without endpoints refuses at once, never with EPERM, and no packet
// leaves.
func TestAServiceWithoutEndpointsRefusesAtOnce(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a := agentlab.Serve(w.Node, "a")
	ports := "[{name: u, port: 80, protocol: UDP, nodePort: 30080}, {name: t, port: 80, protocol: TCP, nodePort: 30080}]"
	spec := "type: LoadBalancer, externalIPs: [192.0.2.10, '2001:db8::10']"
	status := "\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.11}, {ip: '2001:db8::11'}]}}"
	service := dual("empty", 4, spec, ports) + status
	w.Write("empty", service)
	w.StartAgent()
	from := clients(w)

	addresses := append(forms(4, 80), agentlab.At("192.0.2.10:80"), agentlab.At("[2001:db8::10]:80"),
		agentlab.At("192.0.2.11:80"), agentlab.At("[2001:db8::11]:80"), agentlab.At("[::ffff:192.0.2.10]:80"),
		netip.AddrPortFrom(w.Node.Address4, 30080), netip.AddrPortFrom(w.Node.Address6, 30080))
	loopback := []netip.AddrPort{agentlab.At("127.0.0.1:30080"), agentlab.At("[::1]:30080"), agentlab.At("0.0.0.0:30080")}
	for _, row := range []struct {
		name   string
		slices []string
	}{
		{"no slice", nil},
		{"empty slices", dualSlices("empty", bothTargets, isReady)},
		{"not ready", dualSlices("empty", bothTargets, isUnready, a)},
		{"leaving and not serving", dualSlices("empty", bothTargets, hasNoServer, a)},
		{"ports of other names", dualSlices("empty", "[{name: x, port: 8080, protocol: UDP}, {name: z, port: 8080}]", isReady, a)},
		{"ports without numbers", dualSlices("empty", "[{name: u, port: null, protocol: UDP}, {name: t, port: null}]", isReady, a)},
	} {
		w.Run(row.name, func(t *testing.T) {
			w.Write("empty", append([]string{service}, dualSlices("empty", bothTargets, isReady, a)...)...)
			w.AwaitReached(from[0], tcp, addresses[0], "a")
			w.Write("empty", append([]string{service}, row.slices...)...)
			w.AwaitReached(from[0], tcp, addresses[1], refused)
			w.AwaitReached(from[0], tcp, addresses[0], refused)
			tcpBefore, udpBefore := counters(w, "empty", "TCP"), counters(w, "empty", "UDP")
			captures := []*lab.Capture{from[0].Capture("eth0"), from[1].Capture("eth0"), a.Capture("")}
			calls := 0
			for _, client := range from {
				dialled := addresses
				if client == from[1] {
					dialled = append(dialled, loopback...)
				}
				for _, to := range dialled {
					expectRefused(t, client, to)
					calls++
				}
			}
			for _, capture := range captures {
				if n := packets(capture.Stop(), isUnicast); n > 0 {
					t.Errorf("%d packets on the wire", n)
				}
			}
			tcpAfter, udpAfter := counters(w, "empty", "TCP"), counters(w, "empty", "UDP")
			expectCounter(t, "no backend, TCP", tcpBefore.NoBackend, tcpAfter.NoBackend, calls)
			expectCounter(t, "refused, TCP", tcpBefore.Refused, tcpAfter.Refused, calls)
			expectCounter(t, "no backend, UDP", udpBefore.NoBackend, udpAfter.NoBackend, 2*calls)
			expectCounter(t, "connections", tcpBefore.Connections, tcpAfter.Connections, 0)
		})
	}
}

// expectRefused dials TCP once and UDP twice, connected and by sendto.
func expectRefused(t *testing.T, client *lab.Process, to netip.AddrPort) {
	t.Helper()
	for _, network := range []string{tcp, udp} {
		socket := client.Dial(network, to)
		if socket.Errno != refused || socket.Duration > time.Second {
			t.Errorf("%s connect to %s from %s: %q after %s", network, to, client.Name, socket.Errno, socket.Duration)
		}
		socket.Close()
	}
	socket := client.Open(process.SocketRequest{Network: udp, Family: familyOf(to)})
	if sent := socket.Send(to, "x"); sent.Errno != refused {
		t.Errorf("sendto %s from %s: %q", to, client.Name, sent.Errno)
	}
	socket.Close()
}

// isUnicast leaves out what the kernel says by itself: neighbour and router discovery.
func isUnicast(c process.Captured) bool {
	return c.Destination.IsValid() && !c.Destination.IsMulticast() && !c.Destination.IsLinkLocalUnicast() &&
		!c.Source.IsLinkLocalUnicast() && !c.Source.IsUnspecified()
}

// Case A05, its neighbours: what is not the Service's is not refused in its name.
func TestOnlyDeclaredPortsOfAddressesThatOthersMayHaveAreRefused(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	host := w.Node.Process()
	host.Listen(tcp, netip.AddrPortFrom(w.Node.Address4, 9000), "host")
	// The external IP is the node's own address, as on many edge nodes.
	w.Write("edge", dual("edge", 7, "externalIPs: ["+w.Node.Address4.String()+"]", "[{port: 80}]"))
	w.StartAgent()
	for _, client := range clients(w) {
		expectReached(t, client, tcp, netip.AddrPortFrom(w.Node.Address4, 80), refused)
		expectReached(t, client, tcp, netip.AddrPortFrom(w.Node.Address4, 9000), "host")
		expectReached(t, client, tcp, forms(7, 81)[0], refused)
	}
	if f := counters(w, "edge", "TCP"); f.NoBackend != 2 || f.Refused != 2 {
		t.Errorf("counted %d refused, %d without backend, want 2 of each: an undeclared port is no service port's",
			f.Refused, f.NoBackend)
	}
}
