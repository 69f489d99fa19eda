// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// The name of what shunt does better for clients outside: see docs/differences.md.
const clientKept = "client-kept-at-local-backend"

// fromOutside is a check of a client outside under externalTrafficPolicy Cluster: kube-proxy shows the servers the node,
// shunt shows those of its own node the client.
func fromOutside(servers string, dial func(from string, to target, want string) check, to target) check {
	c := dial("outside", to, servers+" as node")
	switch local, remote := strings.Contains(servers, "local"), strings.Contains(servers, "remote"); {
	case local && remote:
		return c.except(clientKept, servers+" as node+own")
	case local:
		return c.except(clientKept, servers+" as own")
	}
	return c
}

// large asks by datagrams that do not fit into one packet: section 6.4.
func large(from string, to target, server string) check {
	const size = 3000
	return check{what: "large datagrams from " + from, kubeProxy: server,
		observe: func(e *env, w *world.World, _ string) string {
			socket := clientOf(w, from).Dial(process.UDP, to(e))
			defer socket.Close()
			text := strings.Repeat("x", size)
			answer := socket.Exchange(text)
			switch {
			case !answer.OK():
				return failed(answer.Outcome)
			case answer.Text != text:
				return "another text"
			}
			return answer.Server
		}}
}

// outsideCases are the clients outside: sections 2.2, 3.4, 5.2, 6.1 and 6.2 for packets.
var outsideCases = []testCase{{
	name: "every frontend serves clients outside", section: "2.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", onBoth, ingress("192.0.2.71", vip), ingress("2001:db8::71", vip), externalIPs("192.0.2.72"))
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			fromOutside("local-1 remote-1", tcp, nodePort("web", node4, 80)),
			fromOutside("local-1 remote-1", tcp, nodePort("web", node6, 80)),
			fromOutside("local-1 remote-1", udp, nodePort("web", node4, 80)),
			fromOutside("local-1 remote-1", datagram, nodePort("web", node6, 80)),
			fromOutside("local-1 remote-1", tcp, at("192.0.2.71:80")),
			fromOutside("local-1 remote-1", udp, at("192.0.2.71:80")),
			fromOutside("local-1 remote-1", tcp, at("[2001:db8::71]:80")),
			fromOutside("local-1 remote-1", udp, at("[2001:db8::71]:80")),
			fromOutside("local-1 remote-1", tcp, at("192.0.2.72:80")),
			fromOutside("local-1 remote-1", tcp, clusterIP("web", 4, 80)),
			fromOutside("local-1 remote-1", tcp, clusterIP("web", 6, 80)),
			tcp("outside", nodePort("web", world.Address4("host-2"), 80), "refused"),
			tcp("outside", nodePort("web", "10.96.0.1", 80), "refused"),
		},
	}, {
		name:   "no endpoints",
		change: func(e *env) { e.end("web", "local-1"); e.end("web", "remote-1") },
		checks: []check{
			tcp("outside", nodePort("web", node4, 80), "refused"),
			udp("outside", nodePort("web", node6, 80), "refused"),
			tcp("outside", at("192.0.2.71:80"), "refused"),
			tcp("outside", at("[2001:db8::71]:80"), "refused"),
			udp("outside", at("192.0.2.72:80"), "refused"),
			tcp("outside", clusterIP("web", 4, 80), "refused"),
		},
	}},
}, {
	name: "externalTrafficPolicy Local keeps to the node and keeps the client's address", section: "3.4",
	steps: []step{{
		change: func(e *env) {
			e.service("web", onBoth, ingress("192.0.2.73", vip), ingress("2001:db8::73", vip), externalLocal)
			e.pods("web", "local-1", "local-2", "remote-1")
		},
		checks: []check{
			tcp("outside", nodePort("web", node4, 80), "local-1 local-2 as own"),
			udp("outside", nodePort("web", node6, 80), "local-1 local-2 as own"),
			tcp("outside", at("192.0.2.73:80"), "local-1 local-2 as own"),
			udp("outside", at("[2001:db8::73]:80"), "local-1 local-2 as own"),
			fromOutside("local-1 local-2 remote-1", tcp, clusterIP("web", 4, 80)),
		},
	}, {
		name:   "the node's pods terminate",
		change: func(e *env) { e.terminate("web", "local-1"); e.terminate("web", "local-2") },
		checks: []check{
			tcp("outside", at("192.0.2.73:80"), "local-1 local-2 as own"),
			tcp("client", at("192.0.2.73:80"), "remote-1 as own"),
		},
	}, {
		name:   "they are gone",
		change: func(e *env) { e.end("web", "local-1"); e.end("web", "local-2") },
		checks: []check{
			tcp("outside", nodePort("web", node4, 80), "dropped"),
			tcp("outside", at("192.0.2.73:80"), "dropped"),
			udp("outside", at("[2001:db8::73]:80"), "dropped"),
			tcp("client", at("192.0.2.73:80"), "remote-1 as own"),
		},
	}, {
		name:   "nobody is left",
		change: func(e *env) { e.end("web", "remote-1") },
		checks: []check{
			tcp("outside", nodePort("web", node4, 80), "refused"),
			tcp("outside", at("192.0.2.73:80"), "refused"),
		},
	}},
}, {
	name: "datagrams larger than a packet", section: "6.4",
	steps: []step{{
		change: func(e *env) { e.service("dns", onUDP, ofType(corev1.ServiceTypeNodePort)); e.pods("dns", "remote-1") },
		checks: []check{
			large("client", clusterIP("dns", 4, 80), "remote-1"),
			large("client", clusterIP("dns", 6, 80), "remote-1"),
			large("host", clusterIP("dns", 4, 80), "remote-1"),
			large("outside", nodePort("dns", node4, 80), "remote-1"),
			large("outside", nodePort("dns", node6, 80), "remote-1"),
		},
	}, {
		name:   "on the node",
		change: func(e *env) { e.pods("dns", "local-1"); e.end("dns", "remote-1") },
		checks: []check{
			large("client", clusterIP("dns", 4, 80), "local-1"),
			large("outside", nodePort("dns", node4, 80), "local-1"),
			large("outside", nodePort("dns", node6, 80), "local-1"),
		},
	}},
}, {
	name: "internalTrafficPolicy Local binds whoever dials the ClusterIP", section: "3.4",
	steps: []step{{
		change: func(e *env) {
			e.service("web", internalLocal, ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "remote-1")
		},
		checks: []check{
			tcp("outside", clusterIP("web", 4, 80), "dropped"),
			fromOutside("remote-1", tcp, nodePort("web", node4, 80)),
		},
	}},
}, {
	name: "hints hold for clients outside", section: "3.3",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten, ofType(corev1.ServiceTypeNodePort))
			e.slice("web", endpoint("local-1", zoneHints(there)), endpoint("remote-1", zoneHints(here)), endpoint("remote-2", zoneHints(here)))
		},
		checks: []check{fromOutside("remote-1 remote-2", tcp, nodePort("web", node4, 80))},
	}},
}, {
	name: "source ranges hold for clients outside", section: "6.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.74", vip), ingress("2001:db8::74", vip), sourceRanges(world.Outside4+"/32"))
			e.pods("web", "remote-1")
		},
		checks: []check{
			fromOutside("remote-1", tcp, at("192.0.2.74:80")),
			fromOutside("remote-1", tcp, at("[2001:db8::74]:80")),
			tcp("client", at("192.0.2.74:80"), "dropped"),
		},
	}, {
		name:   "others",
		change: func(e *env) { e.update("web", sourceRanges("10.0.0.0/8")) },
		checks: []check{
			tcp("outside", at("192.0.2.74:80"), "dropped"),
			fromOutside("remote-1", tcp, nodePort("web", node4, 80)),
			fromOutside("remote-1", tcp, at("[2001:db8::74]:80")),
		},
	}},
}, {
	name: "what is not declared is refused, silent or left alone, as for clients inside", section: "6.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", externalIPs(world.Address4("host-2"), node4), withPorts(port("", corev1.ProtocolTCP, 1962, world.Port)))
			e.pods("web", "remote-1")
		},
		checks: []check{
			tcp("outside", clusterIP("web", 4, 81), "refused"),
			udp("outside", clusterIP("web", 6, 1962), "refused"),
			tcp("outside", at("10.96.255.8:80"), "dropped"),
			tcp("outside", at("[fd00:10:96::fff8]:80"), "dropped"),
			fromOutside("remote-1", tcp, at(node4+":1962")),
			tcp("outside", at(node4+":8080"), "host-1 as own"),
			tcp("outside", at(world.Address4("host-2")+":8080"), "host-2 as own"),
		},
	}},
}, {
	name: "a load balancer's address that the node has on a device serves clients outside", section: "2.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.75", vip))
			e.pods("web", "local-1", "remote-1")
			e.onDevice("192.0.2.75/32")
		},
		checks: []check{
			fromOutside("local-1 remote-1", tcp, at("192.0.2.75:80")),
			tcp("outside", at("192.0.2.75:81"), "refused"),
		},
	}},
}, {
	name: "affinity holds for clients outside", section: "4",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort), affinity(10800), externalIPs("192.0.2.76"))
			e.pods("web", four...)
		},
		checks: []check{
			sticks("tcp", "outside", nodePort("web", node4, 80), at("192.0.2.76:80")),
			sticks("tcp", "outside", nodePort("web", node6, 80)),
		},
	}, {
		name:   "the server goes",
		change: func(e *env) { e.end("web", "local-1"); e.end("web", "local-2"); e.end("web", "remote-2") },
		checks: []check{fromOutside("remote-1", tcp, nodePort("web", node4, 80))},
	}},
}, {
	name: "flows of clients outside: TCP stays, UDP moves", section: "8.4",
	steps: []step{{
		change: func(e *env) {
			e.service("web", onBoth, ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "remote-2")
		},
		checks: []check{
			opens("tcp", "tcp", "outside", nodePort("web", node4, 80), "remote-2"),
			opens("udp", "udp", "outside", nodePort("web", node4, 80), "remote-2"),
			opensUnconnected("unconnected", "outside", nodePort("web", node6, 80), "remote-2"),
		},
	}, {
		name:   "another server",
		change: func(e *env) { e.pods("web", "local-1"); e.end("web", "remote-2") },
		checks: []check{
			goesOn("tcp", "remote-2"), goesOn("udp", "local-1"), goesOn("unconnected", "local-1"),
		},
	}, {
		name:   "none",
		change: func(e *env) { e.end("web", "local-1") },
		checks: []check{goesOn("tcp", "remote-2")},
	}},
}}
