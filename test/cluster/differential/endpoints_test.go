// SPDX-License-Identifier: Apache-2.0

package differential

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

func handwrittenCase(name, section string, change func(*corev1.Service), endpoints []discoveryv1.Endpoint, checks ...check) testCase {
	return testCase{name: name, section: section, steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten, change)
			e.slice("web", endpoints...)
		},
		checks: checks,
	}}}
}

func usual(*corev1.Service) {}

type endpoints = []discoveryv1.Endpoint

var (
	notReady = conditions(as(false), nil, nil)
	ending   = conditions(as(false), as(true), as(true))
	ended    = conditions(as(false), as(false), as(true))
)

// conditionCases are sections 3.2 and 3.5: which endpoints are usable.
var conditionCases = []testCase{
	handwrittenCase("an endpoint that is not ready is not used", "3.5", usual,
		endpoints{endpoint("local-1"), endpoint("remote-1", notReady)},
		tcp("client", clusterIP("web", 4, 80), "local-1 as own")),
	handwrittenCase("an endpoint that is not ready and not terminating is no last resort", "3.5", usual,
		endpoints{endpoint("remote-1", notReady)},
		tcp("client", clusterIP("web", 4, 80), "refused")),
	handwrittenCase("what is not said of an endpoint is ready", "3.5", usual,
		endpoints{endpoint("local-1", conditions(nil, nil, nil)), endpoint("remote-1", conditions(nil, as(false), nil))},
		tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own")),
	handwrittenCase("ready counts though it terminates", "3.5", usual,
		endpoints{endpoint("local-1", conditions(as(true), as(true), as(true))), endpoint("remote-1")},
		tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own")),
	handwrittenCase("terminating endpoints are not used beside ready ones", "3.2", usual,
		endpoints{endpoint("local-1", ending), endpoint("remote-1")},
		tcp("client", clusterIP("web", 4, 80), "remote-1 as own")),
	handwrittenCase("terminating endpoints that serve are the last resort", "3.2", usual,
		endpoints{endpoint("local-1", ending), endpoint("remote-1", ended), endpoint("remote-2", notReady)},
		tcp("client", clusterIP("web", 4, 80), "local-1 as own"),
		tcp("host", clusterIP("web", 4, 80), "local-1 as node")),
	handwrittenCase("terminating endpoints whose serving is not said are a last resort", "3.5", usual,
		endpoints{endpoint("remote-1", conditions(as(false), nil, as(true)))},
		tcp("client", clusterIP("web", 4, 80), "remote-1 as own")),
	handwrittenCase("a terminating endpoint that does not serve is none", "3.5", usual,
		endpoints{endpoint("local-1", ended)},
		tcp("client", clusterIP("web", 4, 80), "refused")),
	{
		name: "the last pod serves until it has ended", section: "3.2",
		steps: []step{{
			change: func(e *env) {
				e.service("web", ofType(corev1.ServiceTypeNodePort))
				e.pods("web", "local-1", "remote-1")
				e.terminate("web", "local-1")
			},
			checks: []check{tcp("client", clusterIP("web", 4, 80), "remote-1 as own")},
		}, {
			name:   "the last one terminates",
			change: func(e *env) { e.terminate("web", "remote-1") },
			checks: []check{
				tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own"),
				kept("local-1 remote-1", tcp, "client", nodePort("web", node4, 80)),
			},
		}, {
			name:   "one has ended",
			change: func(e *env) { e.end("web", "local-1") },
			checks: []check{tcp("client", clusterIP("web", 4, 80), "remote-1 as own")},
		}, {
			name:   "the other fails its probe",
			change: func(e *env) { e.ready("web", "remote-1", false) },
			checks: []check{tcp("client", clusterIP("web", 4, 80), "refused")},
		}},
	}, {
		name: "publishNotReadyAddresses uses every pod", section: "3.5",
		steps: []step{{
			change: func(e *env) {
				e.service("web", func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true })
				e.pods("web", "local-1", "remote-1", "remote-2")
				e.ready("web", "local-1", false)
				e.terminate("web", "remote-1")
			},
			checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 remote-2 as own")},
		}, {
			name:   "switched off",
			change: func(e *env) { e.update("web", func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = false }) },
			checks: []check{tcp("client", clusterIP("web", 4, 80), "remote-2 as own")},
		}},
	}, {
		name: "a named target port is each pod's own number", section: "1.7",
		steps: []step{{
			change: func(e *env) {
				e.service("web", func(s *corev1.Service) {
					s.Spec.Ports[0].TargetPort.Type, s.Spec.Ports[0].TargetPort.StrVal = 1, "main"
				})
				e.pods("web", "local-1", "remote-2")
			},
			checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 remote-2:other as own")},
		}},
	}, {
		name: "endpoints on the host network", section: "5.2",
		steps: []step{{
			change: func(e *env) {
				e.service("web", onBoth, ofType(corev1.ServiceTypeNodePort))
				e.pods("web", "host-1", "host-2")
			},
			checks: []check{
				tcp("client", clusterIP("web", 4, 80), "host-1 host-2 as own"),
				udp("client", clusterIP("web", 6, 80), "host-1 host-2 as own"),
				tcp("host", clusterIP("web", 4, 80), "host-1 host-2 as node"),
				udp("host", clusterIP("web", 6, 80), "host-1 host-2 as node"),
				tcp("host", nodePort("web", node4, 80), "host-1 host-2 as node"),
			},
		}},
	},
}

var (
	one       = endpoints{endpoint("local-1"), endpoint("remote-1")}
	elsewhere = endpoints{endpoint("remote-1"), endpoint("remote-2")}
	nobody    = endpoints{endpoint("local-1", notReady), endpoint("remote-1", ended)}
)

// policyCases are section 3.4, for the clients of the node itself: sets and verdicts by the traffic policies.
var policyCases = []testCase{
	handwrittenCase("internalTrafficPolicy Local keeps to the node", "3.4", internalLocal, one,
		tcp("client", clusterIP("web", 4, 80), "local-1 as own"),
		tcp("host", clusterIP("web", 4, 80), "local-1 as node")),
	handwrittenCase("internalTrafficPolicy Local drops when endpoints are elsewhere", "3.4", func(s *corev1.Service) {
		internalLocal(s)
		onBoth(s)
		s.Spec.Ports = s.Spec.Ports[:1]
		s.Spec.Ports[0].Name = ""
	}, elsewhere,
		tcp("client", clusterIP("web", 4, 80), "dropped"),
		tcp("host", clusterIP("web", 4, 80), "dropped")),
	handwrittenCase("internalTrafficPolicy Local refuses when there are none", "3.4", internalLocal, nobody,
		tcp("client", clusterIP("web", 4, 80), "refused"),
		tcp("host", clusterIP("web", 4, 80), "refused")),
	handwrittenCase("internalTrafficPolicy Local drops when terminating ones are elsewhere", "3.4", internalLocal,
		endpoints{endpoint("remote-1", ending)},
		tcp("client", clusterIP("web", 4, 80), "dropped")),
	handwrittenCase("internalTrafficPolicy Local falls back to the node's terminating endpoint", "3.2", internalLocal,
		endpoints{endpoint("local-1", ending), endpoint("remote-1")},
		tcp("client", clusterIP("web", 4, 80), "local-1 as own")),
	handwrittenCase("an endpoint without a node is elsewhere", "1.7", internalLocal,
		endpoints{endpoint("local-1", func(e *discoveryv1.Endpoint) { e.NodeName = nil })},
		tcp("client", clusterIP("web", 4, 80), "dropped")),
	handwrittenCase("internalTrafficPolicy does not bind node ports", "3.4", func(s *corev1.Service) {
		internalLocal(s)
		ofType(corev1.ServiceTypeNodePort)(s)
	}, elsewhere,
		tcp("client", clusterIP("web", 4, 80), "dropped"),
		kept("remote-1 remote-2", tcp, "client", nodePort("web", node4, 80)),
		tcp("host", nodePort("web", node4, 80), "remote-1 remote-2 as node")),
	handwrittenCase("externalTrafficPolicy Local does not bind the node's own clients", "3.4", func(s *corev1.Service) {
		ingress("192.0.2.31", vip)(s)
		externalLocal(s)
	}, elsewhere,
		tcp("client", at("192.0.2.31:80"), "remote-1 remote-2 as own"),
		tcp("host", at("192.0.2.31:80"), "remote-1 remote-2 as node"),
		tcp("client", nodePort("web", node4, 80), "remote-1 remote-2 as own"),
		tcp("host", nodePort("web", node4, 80), "remote-1 remote-2 as node"),
		tcp("client", clusterIP("web", 4, 80), "remote-1 remote-2 as own")),
	handwrittenCase("the node's own clients bypass both policies at a load balancer's address", "3.4", func(s *corev1.Service) {
		ingress("192.0.2.32", vip)(s)
		externalLocal(s)
		internalLocal(s)
	}, elsewhere,
		tcp("client", clusterIP("web", 4, 80), "dropped"),
		tcp("client", at("192.0.2.32:80"), "remote-1 remote-2 as own"),
		tcp("host", at("192.0.2.32:80"), "remote-1 remote-2 as node")),
	handwrittenCase("externalTrafficPolicy Local refuses when there are none", "3.4", func(s *corev1.Service) {
		ingress("192.0.2.33", vip)(s)
		externalLocal(s)
	}, nobody,
		tcp("client", at("192.0.2.33:80"), "refused"),
		tcp("host", at("192.0.2.33:80"), "refused"),
		tcp("client", nodePort("web", node4, 80), "refused"),
		tcp("host", nodePort("web", node4, 80), "refused")),
	handwrittenCase("externalTrafficPolicy Local counts for external IPs of a ClusterIP Service", "3.4", func(s *corev1.Service) {
		externalIPs("192.0.2.34")(s)
		externalLocal(s)
	}, one,
		tcp("client", at("192.0.2.34:80"), "local-1 remote-1 as own"),
		tcp("host", at("192.0.2.34:80"), "local-1 remote-1 as node")),
	handwrittenCase("the two sets fall back on their own", "3.2", func(s *corev1.Service) {
		ofType(corev1.ServiceTypeNodePort)(s)
		internalLocal(s)
	}, endpoints{endpoint("local-1", ending), endpoint("remote-1")},
		tcp("client", clusterIP("web", 4, 80), "local-1 as own"),
		kept("remote-1", tcp, "client", nodePort("web", node4, 80))),
}

const here, there = world.TestedZone, world.RemoteZone

// hintCases are section 3.3: topology.
var hintCases = []testCase{
	handwrittenCase("zone hints keep traffic in the zone", "3.3", usual,
		endpoints{endpoint("local-1", zoneHints(here)), endpoint("remote-1", zoneHints(there)), endpoint("remote-2", zoneHints(there, here))},
		tcp("client", clusterIP("web", 4, 80), "local-1 remote-2 as own"),
		tcp("host", clusterIP("web", 4, 80), "local-1 remote-2 as node")),
	handwrittenCase("zone hints count for external frontends as well", "3.3", ofType(corev1.ServiceTypeNodePort),
		endpoints{endpoint("local-1", zoneHints(here)), endpoint("remote-1", zoneHints(there))},
		kept("local-1", tcp, "client", nodePort("web", node4, 80))),
	handwrittenCase("zone hints are ignored when a ready endpoint has none", "3.3", usual,
		endpoints{endpoint("local-1", zoneHints(here)), endpoint("remote-1", zoneHints(there)), endpoint("remote-2")},
		tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 remote-2 as own")),
	handwrittenCase("an endpoint that is not ready has no say about hints", "3.3", usual,
		endpoints{endpoint("local-1", zoneHints(here)), endpoint("remote-1", zoneHints(there)), endpoint("remote-2", notReady)},
		tcp("client", clusterIP("web", 4, 80), "local-1 as own")),
	handwrittenCase("zone hints are ignored when none names the node's zone", "3.3", usual,
		endpoints{endpoint("local-1", zoneHints(there)), endpoint("remote-1", zoneHints("zone-c"))},
		tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own")),
	handwrittenCase("the hint decides, not where the endpoint is", "3.3", usual,
		endpoints{endpoint("local-1", zoneHints(there)), endpoint("remote-1", zoneHints(here))},
		tcp("client", clusterIP("web", 4, 80), "remote-1 as own")),
	handwrittenCase("node hints come before zone hints", "3.3", usual,
		endpoints{
			endpoint("local-1", zoneHints(here), nodeHints(world.Tested)),
			endpoint("local-2", zoneHints(here), nodeHints(world.Remote)),
			endpoint("remote-1", zoneHints(there), nodeHints(world.Remote)),
		},
		tcp("client", clusterIP("web", 4, 80), "local-1 as own")),
	handwrittenCase("without a node hint for every endpoint the zone decides", "3.3", usual,
		endpoints{
			endpoint("local-1", zoneHints(here), nodeHints(world.Tested)), endpoint("local-2", zoneHints(here)),
			endpoint("remote-1", zoneHints(there), nodeHints(world.Remote)),
		},
		tcp("client", clusterIP("web", 4, 80), "local-1 local-2 as own")),
	handwrittenCase("node hints for other nodes leave the decision to the zone", "3.3", usual,
		endpoints{
			endpoint("local-1", zoneHints(here), nodeHints(world.Remote)),
			endpoint("remote-1", zoneHints(there), nodeHints(world.Remote)),
		},
		tcp("client", clusterIP("web", 4, 80), "local-1 as own")),
	handwrittenCase("node hints need no zone hints", "3.3", usual,
		endpoints{endpoint("local-1", nodeHints(world.Tested)), endpoint("remote-1", nodeHints(world.Remote))},
		tcp("client", clusterIP("web", 4, 80), "local-1 as own")),
	handwrittenCase("terminating endpoints are a last resort whatever their hints", "3.2", usual,
		endpoints{endpoint("local-1", ending, zoneHints(here)), endpoint("remote-1", ending, zoneHints(there))},
		tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own")),
	handwrittenCase("a Local policy ignores hints", "3.2", internalLocal,
		endpoints{endpoint("local-1", zoneHints(there)), endpoint("remote-1", zoneHints(here))},
		tcp("client", clusterIP("web", 4, 80), "local-1 as own")),
	distributionCase("PreferSameZone", "local-1 local-2"),
	distributionCase("PreferClose", "local-1 local-2"),
	distributionCase("PreferSameNode", "local-1 local-2"),
}

// distributionCase lets the slice controller make the hints.
func distributionCase(name, want string) testCase {
	return testCase{name: "trafficDistribution " + name, section: "3.3", steps: []step{{
		change: func(e *env) {
			e.service("web", distribution(name))
			e.pods("web", "local-1", "local-2", "remote-1")
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), want+" as own")},
	}, {
		name:   "only elsewhere",
		change: func(e *env) { e.end("web", "local-1"); e.end("web", "local-2") },
		checks: []check{tcp("client", clusterIP("web", 4, 80), "remote-1 as own")},
	}}}
}
