// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

// frontendCases are chapter 2: families, frontends, node ports; and conflicts, 1.9.
var frontendCases = []testCase{{
	name: "a node port is served on the node's own addresses", section: "2.3",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort), onBoth)
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			kept("local-1 remote-1", tcp, "client", nodePort("web", node4, 80)),
			kept("local-1 remote-1", tcp, "client", nodePort("web", node6, 80)),
			kept("local-1 remote-1", udp, "client", nodePort("web", node4, 80)),
			kept("local-1 remote-1", datagram, "client", nodePort("web", node6, 80)),
			tcp("host", nodePort("web", node4, 80), "local-1 remote-1 as node"),
			tcp("host", nodePort("web", node6, 80), "local-1 remote-1 as node"),
		},
	}},
}, {
	name: "a node port on another node's address is that node's business", section: "2.3",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			tcp("client", nodePort("web", world.Address4("host-2"), 80), "refused"),
			tcp("host", nodePort("web", world.Address6("host-2"), 80), "refused"),
		},
	}},
}, {
	name: "a node port is not served on the node's other addresses by default", section: "2.3",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1")
		},
		checks: []check{
			tcp("client", nodePort("web", "10.244.1.1", 80), "refused"),
			tcp("host", nodePort("web", "fd00:10:244:1::1", 80), "refused"),
		},
	}},
}, {
	name: "a node port on loopback", section: "2.4",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			tcp("host", nodePort("web", "127.0.0.1", 80), "refused").
				except("loopback-node-ports", "local-1 remote-1 as node"),
			tcp("host", nodePort("web", "::1", 80), "refused").
				except("loopback-node-ports", "local-1 remote-1 as node"),
			tcp("client", nodePort("web", "127.0.0.1", 80), "refused"),
		},
	}},
}, {
	name: "a node port belongs to one protocol", section: "2.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1")
		},
		checks: []check{
			udp("client", nodePort("web", node4, 80), "refused"),
			udp("host", nodePort("web", node4, 80), "refused"),
		},
	}},
}, {
	name: "an external IP that no node has is captured on the client's node", section: "2.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", externalIPs("192.0.2.21", "2001:db8::21"), onBoth)
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			kept("local-1 remote-1", tcp, "client", at("192.0.2.21:80")),
			kept("local-1 remote-1", udp, "client", at("192.0.2.21:80")),
			kept("local-1 remote-1", tcp, "client", at("[2001:db8::21]:80")),
			tcp("host", at("192.0.2.21:80"), "local-1 remote-1 as node"),
			tcp("host", at("[2001:db8::21]:80"), "local-1 remote-1 as node"),
		},
	}},
}, {
	name: "the address of a load balancer is captured, unless its mode is Proxy", section: "2.5",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.22", vip), ingress("192.0.2.23", proxy), ingress("2001:db8::22", vip))
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			kept("local-1 remote-1", tcp, "client", at("192.0.2.22:80")),
			kept("local-1 remote-1", tcp, "client", at("[2001:db8::22]:80")),
			tcp("host", at("192.0.2.22:80"), "local-1 remote-1 as node"),
			tcp("client", at("192.0.2.23:80"), "dropped"),
			kept("local-1 remote-1", tcp, "client", nodePort("web", node4, 80)),
			tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own"),
		},
	}, {
		name: "the mode changes",
		change: func(e *env) {
			e.update("web", func(s *corev1.Service) {
				s.Status.LoadBalancer.Ingress[0].IPMode, s.Status.LoadBalancer.Ingress[1].IPMode = as(proxy), as(vip)
			})
		},
		checks: []check{
			tcp("client", at("192.0.2.22:80"), "dropped"),
			kept("local-1 remote-1", tcp, "client", at("192.0.2.23:80")),
		},
	}},
}, {
	name: "a load balancer without node ports works", section: "2.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.24", vip), func(s *corev1.Service) {
				s.Spec.AllocateLoadBalancerNodePorts = as(false)
			})
			e.pods("web", "remote-1")
		},
		checks: []check{
			kept("remote-1", tcp, "client", at("192.0.2.24:80")),
			tcp("host", at("192.0.2.24:80"), "remote-1 as node"),
		},
	}},
}, {
	name: "an address of a load balancer that the node has on a device works the same", section: "2.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.25", vip))
			e.pods("web", "local-1", "remote-1")
			e.onDevice("192.0.2.25/32")
		},
		checks: []check{
			kept("local-1 remote-1", tcp, "client", at("192.0.2.25:80")),
			tcp("client", at("192.0.2.25:81"), "refused"),
			tcp("host", at("192.0.2.25:81"), "refused"),
		},
	}},
}, {
	name: "a ClusterIP that the node has on a device", section: "2.2",
	steps: []step{{
		change: func(e *env) {
			e.service("dns")
			e.pods("dns", "local-1", "remote-1")
			e.onDevice(clusterIP("dns", 4, 80)(e).Addr().String() + "/32")
		},
		checks: []check{
			tcp("client", clusterIP("dns", 4, 80), "local-1 remote-1 as own").except("cluster-ip-on-device", "refused"),
			tcp("host", clusterIP("dns", 4, 80), "local-1 remote-1 as node").except("cluster-ip-on-device", "refused"),
		},
	}},
}, {
	name: "there is no way from one family to the other", section: "2.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten, ofType(corev1.ServiceTypeNodePort))
			e.slice("web", endpoint("local-1"))
		},
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "local-1 as own"),
			tcp("client", clusterIP("web", 6, 80), "refused"),
			tcp("client", nodePort("web", node6, 80), "refused"),
		},
	}},
}, {
	name: "an external IP that is another node's address takes its declared port alone", section: "1.9",
	steps: []step{{
		change: func(e *env) {
			e.service("web", externalIPs(world.Address4("host-2")), withPorts(port("", corev1.ProtocolTCP, 1980, world.Port)))
			e.pods("web", "local-1")
		},
		checks: []check{
			kept("local-1", tcp, "client", at(world.Address4("host-2")+":1980")),
			tcp("client", at(world.Address4("host-2")+":8080"), "host-2 as own"),
			tcp("host", at(world.Address4("host-2")+":8081"), "host-2:other as node"),
		},
	}},
}, {
	name: "an external IP that is the node's address outranks a node port", section: "1.9",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1")
			e.remember("port", nodePort("web", node4, 80))
			number := int32(e.remembered["port"].Port())
			e.service("other", externalIPs(node4), withPorts(port("", corev1.ProtocolTCP, number, world.Port)))
			e.pods("other", "remote-1")
		},
		checks: []check{
			kept("remote-1", tcp, "client", remembered("port")),
			kept("local-1", tcp, "client", nodePort("web", node6, 80)),
			tcp("client", at(node4+":8080"), "host-1 as own"),
		},
	}},
}}

// onDevice gives the tested node of each world an address, for the time of the case.
func (e *env) onDevice(prefix string) {
	e.t.Helper()
	for _, w := range e.worlds() {
		e.must(w.Node.AddAddress("lo", netip.MustParsePrefix(prefix)))
		e.t.Cleanup(func() { _ = w.Node.RemoveAddress("lo", netip.MustParsePrefix(prefix)) })
	}
}
