// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

const (
	proxyLabel    = "service.kubernetes.io/service-proxy-name"
	headlessLabel = "service.kubernetes.io/headless"
)

// objectCases are chapter 1: which objects count, and for what.
var objectCases = []testCase{{
	name: "a ClusterIP is answered by all ready pods of its Service", section: "1.4",
	steps: []step{{
		change: func(e *env) {
			e.service("web")
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own"),
			tcp("client", clusterIP("web", 6, 80), "local-1 remote-1 as own"),
			tcp("host", clusterIP("web", 4, 80), "local-1 remote-1 as node"),
			tcp("host", clusterIP("web", 6, 80), "local-1 remote-1 as node"),
		},
	}, {
		name:   "a pod more and one less",
		change: func(e *env) { e.pods("web", "remote-2"); e.end("web", "local-1") },
		checks: []check{tcp("client", clusterIP("web", 4, 80), "remote-1 remote-2 as own")},
	}, {
		name:   "no pod left",
		change: func(e *env) { e.end("web", "remote-1"); e.end("web", "remote-2") },
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "refused"),
			tcp("host", clusterIP("web", 6, 80), "refused"),
		},
	}},
}, {
	name: "a Service of another proxy is not served, and again when the label goes", section: "1.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", func(s *corev1.Service) { s.Labels = map[string]string{proxyLabel: ""} })
			e.pods("web", "local-1")
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "dropped")},
	}, {
		name:   "without the label",
		change: func(e *env) { e.update("web", func(s *corev1.Service) { s.Labels = nil }) },
		checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 as own")},
	}, {
		name: "with the label again",
		change: func(e *env) {
			e.update("web", func(s *corev1.Service) { s.Labels = map[string]string{proxyLabel: "other"} })
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "dropped")},
	}},
}, {
	name: "slices labelled headless do not count, and again when the label goes", section: "1.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten)
			e.slice("web", endpoint("local-1"))
			e.names["slice"] = e.sliceWith("web", func(s *discoveryv1.EndpointSlice) {
				s.Labels[headlessLabel] = ""
			}, endpoint("remote-1"))
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 as own")},
	}, {
		name: "without the label",
		change: func(e *env) {
			e.updateSlice(e.names["slice"], func(s *discoveryv1.EndpointSlice) { delete(s.Labels, headlessLabel) })
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own")},
	}, {
		name: "with the label again",
		change: func(e *env) {
			e.updateSlice(e.names["slice"], func(s *discoveryv1.EndpointSlice) { s.Labels[headlessLabel] = "" })
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 as own")},
	}},
}, {
	name: "a Service that turns into ExternalName loses its frontends", section: "1.2",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1")
			e.remember("address", clusterIP("web", 4, 80))
			e.remember("node port", nodePort("web", node4, 80))
		},
		checks: []check{tcp("host", remembered("node port"), "local-1 as node")},
	}, {
		name: "ExternalName",
		change: func(e *env) {
			e.update("web", func(s *corev1.Service) {
				s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "elsewhere.example"}
			})
		},
		checks: []check{
			tcp("client", remembered("address"), "dropped"),
			tcp("client", remembered("node port"), "refused"),
		},
	}, {
		name: "NodePort again",
		change: func(e *env) {
			e.update("web", func(s *corev1.Service) {
				s.Spec = corev1.ServiceSpec{
					Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "web"},
					Ports: []corev1.ServicePort{port("", corev1.ProtocolTCP, 80, world.Port)},
				}
			})
		},
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "local-1 as own"),
			tcp("host", nodePort("web", node4, 80), "local-1 as node"),
		},
	}},
}, {
	name: "an IPv6 Service has no frontend in IPv4", section: "1.3",
	steps: []step{{
		change: func(e *env) {
			e.service("web", only(corev1.IPv6Protocol), ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			tcp("client", clusterIP("web", 6, 80), "local-1 remote-1 as own"),
			kept("local-1 remote-1", tcp, "client", nodePort("web", node6, 80)),
			tcp("client", nodePort("web", node4, 80), "refused"),
		},
	}},
}, {
	name: "which family is first does not matter", section: "1.3",
	steps: []step{{
		change: func(e *env) {
			e.service("web", families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv6Protocol, corev1.IPv4Protocol))
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			tcp("client", clusterIP("web", 6, 80), "local-1 remote-1 as own"),
			tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own"),
		},
	}},
}, {
	name: "one port number on TCP and UDP is two service ports", section: "1.4",
	steps: []step{{
		change: func(e *env) {
			e.service("dns", ofType(corev1.ServiceTypeNodePort), withPorts(port("tcp", corev1.ProtocolTCP, 53, world.Port),
				port("udp", corev1.ProtocolUDP, 53, world.OtherPort)))
			e.pods("dns", "local-1", "remote-1")
		},
		checks: []check{
			tcp("client", clusterIP("dns", 4, 53), "local-1 remote-1 as own"),
			udp("client", clusterIP("dns", 4, 53), "local-1:other remote-1:other as own"),
			datagram("client", clusterIP("dns", 4, 53), "local-1:other remote-1:other as own"),
			udp("host", clusterIP("dns", 6, 53), "local-1:other remote-1:other as node"),
			datagram("host", clusterIP("dns", 6, 53), "local-1:other remote-1:other as node"),
		},
	}, {
		name: "without UDP",
		change: func(e *env) {
			e.update("dns", func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] })
		},
		checks: []check{
			tcp("client", clusterIP("dns", 4, 53), "local-1 remote-1 as own"),
			udp("client", clusterIP("dns", 4, 53), "refused"),
		},
	}},
}, {
	name: "an IPv6 address is known in any spelling", section: "1.6",
	steps: []step{{
		change: func(e *env) {
			e.service("web", externalIPs("2001:DB8:0:0::16"))
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{kept("local-1 remote-1", tcp, "client", at("[2001:db8::16]:80"))},
	}},
}, {
	name: "an IPv6 socket that dials a v4-mapped address uses the IPv4 Service", section: "1.6",
	steps: []step{{
		change: func(e *env) {
			e.service("web", onBoth)
			e.pods("web", "remote-1")
		},
		checks: []check{
			opens("stream", "tcp", "client", mapped(clusterIP("web", 4, 80)), "remote-1"),
			opens("datagram", "udp", "host", mapped(clusterIP("web", 4, 80)), "remote-1"),
		},
	}},
}}

// remember keeps an address beyond the life of what it belongs to.
func (e *env) remember(name string, to target) { e.remembered[name] = to(e) }

func remembered(name string) target {
	return func(e *env) netip.AddrPort { return e.remembered[name] }
}

// sliceCases are section 1.7: which slices and endpoints count.
var sliceCases = []testCase{{
	name: "the endpoints of all slices are one set, and each counts once", section: "1.7",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten)
			e.slice("web", endpoint("local-1"), endpoint("remote-1"))
			e.names["second"] = e.slice("web", endpoint("remote-1"), endpoint("remote-2"))
		},
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 remote-2 as own"),
			tcp("client", clusterIP("web", 6, 80), "refused"),
		},
	}, {
		name:   "one slice less",
		change: func(e *env) { e.removeSlice(e.names["second"]) },
		checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own")},
	}},
}, {
	name: "of the addresses of an endpoint the first counts", section: "1.7",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten)
			e.slice("web", endpoint("local-1", func(one *discoveryv1.Endpoint) {
				one.Addresses = append(one.Addresses, world.Address4("remote-1"))
			}))
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 as own")},
	}},
}, {
	name: "a slice port without a number is not served", section: "1.7",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten)
			e.sliceWith("web", slicePort("", corev1.ProtocolTCP, nil), endpoint("local-1"))
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "refused")},
	}},
}, {
	name: "a slice port belongs to the service port of its name and protocol", section: "1.7",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten, withPorts(port("a", corev1.ProtocolTCP, 80, 80), port("b", corev1.ProtocolTCP, 81, 81)))
			e.sliceWith("web", slicePort("a", corev1.ProtocolTCP, as[int32](world.Port)), endpoint("local-1"))
			e.sliceWith("web", slicePort("b", corev1.ProtocolUDP, as[int32](world.Port)), endpoint("remote-1"))
		},
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "local-1 as own"),
			tcp("client", clusterIP("web", 4, 81), "refused"),
		},
	}},
}, {
	name: "slices may name different numbers for one port", section: "1.7",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten)
			e.slice("web", endpoint("local-1"))
			e.sliceWith("web", slicePort("", corev1.ProtocolTCP, as[int32](world.OtherPort)), endpoint("remote-1"), endpoint("local-1"))
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 local-1:other remote-1:other as own")},
	}},
}, {
	name: "a slice without the label of a Service, or of names, is nobody's", section: "1.7",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten)
			e.sliceWith("web", func(s *discoveryv1.EndpointSlice) { s.Labels = nil }, endpoint("local-1"))
			e.sliceWith("web", func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeFQDN
			}, endpoint("local-1", func(one *discoveryv1.Endpoint) { one.Addresses = []string{"pod.example"} }))
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "refused")},
	}},
}, {
	name: "an endpoint that one slice has as terminating and another as ready is ready", section: "1.7",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten)
			ending := conditions(as(false), as(true), as(true))
			e.slice("web", endpoint("local-1", ending), endpoint("remote-1"))
			e.slice("web", endpoint("local-1"))
			e.slice("web", endpoint("local-1", ending))
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own")},
	}},
}, {
	name: "a slice that is given to another Service leaves the first", section: "1.7",
	steps: []step{{
		change: func(e *env) {
			e.service("old", handwritten)
			e.service("new", handwritten)
			e.names["slice"] = e.slice("old", endpoint("local-1"))
		},
		checks: []check{tcp("client", clusterIP("old", 4, 80), "local-1 as own")},
	}, {
		name: "relabelled",
		change: func(e *env) {
			e.updateSlice(e.names["slice"], func(s *discoveryv1.EndpointSlice) {
				s.Labels[discoveryv1.LabelServiceName] = "new"
			})
		},
		checks: []check{
			tcp("client", clusterIP("new", 4, 80), "local-1 as own"),
			tcp("client", clusterIP("old", 4, 80), "local-1 as own").except("relabelled-slice", "refused"),
		},
	}},
}, {
	name: "an Endpoints object written by hand is mirrored and served", section: "1.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten, only(corev1.IPv4Protocol))
			//lint:ignore SA1019 the old API is what is tested
			endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
			//lint:ignore SA1019 the old API is what is tested
			endpoints.Subsets = []corev1.EndpointSubset{{
				Addresses: []corev1.EndpointAddress{{IP: world.Address4("remote-1")}},
				Ports:     []corev1.EndpointPort{{Port: world.Port, Protocol: corev1.ProtocolTCP}},
			}}
			_, err := e.API.CoreV1().Endpoints(e.namespace).Create(e.t.Context(), endpoints, metav1.CreateOptions{})
			e.must(err)
			e.must(e.AwaitMirror(e.t.Context(), e.namespace, "web"))
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "remote-1 as own")},
	}},
}}
