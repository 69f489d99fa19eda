// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shunt-lb/shunt/test/cluster/probe"
	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab/process"
)

var four = []string{"local-1", "local-2", "remote-1", "remote-2"}

// affinityCases are chapter 4.
var affinityCases = []testCase{{
	name: "affinity keeps a client with one server, over all frontends", section: "4",
	steps: []step{{
		change: func(e *env) {
			e.service("web", onBoth, affinity(10800), ofType(corev1.ServiceTypeNodePort), externalIPs("192.0.2.41"))
			e.pods("web", four...)
		},
		checks: []check{
			sticks("tcp", "client", clusterIP("web", 4, 80), nodePort("web", node4, 80), at("192.0.2.41:80")),
			sticks("tcp", "client", clusterIP("web", 6, 80), nodePort("web", node6, 80)),
			sticks("udp", "client", clusterIP("web", 4, 80), nodePort("web", node4, 80)),
			sticks("tcp", "host", clusterIP("web", 4, 80)),
		},
	}, {
		name:   "switched off",
		change: func(e *env) { e.update("web", noAffinity) },
		checks: []check{
			tcp("client", clusterIP("web", 4, 80), strings.Join(four, " ")+" as own"),
			udp("client", clusterIP("web", 4, 80), strings.Join(four, " ")+" as own"),
		},
	}, {
		name:   "switched on again",
		change: func(e *env) { e.update("web", affinity(10800)) },
		checks: []check{sticks("tcp", "client", clusterIP("web", 4, 80), nodePort("web", node4, 80))},
	}, {
		name: "the server goes",
		change: func(e *env) {
			e.end("web", "local-1")
			e.end("web", "local-2")
			e.end("web", "remote-1")
		},
		checks: []check{tcp("client", clusterIP("web", 4, 80), "remote-2 as own")},
	}},
}, {
	name: "affinity obeys the policy before its memory", section: "4",
	steps: []step{{
		change: func(e *env) {
			e.service("web", affinity(10800))
			e.pods("web", "remote-1")
		},
		checks: []check{sticks("tcp", "client", clusterIP("web", 4, 80))},
	}, {
		name:   "Local",
		change: func(e *env) { e.pods("web", "local-1"); e.update("web", internalLocal) },
		checks: []check{tcp("client", clusterIP("web", 4, 80), "local-1 as own")},
	}},
}, {
	name: "affinity ends when the client has been away", section: "4",
	steps: []step{{
		change: func(e *env) { e.service("web", affinity(1)); e.pods("web", four...) },
		checks: []check{{
			what: "connections with pauses longer than the timeout", kubeProxy: "several servers",
			observe: func(e *env, w *world.World, _ string) string {
				const pauses = 12 // all with one server of four: once in four million
				seen := map[string]bool{}
				for range pauses {
					seen[e.one(w, process.TCP, "client", clusterIP("web", 4, 80))] = true
					if len(seen) > 1 {
						return "several servers"
					}
					time.Sleep(1500 * time.Millisecond) // the pause is what is tested
				}
				return "one server"
			},
		}},
	}},
}}

// one makes one connection and says who answered.
func (e *env) one(w *world.World, network, from string, to target) string {
	result, err := probe.Run(clientOf(w, from), probe.Request{Network: network, To: to(e), Count: 1, Timeout: 4 * time.Second})
	e.must(err)
	for server := range result.Servers {
		return server
	}
	for failure := range result.Failures {
		return failure
	}
	return "nothing"
}

// sticks makes connections to several frontends of a service port in turn: one server answers them all.
func sticks(network, from string, to ...target) check {
	return check{what: network + " from " + from + " to several frontends in turn", kubeProxy: "one server",
		observe: func(e *env, w *world.World, _ string) string {
			seen := map[string]bool{}
			for range 8 {
				for _, frontend := range to {
					seen[e.one(w, network, from, frontend)] = true
				}
			}
			if len(seen) > 1 {
				return "several servers"
			}
			for answer := range seen {
				if answer == probe.Dropped || answer == probe.Refused {
					return answer
				}
			}
			return "one server"
		}}
}
