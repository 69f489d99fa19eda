// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// TestServicesAreTranslatedAsTheirObjectsSay programs all Services at once and dials them from pods, from the node and
// from a pod of a node without shunt.
func TestServicesAreTranslatedAsTheirObjectsSay(t *testing.T) {
	w := newWorld(t)
	a, b, remote := serve(w.node, "a"), serve(w.node, "b"), serve(w.neighbour, "remote")
	pod, stranger := w.node.Pod(lab.PodOptions{}).Process(), w.neighbour.Pod(lab.PodOptions{}).Process()
	host := w.node.Process()
	host.Listen(tcp, netip.AddrPortFrom(w.node.Address4, 9000), "host")
	nodeAddress, neighbourAddress := w.node.Address4.String(), w.neighbour.Address4.String()

	tcpPort := "[{name: '', port: 8080, protocol: TCP}]"
	on := func(node *lab.Node, conditions string, pods ...*lab.Process) []endpoint {
		endpoints := ready(pods...)
		for i := range endpoints {
			endpoints[i].node, endpoints[i].conditions = node.Name, conditions
		}
		return endpoints
	}
	v6 := []endpoint{{address: b.Address6, conditions: "{ready: true}"}}

	type dial struct {
		from    *lab.Process
		network string
		address string
		want    string
	}
	rows := []struct {
		name      string
		manifests []string
		dials     []dial
	}{
		{
			"a ClusterIP of both families and its v4-mapped form",
			[]string{
				service("dual", "{clusterIP: 10.96.1.1, clusterIPs: [10.96.1.1, 'fd00:10:96::1'], ipFamilies: [IPv4, IPv6], "+
					"ports: [{port: 80}]}"),
				slice("dual", "dual-4", tcpPort, ready(a)...), slice("dual", "dual-6", tcpPort, v6...),
			},
			[]dial{
				{pod, tcp, "10.96.1.1:80", "a"}, {pod, tcp, "[fd00:10:96::1]:80", "b"},
				{pod, tcp, "[::ffff:10.96.1.1]:80", "a"}, {pod, mptcp, "10.96.1.1:80", "a"},
				{host, tcp, "10.96.1.1:80", "a"}, {host, tcp, "[fd00:10:96::1]:80", "b"},
				{pod, udp, "10.96.1.1:80", "ECONNREFUSED"}, // no such port
				{stranger, tcp, "10.96.1.1:80", "ENETUNREACH"},
			},
		},
		{
			"one port number, two protocols, named ports",
			[]string{
				service("dns", "{clusterIP: 10.96.1.2, ports: [{name: dns, port: 53, protocol: UDP}, "+
					"{name: dns-tcp, port: 53, protocol: TCP}, {name: metrics, port: 9153}]}"),
				slice("dns", "dns-a", "[{name: dns, port: 8080, protocol: UDP}, {name: dns-tcp, port: 8080, protocol: TCP}]",
					ready(a)...),
			},
			[]dial{
				{pod, udp, "10.96.1.2:53", "a"}, {pod, tcp, "10.96.1.2:53", "a"},
				{pod, tcp, "10.96.1.2:9153", "ECONNREFUSED"}, // the slice has no port of that name
				{pod, tcp, "10.96.1.2:54", "ECONNREFUSED"},
			},
		},
		{
			"a node port on the node's addresses and on its loopback",
			[]string{
				service("np", "{type: NodePort, clusterIP: 10.96.1.3, ports: [{port: 80, nodePort: 30080}]}"),
				slice("np", "np-a", tcpPort, ready(a)...),
			},
			[]dial{
				{pod, tcp, nodeAddress + ":30080", "a"}, {host, tcp, nodeAddress + ":30080", "a"},
				{host, tcp, "127.0.0.1:30080", "a"}, {host, tcp, "0.0.0.0:30080", "a"},
				{pod, tcp, "127.0.0.1:30080", "ECONNREFUSED"}, // the pod itself
				{pod, tcp, neighbourAddress + ":30080", "ECONNREFUSED"},
				{pod, tcp, nodeAddress + ":9000", "host"}, {pod, tcp, nodeAddress + ":30081", "ECONNREFUSED"},
			},
		},
		{
			"external and load-balancer addresses, at their declared ports alone",
			[]string{
				service("ext", "{type: LoadBalancer, clusterIP: 10.96.1.4, externalIPs: [198.51.100.1], ports: [{port: 80}]}\n"+
					"status: {loadBalancer: {ingress: [{ip: 198.51.100.2}, {ip: 198.51.100.3, ipMode: Proxy}]}}"),
				slice("ext", "ext-a", tcpPort, ready(a)...),
			},
			[]dial{
				{pod, tcp, "198.51.100.1:80", "a"}, {pod, tcp, "198.51.100.2:80", "a"}, {host, tcp, "198.51.100.2:80", "a"},
				{pod, tcp, "198.51.100.3:80", "ENETUNREACH"}, {pod, tcp, "198.51.100.1:81", "ENETUNREACH"},
			},
		},
		{
			"source ranges of a load-balancer address",
			[]string{
				service("guarded", "{type: LoadBalancer, clusterIP: 10.96.1.5, loadBalancerSourceRanges: [192.0.2.0/24], "+
					"ports: [{port: 80}]}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.5}]}}"),
				slice("guarded", "guarded-a", tcpPort, ready(a)...),
			},
			[]dial{{pod, tcp, "10.96.1.5:80", "a"}, {pod, tcp, "198.51.100.5:80", "ETIMEDOUT"}},
		},
		{
			"internalTrafficPolicy Local",
			[]string{
				service("near", "{clusterIP: 10.96.1.6, internalTrafficPolicy: Local, ports: [{port: 80}]}"),
				slice("near", "near-a", tcpPort, append(on(w.neighbour, "{ready: true}", remote),
					on(w.node, "{ready: true}", a)...)...),
				service("far", "{clusterIP: 10.96.1.7, internalTrafficPolicy: Local, ports: [{port: 80}]}"),
				slice("far", "far-a", tcpPort, on(w.neighbour, "{ready: true}", remote)...),
			},
			[]dial{{pod, tcp, "10.96.1.6:80", "a"}, {pod, tcp, "10.96.1.7:80", "ETIMEDOUT"}},
		},
		{
			"externalTrafficPolicy Local does not bind those inside",
			[]string{
				service("inside", "{type: NodePort, clusterIP: 10.96.1.8, externalTrafficPolicy: Local, "+
					"ports: [{port: 80, nodePort: 30082}]}"),
				slice("inside", "inside-a", tcpPort, on(w.neighbour, "{ready: true}", remote)...),
			},
			[]dial{{pod, tcp, nodeAddress + ":30082", "remote"}, {host, tcp, nodeAddress + ":30082", "remote"}},
		},
		{
			"conditions of endpoints",
			[]string{
				service("unready", "{clusterIP: 10.96.1.9, ports: [{port: 80}]}"),
				slice("unready", "unready-a", tcpPort, on(w.node, "{ready: false}", a)...),
				service("leaving", "{clusterIP: 10.96.1.10, ports: [{port: 80}]}"),
				slice("leaving", "leaving-a", tcpPort, on(w.node, "{ready: false, serving: true, terminating: true}", a)...),
				service("gone", "{clusterIP: 10.96.1.11, ports: [{port: 80}]}"),
				slice("gone", "gone-a", tcpPort, on(w.node, "{ready: false, serving: false, terminating: true}", a)...),
				service("mixed", "{clusterIP: 10.96.1.12, ports: [{port: 80}]}"),
				slice("mixed", "mixed-a", tcpPort, on(w.node, "{ready: false, serving: true, terminating: true}", a)...),
				slice("mixed", "mixed-b", tcpPort, ready(b)...),
			},
			[]dial{
				{pod, tcp, "10.96.1.9:80", "ECONNREFUSED"}, {pod, tcp, "10.96.1.10:80", "a"},
				{pod, tcp, "10.96.1.11:80", "ECONNREFUSED"}, {pod, tcp, "10.96.1.12:80", "b"},
			},
		},
		{
			"Services that are not shunt's",
			[]string{
				service("headless", "{clusterIP: None, ports: [{port: 80}]}"),
				slice("headless", "headless-a", tcpPort, ready(a)...),
				service("elsewhere", "{type: ExternalName, externalName: example.org}"),
				"apiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: default, " +
					"labels: {service.kubernetes.io/service-proxy-name: other}}\n" +
					"spec: {clusterIP: 10.96.1.13, ports: [{port: 80}]}",
				slice("other", "other-a", tcpPort, ready(a)...),
			},
			[]dial{
				{pod, tcp, a.Address4.String() + ":8080", "a"}, {pod, tcp, "10.96.1.13:80", "ENETUNREACH"},
			},
		},
		{
			"a pod that reaches itself",
			[]string{
				service("self", "{clusterIP: 10.96.1.14, ports: [{port: 80}]}"),
				slice("self", "self-a", tcpPort, ready(a)...),
			},
			[]dial{{a, tcp, "10.96.1.14:80", "a"}},
		},
	}
	for _, row := range rows {
		w.write("service-"+row.dials[0].address, row.manifests...)
	}
	w.startAgent()
	last := rows[len(rows)-1].dials[0]
	w.awaitReached(last.from, last.network, at(last.address), last.want)
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, d := range row.dials {
				if got := reach(d.from, d.network, at(d.address)); got != d.want {
					t.Errorf("%s %s from %s: %s, want %s", d.network, d.address, d.from.Name, got, d.want)
				}
			}
		})
	}
}

func TestUnconnectedUDPSocketKeepsItsBackendsAndGetsTheRepliesOfEachService(t *testing.T) {
	w := newWorld(t)
	a, b := serve(w.node, "a"), serve(w.neighbour, "b")
	pod := w.node.Pod(lab.PodOptions{}).Process()
	udpPort := "[{name: '', port: 8080, protocol: UDP}]"
	w.write("one", service("one", "{clusterIP: 10.96.2.1, ports: [{port: 53, protocol: UDP}]}"),
		slice("one", "one-a", udpPort, ready(a, b)...))
	w.write("two", service("two", "{clusterIP: 10.96.2.2, ports: [{port: 53, protocol: UDP}]}"),
		slice("two", "two-a", udpPort, ready(b)...))
	w.startAgent()
	one, two := at("10.96.2.1:53"), at("10.96.2.2:53")
	w.awaitReached(pod, udp, two, "b")
	for _, family := range []int{4, 6} {
		socket := pod.Open(process.SocketRequest{Network: udp, Family: family})
		asked := func(address netip.AddrPort) netip.AddrPort {
			if family == 6 {
				return netip.AddrPortFrom(netip.AddrFrom16(address.Addr().As16()), address.Port())
			}
			return address
		}
		first := socket.ExchangeWith(asked(one), "who").Server
		for range 20 {
			for address, want := range map[netip.AddrPort]string{asked(one): first, asked(two): "b"} {
				if answer := socket.ExchangeWith(address, "who"); answer.Server != want || answer.From != address {
					t.Fatalf("sendto %s: %s answered from %s, want %s", address, answer.Server, answer.From, want)
				}
			}
		}
		// The backend goes: the same socket is served by the other one.
		keep, name := a, "a"
		if first == "a" {
			keep, name = b, "b"
		}
		w.write("one", service("one", "{clusterIP: 10.96.2.1, ports: [{port: 53, protocol: UDP}]}"),
			slice("one", "one-a", udpPort, ready(keep)...))
		w.eventually("the socket reaches "+name, func() (bool, string) {
			answer := socket.ExchangeWith(asked(one), "who")
			return answer.Server == name && answer.From == asked(one), answer.Server
		})
		socket.Close()
		w.write("one", service("one", "{clusterIP: 10.96.2.1, ports: [{port: 53, protocol: UDP}]}"),
			slice("one", "one-a", udpPort, ready(a, b)...))
		w.awaitReached(pod, udp, one, "a")
		w.awaitReached(pod, udp, one, "b")
	}
}

func TestConnectedUDPSocketOfABackendThatGoesIsEnded(t *testing.T) {
	w := newWorld(t)
	a, b := serve(w.node, "a"), serve(w.node, "b")
	pod := w.node.Pod(lab.PodOptions{}).Process()
	manifests := func(endpoints ...endpoint) []string {
		return []string{
			service("dns", "{clusterIP: 10.96.2.3, ports: [{port: 53, protocol: UDP}]}"),
			slice("dns", "dns-a", "[{name: '', port: 8080, protocol: UDP}]", endpoints...),
		}
	}
	w.write("dns", manifests(ready(a)...)...)
	w.startAgent()
	address := at("10.96.2.3:53")
	w.awaitReached(pod, udp, address, "a")
	socket := pod.Dial(udp, address)
	if got := socket.Exchange("who").Server; got != "a" {
		t.Fatalf("the connected socket reaches %q", got)
	}
	w.write("dns", manifests(ready(b)...)...)
	w.awaitReached(pod, udp, address, "b")
	w.eventually("the connected socket ends", func() (bool, string) {
		answer := socket.Exchange("who")
		return !answer.OK() && answer.Errno != process.Timeout, answer.Server + answer.Errno
	})
}

func TestAffinityHoldsUntilTheBackendGoesAndOutlivesTheAgent(t *testing.T) {
	w := newWorld(t)
	pods := map[string]*lab.Process{"a": serve(w.node, "a"), "b": serve(w.node, "b"), "c": serve(w.neighbour, "c")}
	manifests := func(names ...string) []string {
		var endpoints []endpoint
		for _, name := range names {
			endpoints = append(endpoints, ready(pods[name])...)
		}
		return []string{
			service("shop", "{clusterIP: 10.96.2.4, sessionAffinity: ClientIP, "+
				"sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}, ports: [{port: 80}]}"),
			slice("shop", "shop-a", "[{name: '', port: 8080, protocol: TCP}]", endpoints...),
		}
	}
	w.write("shop", manifests("a", "b", "c")...)
	w.startAgent()
	address := at("10.96.2.4:80")
	client := w.node.Pod(lab.PodOptions{}).Process()
	w.awaitReached(client, tcp, address, "a", "b", "c")
	bound := reach(client, tcp, address)
	only := func(want string) {
		t.Helper()
		if result := client.Connects(tcp, address, 30); result.Servers[want] != 30 {
			t.Errorf("30 connects of one client: %v %v, want all at %s", result.Servers, result.Errnos, want)
		}
	}
	only(bound)
	w.agent.Kill()
	w.startAgent()
	only(bound)

	var rest []string
	for name := range pods {
		if name != bound {
			rest = append(rest, name)
		}
	}
	w.write("shop", manifests(rest...)...)
	w.awaitReached(client, tcp, address, rest...)
	next := reach(client, tcp, address)
	only(next)
	w.write("shop", manifests("a", "b", "c")...)
	w.eventually("another pod reaches "+bound+" again", func() (bool, string) {
		seen := reach(w.node.Pod(lab.PodOptions{}).Process(), tcp, address)
		return seen == bound, seen
	})
	only(next)
}
