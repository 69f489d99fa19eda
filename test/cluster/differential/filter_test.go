// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

// filterCases are chapter 6: source ranges, rejects and drops.
var filterCases = []testCase{{
	name: "source ranges guard the load balancer's address alone", section: "6.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.61", vip), externalIPs("192.0.2.62"), sourceRanges("10.244.1.0/24"))
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			kept("local-1 remote-1", tcp, "client", at("192.0.2.61:80")),
			tcp("host", at("192.0.2.61:80"), "dropped"),
			tcp("host", at("192.0.2.62:80"), "local-1 remote-1 as node"),
			tcp("host", nodePort("web", node4, 80), "local-1 remote-1 as node"),
			tcp("host", clusterIP("web", 4, 80), "local-1 remote-1 as node"),
		},
	}, {
		name:   "other ranges",
		change: func(e *env) { e.update("web", sourceRanges("172.20.0.0/24", "192.0.2.0/28")) },
		checks: []check{
			tcp("client", at("192.0.2.61:80"), "dropped"),
			tcp("host", at("192.0.2.61:80"), "local-1 remote-1 as node"),
			kept("local-1 remote-1", tcp, "client", at("192.0.2.62:80")),
			kept("local-1 remote-1", tcp, "client", nodePort("web", node4, 80)),
		},
	}, {
		name:   "no ranges",
		change: func(e *env) { e.update("web", sourceRanges()) },
		checks: []check{
			kept("local-1 remote-1", tcp, "client", at("192.0.2.61:80")),
			tcp("host", at("192.0.2.61:80"), "local-1 remote-1 as node"),
		},
	}},
}, {
	name: "source ranges of the other family, or of everybody, guard nothing", section: "6.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.63", vip), ingress("2001:db8::63", vip), sourceRanges("2001:db8:ffff::/48"))
			e.pods("web", "local-1")
		},
		checks: []check{
			kept("local-1", tcp, "client", at("192.0.2.63:80")),
			tcp("client", at("[2001:db8::63]:80"), "dropped"),
		},
	}, {
		name:   "everybody",
		change: func(e *env) { e.update("web", sourceRanges("2001:db8:ffff::/48", "::/0", "192.0.2.0/28")) },
		checks: []check{
			tcp("client", at("192.0.2.63:80"), "dropped"),
			kept("local-1", tcp, "client", at("[2001:db8::63]:80")),
		},
	}},
}, {
	name: "without endpoints, who is allowed is refused and who is not is left waiting", section: "6.1",
	steps: []step{{
		change: func(e *env) { e.service("web", ingress("192.0.2.64", vip), sourceRanges("10.244.1.0/24")) },
		checks: []check{
			tcp("client", at("192.0.2.64:80"), "refused"),
			tcp("host", at("192.0.2.64:80"), "dropped"),
		},
	}},
}, {
	name: "source ranges come before the policy", section: "6.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.65", vip), externalLocal, sourceRanges("172.20.0.10/32"))
			e.pods("web", "remote-1")
		},
		checks: []check{
			tcp("client", at("192.0.2.65:80"), "dropped"),
			tcp("host", at("192.0.2.65:80"), "remote-1 as node"),
		},
	}},
}, {
	name: "source ranges that have the node let it use the address as its own", section: "6.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.66", vip), sourceRanges("172.20.0.10/32"))
			e.pods("web", "remote-1")
			e.onDevice("192.0.2.66/32")
		},
		checks: []check{
			tcp("host", at("192.0.2.66:80"), "remote-1 as node"),
		},
	}, {
		name:   "not the node",
		change: func(e *env) { e.update("web", sourceRanges("10.244.1.0/24")) },
		checks: []check{tcp("host", at("192.0.2.66:80"), "dropped")},
	}},
}, {
	name: "without endpoints all frontends refuse", section: "6.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", onBoth, ingress("192.0.2.67", vip), externalIPs("192.0.2.68", "2001:db8::68"))
		},
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "refused"),
			tcp("host", clusterIP("web", 6, 80), "refused"),
			udp("client", clusterIP("web", 6, 80), "refused"),
			udp("host", clusterIP("web", 4, 80), "refused"),
			datagram("client", clusterIP("web", 4, 80), "dropped").except("refused-datagram", "refused"),
			tcp("client", at("192.0.2.67:80"), "refused"),
			tcp("client", at("192.0.2.68:80"), "refused"),
			tcp("host", at("[2001:db8::68]:80"), "refused"),
			udp("client", at("192.0.2.68:80"), "refused"),
			tcp("client", nodePort("web", node4, 80), "refused"),
			udp("client", nodePort("web", node6, 80), "refused"),
			tcp("host", nodePort("web", node4, 80), "refused"),
		},
	}},
}, {
	name: "a ClusterIP refuses ports and protocols that its Service has not", section: "6.2",
	steps: []step{{
		change: func(e *env) { e.service("web"); e.pods("web", "local-1") },
		checks: []check{
			tcp("client", clusterIP("web", 4, 81), "refused"),
			tcp("client", clusterIP("web", 6, 81), "refused"),
			tcp("host", clusterIP("web", 4, 81), "refused"),
			udp("client", clusterIP("web", 4, 80), "refused"),
			udp("host", clusterIP("web", 6, 80), "refused"),
		},
	}},
}, {
	name: "an address of the service range that is no Service's is silent", section: "6.2",
	steps: []step{{
		change: func(e *env) {},
		checks: []check{
			tcp("client", at("10.96.255.7:80"), "dropped"),
			tcp("host", at("10.96.255.7:80"), "dropped"),
			udp("client", at("10.96.255.7:80"), "dropped"),
			tcp("client", at("[fd00:10:96::fff7]:80"), "dropped"),
			udp("host", at("[fd00:10:96::fff7]:80"), "dropped"),
		},
	}},
}, {
	name: "other ports of an external address are left alone", section: "6.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress(world.Address4("host-2"), vip), withPorts(port("", corev1.ProtocolTCP, 1967, world.Port)))
			e.pods("web", "local-1")
		},
		checks: []check{
			kept("local-1", tcp, "client", at(world.Address4("host-2")+":1967")),
			tcp("client", at(world.Address4("host-2")+":8080"), "host-2 as own"),
			udp("host", at(world.Address4("host-2")+":8080"), "host-2 as node"),
		},
	}},
}, {
	name: "a Local policy without local endpoints drops UDP as well", section: "6.2",
	steps: []step{{
		change: func(e *env) { e.service("dns", onUDP, internalLocal); e.pods("dns", "remote-1") },
		checks: []check{
			udp("client", clusterIP("dns", 4, 80), "dropped"),
			datagram("client", clusterIP("dns", 4, 80), "dropped"),
			udp("host", clusterIP("dns", 6, 80), "dropped"),
		},
	}},
}, {
	name: "a Service from a range that was added later works at once", section: "6.3",
	steps: []step{{
		change: func(e *env) {
			e.addServiceCIDR("later", "10.97.0.0/24")
			e.service("web", only(corev1.IPv4Protocol), func(s *corev1.Service) { s.Spec.ClusterIP = "10.97.0.5" })
			e.pods("web", "local-1")
		},
		checks: []check{
			tcp("client", at("10.97.0.5:80"), "local-1 as own"),
			tcp("client", at("10.97.0.5:81"), "refused"),
		},
	}},
}, {
	name: "nobody answers an echo request to a ClusterIP", section: "6.4",
	steps: []step{{
		change: func(e *env) { e.service("web"); e.pods("web", "local-1") },
		checks: []check{{
			what: "ping from client", kubeProxy: "silence",
			observe: func(e *env, w *world.World, _ string) string {
				if w.Client.Ping(clusterIP("web", 4, 80)(e).Addr(), 300*time.Millisecond).Answered {
					return "an answer"
				}
				return "silence"
			},
		}},
	}},
}}

// addServiceCIDR adds a range and waits until the API server gives out addresses of it.
func (e *env) addServiceCIDR(name, cidr string) {
	e.t.Helper()
	api := e.API.NetworkingV1().ServiceCIDRs()
	_, err := api.Create(e.t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
	}, metav1.CreateOptions{})
	e.must(err)
	e.must(e.Await(e.t.Context(), "the range "+cidr+" to be ready", func() (bool, error) {
		object, err := api.Get(e.t.Context(), name, metav1.GetOptions{})
		return err == nil && len(object.Status.Conditions) > 0 && object.Status.Conditions[0].Status == metav1.ConditionTrue, err
	}))
}
