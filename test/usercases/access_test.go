// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

// Case A12: source ranges guard load-balancer addresses and nothing else, and judge who dials by its own address.
func TestSourceRangesJudgeClientsByTheirOwnAddress(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	server := agentlab.Serve(w.Node, "server")
	near := w.Node.Pod(lab.PodOptions{Name: "near"}).Process()
	far := w.Node.Pod(lab.PodOptions{Name: "far", Address4: netip.MustParseAddr("10.244.1.200"),
		Address6: netip.MustParseAddr("fd00:10:244:1:200::1")}).Process()
	host := w.Node.Process()
	const ports = "[{name: u, port: 80, protocol: UDP, nodePort: 30087}, {name: t, port: 80, nodePort: 30087}]"
	status := "\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.20}, {ip: '2001:db8::20'}]}}"
	guarded := []netip.AddrPort{agentlab.At("192.0.2.20:80"), agentlab.At("[::ffff:192.0.2.20]:80"), agentlab.At("[2001:db8::20]:80")}
	open := append(forms(50, 80), agentlab.At("192.0.2.51:80"), netip.AddrPortFrom(w.Node.Address4, 30087),
		netip.AddrPortFrom(w.Node.Address6, 30087))

	w.StartAgent()
	const all, denied = "server", "ETIMEDOUT"
	type answers struct{ four, six string }
	for _, row := range []struct {
		name, ranges    string
		near, far, host answers
		reported        string
	}{
		{"none", "[]", answers{all, all}, answers{all, all}, answers{all, all}, ""},
		{"one pod of each family", "[" + near.Address4.String() + "/32, '" + near.Address6.String() + "/128']",
			answers{all, all}, answers{denied, denied}, answers{denied, denied}, ""},
		{"a range of pods", "[10.244.1.0/25, 'fd00:10:244:1::/96']", answers{all, all}, answers{denied, denied},
			answers{denied, denied}, ""},
		{"the node", "[" + w.Node.Address4.String() + "/32, '" + w.Node.Address6.String() + "/128']",
			answers{denied, denied}, answers{denied, denied}, answers{all, all}, ""},
		{"host bits", "[10.244.1.77/25, 'fd00:10:244:1::77/96']", answers{all, all}, answers{denied, denied},
			answers{denied, denied}, ""},
		{"blanks around", "[' 10.244.1.0/25 ', ' fd00:10:244:1::/96 ']", answers{all, all}, answers{denied, denied},
			answers{denied, denied}, ""},
		{"one family alone", "[203.0.113.0/24]", answers{denied, all}, answers{denied, all}, answers{denied, all}, ""},
		{"everybody", "[203.0.113.0/24, 0.0.0.0/0, '::/0']", answers{all, all}, answers{all, all}, answers{all, all}, ""},
		{"many", "[203.0.113.0/24, 10.244.1.128/25, 10.244.1.0/24, 'fd00:10:244:1:200::/80']",
			answers{all, denied}, answers{all, all}, answers{denied, denied}, ""},
		{"an invalid one beside a valid one", "[10.244.1.0/25, 300.0.0.0/8, 'fd00:10:244:1::/96']",
			answers{all, all}, answers{denied, denied}, answers{denied, denied}, "300.0.0.0/8"},
		{"invalid ones alone, which count as none", "[300.0.0.0/8, nonsense]",
			answers{all, all}, answers{all, all}, answers{all, all}, "nonsense"},
	} {
		w.Run(row.name, func(t *testing.T) {
			mark := len(w.LogText())
			// A Service of its own for each row: a former state is no answer.
			w.Write("lb", append([]string{dual("lb", 50, "type: LoadBalancer, externalIPs: [192.0.2.51], loadBalancerSourceRanges: "+
				row.ranges, ports) + status}, dualSlices("lb", bothTargets, isReady, server)...)...)
			for i, client := range []*lab.Process{near, far, host} {
				want := []answers{row.near, row.far, row.host}[i]
				w.AwaitReached(client, tcp, guarded[0], want.four)
				w.AwaitReached(client, tcp, guarded[2], want.six)
				for _, network := range []string{tcp, udp} {
					for j, to := range guarded {
						expectReached(t, client, network, to, []string{want.four, want.four, want.six}[j])
					}
					for _, to := range open {
						expectReached(t, client, network, to, "server")
					}
				}
			}
			if row.reported != "" {
				awaitLog(w, mark, "default/lb", row.reported)
			}
			w.Remove("lb")
			awaitFrontends(w)
		})
	}
}

// Case A13: an ingress address of mode Proxy is the load balancer's own.
func TestAnIngressAddressOfModeProxyIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	server := agentlab.Serve(w.Node, "server")
	// The load balancer itself: it answers at its addresses, which pods reach through the wire.
	balancer := w.Lab.Client(lab.ClientOptions{Name: "balancer"})
	for _, address := range []string{"192.0.2.61", "192.0.2.62", "2001:db8::61", "2001:db8::62"} {
		ip := netip.MustParseAddr(address)
		host := netip.PrefixFrom(ip, ip.BitLen())
		w.Must(balancer.AddAddress("eth0", host))
		via := balancer.Address4
		if ip.Is6() {
			via = balancer.Address6
		}
		w.Must(w.Node.AddRoute(host, "eth0", via))
	}
	w.Must(balancer.AddRoute(w.Node.Pods4, "eth0", w.Node.Address4))
	w.Must(balancer.AddRoute(w.Node.Pods6, "eth0", w.Node.Address6))
	proxy := balancer.Process()
	for _, address := range []string{"192.0.2.61:80", "192.0.2.62:80", "[2001:db8::61]:80", "[2001:db8::62]:80"} {
		proxy.Listen(tcp, agentlab.At(address), "balancer")
		proxy.Listen(udp, agentlab.At(address), "balancer")
	}
	w.StartAgent()
	from := clients(w)
	for _, row := range []struct{ name, first, second, want1, want2 string }{
		{"one of each", ", ipMode: Proxy", ", ipMode: VIP", "balancer", "server"},
		{"no mode", "", "", "server", "server"},
		{"turned round", ", ipMode: VIP", ", ipMode: Proxy", "server", "balancer"},
		{"both Proxy", ", ipMode: Proxy", ", ipMode: Proxy", "balancer", "balancer"},
	} {
		w.Run(row.name, func(t *testing.T) {
			status := fmt.Sprintf("\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.61%s}, {ip: '2001:db8::61'%[1]s}, "+
				"{ip: 192.0.2.62%[2]s}, {ip: '2001:db8::62'%[2]s}]}}", row.first, row.second)
			w.Write("lb", append([]string{dual("lb", 51, "type: LoadBalancer", bothPorts) + status},
				dualSlices("lb", bothTargets, isReady, server)...)...)
			for _, client := range from {
				for address, want := range map[string]string{
					"192.0.2.61:80": row.want1, "[2001:db8::61]:80": row.want1, "[::ffff:192.0.2.61]:80": row.want1,
					"192.0.2.62:80": row.want2, "[2001:db8::62]:80": row.want2, "[::ffff:192.0.2.62]:80": row.want2,
				} {
					for _, network := range []string{tcp, udp} {
						w.AwaitReached(client, network, agentlab.At(address), want)
					}
				}
				for _, to := range forms(51, 80) {
					expectReached(t, client, tcp, to, "server")
				}
			}
		})
	}
}
