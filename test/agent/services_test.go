// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// TestServicesAreTranslatedAsTheirObjectsSay programs all Services at once and dials them from pods, from the node and
// from a pod of a node without shunt.
func TestServicesAreTranslatedAsTheirObjectsSay(t *testing.T) {
	w := agentlab.New(t)
	a, b, remote := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b"), agentlab.Serve(w.Neighbour, "remote")
	pod, stranger := w.Node.Pod(lab.PodOptions{}).Process(), w.Neighbour.Pod(lab.PodOptions{}).Process()
	host := w.Node.Process()
	host.Listen(tcp, netip.AddrPortFrom(w.Node.Address4, 9000), "host")
	nodeAddress, neighbourAddress := w.Node.Address4.String(), w.Neighbour.Address4.String()

	tcpPort := "[{name: '', port: 8080, protocol: TCP}]"
	on := func(node *lab.Node, conditions string, pods ...*lab.Process) []agentlab.Endpoint {
		endpoints := agentlab.Ready(pods...)
		for i := range endpoints {
			endpoints[i].Node, endpoints[i].Conditions = node.Name, conditions
		}
		return endpoints
	}
	v6 := []agentlab.Endpoint{{Address: b.Address6, Conditions: "{ready: true}"}}

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
				agentlab.Service("dual", "{clusterIP: 10.96.1.1, clusterIPs: [10.96.1.1, 'fd00:10:96::1'], ipFamilies: [IPv4, IPv6], "+
					"ports: [{port: 80}]}"),
				agentlab.Slice("dual", "dual-4", tcpPort, agentlab.Ready(a)...), agentlab.Slice("dual", "dual-6", tcpPort, v6...),
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
				agentlab.Service("dns", "{clusterIP: 10.96.1.2, ports: [{name: dns, port: 53, protocol: UDP}, "+
					"{name: dns-tcp, port: 53, protocol: TCP}, {name: metrics, port: 9153}]}"),
				agentlab.Slice("dns", "dns-a", "[{name: dns, port: 8080, protocol: UDP}, {name: dns-tcp, port: 8080, protocol: TCP}]",
					agentlab.Ready(a)...),
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
				agentlab.Service("np", "{type: NodePort, clusterIP: 10.96.1.3, ports: [{port: 80, nodePort: 30080}]}"),
				agentlab.Slice("np", "np-a", tcpPort, agentlab.Ready(a)...),
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
				agentlab.Service("ext", "{type: LoadBalancer, clusterIP: 10.96.1.4, externalIPs: [198.51.100.1], ports: [{port: 80}]}\n"+
					"status: {loadBalancer: {ingress: [{ip: 198.51.100.2}, {ip: 198.51.100.3, ipMode: Proxy}]}}"),
				agentlab.Slice("ext", "ext-a", tcpPort, agentlab.Ready(a)...),
			},
			[]dial{
				{pod, tcp, "198.51.100.1:80", "a"}, {pod, tcp, "198.51.100.2:80", "a"}, {host, tcp, "198.51.100.2:80", "a"},
				{pod, tcp, "198.51.100.3:80", "ENETUNREACH"}, {pod, tcp, "198.51.100.1:81", "ENETUNREACH"},
			},
		},
		{
			"source ranges of a load-balancer address",
			[]string{
				agentlab.Service("guarded", "{type: LoadBalancer, clusterIP: 10.96.1.5, loadBalancerSourceRanges: [192.0.2.0/24], "+
					"ports: [{port: 80}]}\nstatus: {loadBalancer: {ingress: [{ip: 198.51.100.5}]}}"),
				agentlab.Slice("guarded", "guarded-a", tcpPort, agentlab.Ready(a)...),
			},
			[]dial{{pod, tcp, "10.96.1.5:80", "a"}, {pod, tcp, "198.51.100.5:80", "ETIMEDOUT"}},
		},
		{
			"internalTrafficPolicy Local",
			[]string{
				agentlab.Service("near", "{clusterIP: 10.96.1.6, internalTrafficPolicy: Local, ports: [{port: 80}]}"),
				agentlab.Slice("near", "near-a", tcpPort, append(on(w.Neighbour, "{ready: true}", remote),
					on(w.Node, "{ready: true}", a)...)...),
				agentlab.Service("far", "{clusterIP: 10.96.1.7, internalTrafficPolicy: Local, ports: [{port: 80}]}"),
				agentlab.Slice("far", "far-a", tcpPort, on(w.Neighbour, "{ready: true}", remote)...),
			},
			[]dial{{pod, tcp, "10.96.1.6:80", "a"}, {pod, tcp, "10.96.1.7:80", "ETIMEDOUT"}},
		},
		{
			"externalTrafficPolicy Local does not bind those inside",
			[]string{
				agentlab.Service("inside", "{type: NodePort, clusterIP: 10.96.1.8, externalTrafficPolicy: Local, "+
					"ports: [{port: 80, nodePort: 30082}]}"),
				agentlab.Slice("inside", "inside-a", tcpPort, on(w.Neighbour, "{ready: true}", remote)...),
			},
			[]dial{{pod, tcp, nodeAddress + ":30082", "remote"}, {host, tcp, nodeAddress + ":30082", "remote"}},
		},
		{
			"conditions of endpoints",
			[]string{
				agentlab.Service("unready", "{clusterIP: 10.96.1.9, ports: [{port: 80}]}"),
				agentlab.Slice("unready", "unready-a", tcpPort, on(w.Node, "{ready: false}", a)...),
				agentlab.Service("leaving", "{clusterIP: 10.96.1.10, ports: [{port: 80}]}"),
				agentlab.Slice("leaving", "leaving-a", tcpPort, on(w.Node, "{ready: false, serving: true, terminating: true}", a)...),
				agentlab.Service("gone", "{clusterIP: 10.96.1.11, ports: [{port: 80}]}"),
				agentlab.Slice("gone", "gone-a", tcpPort, on(w.Node, "{ready: false, serving: false, terminating: true}", a)...),
				agentlab.Service("mixed", "{clusterIP: 10.96.1.12, ports: [{port: 80}]}"),
				agentlab.Slice("mixed", "mixed-a", tcpPort, on(w.Node, "{ready: false, serving: true, terminating: true}", a)...),
				agentlab.Slice("mixed", "mixed-b", tcpPort, agentlab.Ready(b)...),
			},
			[]dial{
				{pod, tcp, "10.96.1.9:80", "ECONNREFUSED"}, {pod, tcp, "10.96.1.10:80", "a"},
				{pod, tcp, "10.96.1.11:80", "ECONNREFUSED"}, {pod, tcp, "10.96.1.12:80", "b"},
			},
		},
		{
			"Services that are not shunt's",
			[]string{
				agentlab.Service("headless", "{clusterIP: None, ports: [{port: 80}]}"),
				agentlab.Slice("headless", "headless-a", tcpPort, agentlab.Ready(a)...),
				agentlab.Service("elsewhere", "{type: ExternalName, externalName: example.org}"),
				"apiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: default, " +
					"labels: {service.kubernetes.io/service-proxy-name: other}}\n" +
					"spec: {clusterIP: 10.96.1.13, ports: [{port: 80}]}",
				agentlab.Slice("other", "other-a", tcpPort, agentlab.Ready(a)...),
			},
			[]dial{
				{pod, tcp, a.Address4.String() + ":8080", "a"}, {pod, tcp, "10.96.1.13:80", "ENETUNREACH"},
			},
		},
		{
			"a pod that reaches itself",
			[]string{
				agentlab.Service("self", "{clusterIP: 10.96.1.14, ports: [{port: 80}]}"),
				agentlab.Slice("self", "self-a", tcpPort, agentlab.Ready(a)...),
			},
			[]dial{{a, tcp, "10.96.1.14:80", "a"}},
		},
	}
	for _, row := range rows {
		w.Write("service-"+row.dials[0].address, row.manifests...)
	}
	w.StartAgent()
	last := rows[len(rows)-1].dials[0]
	w.AwaitReached(last.from, last.network, agentlab.At(last.address), last.want)
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, d := range row.dials {
				if got := agentlab.Reach(d.from, d.network, agentlab.At(d.address)); got != d.want {
					t.Errorf("%s %s from %s: %s, want %s", d.network, d.address, d.from.Name, got, d.want)
				}
			}
		})
	}
}

func TestUnconnectedUDPSocketKeepsItsBackendsAndGetsTheRepliesOfEachService(t *testing.T) {
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b")
	pod := w.Node.Pod(lab.PodOptions{}).Process()
	udpPort := "[{name: '', port: 8080, protocol: UDP}]"
	w.Write("one", agentlab.Service("one", "{clusterIP: 10.96.2.1, ports: [{port: 53, protocol: UDP}]}"),
		agentlab.Slice("one", "one-a", udpPort, agentlab.Ready(a, b)...))
	w.Write("two", agentlab.Service("two", "{clusterIP: 10.96.2.2, ports: [{port: 53, protocol: UDP}]}"),
		agentlab.Slice("two", "two-a", udpPort, agentlab.Ready(b)...))
	w.StartAgent()
	one, two := agentlab.At("10.96.2.1:53"), agentlab.At("10.96.2.2:53")
	w.AwaitReached(pod, udp, two, "b")
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
		w.Write("one", agentlab.Service("one", "{clusterIP: 10.96.2.1, ports: [{port: 53, protocol: UDP}]}"),
			agentlab.Slice("one", "one-a", udpPort, agentlab.Ready(keep)...))
		w.Eventually("the socket reaches "+name, func() (bool, string) {
			answer := socket.ExchangeWith(asked(one), "who")
			return answer.Server == name && answer.From == asked(one), answer.Server
		})
		socket.Close()
		w.Write("one", agentlab.Service("one", "{clusterIP: 10.96.2.1, ports: [{port: 53, protocol: UDP}]}"),
			agentlab.Slice("one", "one-a", udpPort, agentlab.Ready(a, b)...))
		w.AwaitReached(pod, udp, one, "a")
		w.AwaitReached(pod, udp, one, "b")
	}
}

func TestConnectedUDPSocketOfABackendThatGoesIsEnded(t *testing.T) {
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b")
	pod := w.Node.Pod(lab.PodOptions{}).Process()
	manifests := func(endpoints ...agentlab.Endpoint) []string {
		return []string{
			agentlab.Service("dns", "{clusterIP: 10.96.2.3, ports: [{port: 53, protocol: UDP}]}"),
			agentlab.Slice("dns", "dns-a", "[{name: '', port: 8080, protocol: UDP}]", endpoints...),
		}
	}
	w.Write("dns", manifests(agentlab.Ready(a)...)...)
	w.StartAgent()
	address := agentlab.At("10.96.2.3:53")
	w.AwaitReached(pod, udp, address, "a")
	socket := pod.Dial(udp, address)
	if got := socket.Exchange("who").Server; got != "a" {
		t.Fatalf("the connected socket reaches %q", got)
	}
	w.Write("dns", manifests(agentlab.Ready(b)...)...)
	w.AwaitReached(pod, udp, address, "b")
	w.Eventually("the connected socket ends", func() (bool, string) {
		answer := socket.Exchange("who")
		return !answer.OK() && answer.Errno != process.Timeout, answer.Server + answer.Errno
	})
}

func TestAffinityHoldsUntilTheBackendGoesAndOutlivesTheAgent(t *testing.T) {
	w := agentlab.New(t)
	pods := map[string]*lab.Process{"a": agentlab.Serve(w.Node, "a"), "b": agentlab.Serve(w.Node, "b"), "c": agentlab.Serve(w.Neighbour, "c")}
	manifests := func(names ...string) []string {
		var endpoints []agentlab.Endpoint
		for _, name := range names {
			endpoints = append(endpoints, agentlab.Ready(pods[name])...)
		}
		return []string{
			agentlab.Service("shop", "{clusterIP: 10.96.2.4, sessionAffinity: ClientIP, "+
				"sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}, ports: [{port: 80}]}"),
			agentlab.Slice("shop", "shop-a", "[{name: '', port: 8080, protocol: TCP}]", endpoints...),
		}
	}
	w.Write("shop", manifests("a", "b", "c")...)
	w.StartAgent()
	address := agentlab.At("10.96.2.4:80")
	client := w.Node.Pod(lab.PodOptions{}).Process()
	w.AwaitReached(client, tcp, address, "a", "b", "c")
	bound := agentlab.Reach(client, tcp, address)
	only := func(want string) {
		t.Helper()
		if result := client.Connects(tcp, address, 30); result.Servers[want] != 30 {
			t.Errorf("30 connects of one client: %v %v, want all at %s", result.Servers, result.Errnos, want)
		}
	}
	only(bound)
	w.Agent.Kill()
	w.StartAgent()
	only(bound)

	var rest []string
	for name := range pods {
		if name != bound {
			rest = append(rest, name)
		}
	}
	w.Write("shop", manifests(rest...)...)
	w.AwaitReached(client, tcp, address, rest...)
	next := agentlab.Reach(client, tcp, address)
	only(next)
	w.Write("shop", manifests("a", "b", "c")...)
	w.Eventually("another pod reaches "+bound+" again", func() (bool, string) {
		seen := agentlab.Reach(w.Node.Pod(lab.PodOptions{}).Process(), tcp, address)
		return seen == bound, seen
	})
	only(next)
}
