// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// variant is a KubeProxyConfiguration that both get, and what it changes.
type variant struct {
	name, section string
	configuration []string
	steps         []step
}

// TestShuntDoesWithKubeProxysConfigurationWhatItDoes gives both the same configuration file.
func TestShuntDoesWithKubeProxysConfigurationWhatItDoes(t *testing.T) {
	s := newSuite(t)
	for _, v := range variants {
		t.Run(v.section+" "+v.name, func(t *testing.T) {
			s.startWith(t, v.configuration...)
			s.run(t, testCase{steps: v.steps})
		})
	}
}

func settingsCases() []testCase {
	var all []testCase
	for _, v := range variants {
		all = append(all, testCase{steps: v.steps})
	}
	return append(all, restartCase(nil), zoneCase, eligibilityCase)
}

func with(more ...string) []string { return append(more, world.DetectPods...) }

var variants = []variant{{
	name: "nodePortAddresses all", section: "2.3", configuration: with("nodePortAddresses: [all]"),
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1", "remote-1")
			e.onDevice("192.0.2.123/32")
		},
		checks: []check{
			tcp("host", nodePort("web", node4, 80), "local-1 remote-1 as node"),
			tcp("host", nodePort("web", "10.244.1.1", 80), "local-1 remote-1 as node"),
			kept("local-1 remote-1", tcp, "client", nodePort("web", "fd00:10:244:1::1", 80)),
			kept("local-1 remote-1", tcp, "client", nodePort("web", "192.0.2.123", 80)),
			tcp("host", nodePort("web", "127.0.0.1", 80), "refused").
				except("loopback-node-ports", "local-1 remote-1 as node"),
			tcp("client", nodePort("web", world.Address4("host-2"), 80), "refused"),
		},
	}},
}, {
	name: "nodePortAddresses as a list", section: "2.3",
	configuration: with(`nodePortAddresses: ["10.244.1.0/24", "fd00:10:244:1::/64"]`),
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1", "remote-1")
		},
		checks: []check{
			kept("local-1 remote-1", tcp, "client", nodePort("web", "10.244.1.1", 80)),
			kept("local-1 remote-1", tcp, "client", nodePort("web", "fd00:10:244:1::1", 80)),
			tcp("client", nodePort("web", node4, 80), "refused"),
			tcp("host", nodePort("web", node6, 80), "refused"),
			tcp("host", nodePort("web", "127.0.0.1", 80), "refused"),
		},
	}},
}, {
	name: "a list of one family opens the other", section: "2.3",
	configuration: with(`nodePortAddresses: ["10.244.1.0/24"]`),
	steps: []step{{
		change: func(e *env) {
			e.service("web", ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1")
		},
		checks: []check{
			tcp("host", nodePort("web", node4, 80), "refused"),
			tcp("host", nodePort("web", node6, 80), "local-1 as node"),
			kept("local-1", tcp, "client", nodePort("web", "fd00:10:244:1::1", 80)),
		},
	}},
}, {
	name: "masqueradeAll", section: "5.2",
	configuration: with("  masqueradeAll: true"),
	steps: []step{{
		change: func(e *env) { e.service("web"); e.pods("web", "local-1", "remote-1") },
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as node").
				except("masquerade-all", "local-1 remote-1 as own"),
		},
	}},
}, {
	name: "NodeCIDR", section: "5.1", configuration: []string{"detectLocalMode: NodeCIDR"},
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.51", vip), externalLocal)
			e.pods("web", "remote-1")
		},
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "remote-1 as own"),
			tcp("client", at("192.0.2.51:80"), "remote-1 as own"),
			tcp("host", at("192.0.2.51:80"), "remote-1 as node"),
		},
	}},
}, {
	name: "no way to tell pods", section: "5.1", configuration: []string{"detectLocalMode: ClusterCIDR"},
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.52", vip), externalLocal)
			e.pods("web", "remote-1")
		},
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), "remote-1 as own"),
			tcp("client", at("192.0.2.52:80"), "dropped").except("pods-need-no-detector", "remote-1 as own"),
			tcp("host", at("192.0.2.52:80"), "remote-1 as node"),
		},
	}},
}}

// pinned says whether a client's connections are answered by the one who answered first, in whichever step.
func pinned(from string, to target) check {
	first := map[*world.World]string{}
	return check{what: "connections with affinity", kubeProxy: "the same server",
		observe: func(e *env, w *world.World, _ string) string {
			for range 10 {
				answer := e.one(w, process.TCP, from, to)
				if first[w] == "" {
					first[w] = answer
				}
				if answer != first[w] {
					return answer + " instead of " + first[w]
				}
			}
			return "the same server"
		}}
}

// TestProxiesComeBack kills both, and changes objects while they are away.
func TestProxiesComeBack(t *testing.T) {
	s := newSuite(t)
	s.start(t)
	t.Run("zone", func(t *testing.T) { s.run(t, zoneCase) })
	t.Run("health", func(t *testing.T) { s.run(t, eligibilityCase) })
	t.Run("restart", func(t *testing.T) { s.run(t, restartCase(s)) })
}

// restartCase is sections 9.5 and 9.7.
func restartCase(s *suite) testCase {
	stays := []check{
		tcp("client", clusterIP("stays", 4, 80), "local-1 remote-1 as own"),
		goesOn("open", "local-1"),
		pinned("client", clusterIP("pinned", 4, 80)),
	}
	return testCase{steps: []step{{
		change: func(e *env) {
			e.service("stays")
			e.service("goes")
			e.service("flow")
			e.pods("stays", "local-1", "remote-1")
			e.pods("goes", "local-1")
			e.pods("flow", "local-1")
			e.service("pinned", affinity(10800))
			e.pods("pinned", four...)
			e.remember("gone", clusterIP("goes", 4, 80))
		},
		checks: []check{opens("open", "tcp", "client", clusterIP("flow", 4, 80), "local-1"), stays[0], stays[2]},
	}, {
		name: "no proxy", unsettled: true,
		change: func(e *env) {
			for _, w := range e.worlds() {
				w.StopProxy()
			}
			e.remove("goes")
			e.service("comes")
			e.pods("comes", "remote-1")
		},
		checks: append(stays, tcp("client", remembered("gone"), "local-1 as own")),
	}, {
		name: "back", unsettled: true,
		change: func(e *env) { s.start(e.t) },
		checks: append(stays, tcp("client", remembered("gone"), "dropped"),
			tcp("client", clusterIP("comes", 4, 80), "remote-1 as own")),
	}}}
}

// zoneCase is the zone label of section 3.3: a change of it is a change of every Service with hints.
var zoneCase = testCase{steps: []step{{
	change: func(e *env) {
		e.service("web", handwritten)
		e.slice("web", endpoint("local-1", zoneHints(here)), endpoint("remote-1", zoneHints(there)))
	},
	checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 as own")},
}, {
	name:   "the node moves",
	change: func(e *env) { e.setZone(there) },
	checks: []check{tcp("client", clusterIP("web", 4, 80), "remote-1 as own")},
}, {
	name:   "the node has no zone",
	change: func(e *env) { e.setZone("") },
	checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 remote-1 as own")},
}, {
	name:   "the node is back",
	change: func(e *env) { e.setZone(here) },
	checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 as own")},
}}}

func (e *env) setZone(zone string) {
	e.t.Helper()
	e.updateNode(func(node *corev1.Node) {
		delete(node.Labels, corev1.LabelTopologyZone)
		if zone != "" {
			node.Labels[corev1.LabelTopologyZone] = zone
		}
	})
}
