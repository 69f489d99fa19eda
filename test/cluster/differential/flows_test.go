// SPDX-License-Identifier: Apache-2.0

package differential

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

// flowCases are chapter 8 and section 3.6: what becomes of flows when endpoints come and go. The servers themselves
// run on: a flow that stays where it should not is answered by the wrong one.
var flowCases = []testCase{{
	name: "a TCP connection goes on when its endpoint and its Service go", section: "8.5",
	steps: []step{{
		change: func(e *env) { e.service("web"); e.pods("web", "local-1") },
		checks: []check{
			opens("pod", "tcp", "client", clusterIP("web", 4, 80), "local-1"),
			opens("host", "tcp", "host", clusterIP("web", 6, 80), "local-1"),
		},
	}, {
		name:   "the endpoint goes",
		change: func(e *env) { e.pods("web", "remote-1"); e.end("web", "local-1") },
		checks: []check{
			goesOn("pod", "local-1"), goesOn("host", "local-1"),
			tcp("client", clusterIP("web", 4, 80), "remote-1 as own"),
		},
	}, {
		name:   "the Service goes",
		change: func(e *env) { e.remember("address", clusterIP("web", 4, 80)); e.remove("web") },
		checks: []check{
			goesOn("pod", "local-1"), goesOn("host", "local-1"),
			tcp("client", remembered("address"), "dropped"),
		},
	}},
}, {
	name: "an unconnected UDP socket stays with one server", section: "3.6",
	steps: []step{{
		change: func(e *env) { e.service("dns", onUDP); e.pods("dns", "local-1", "local-2", "remote-1", "remote-2") },
		checks: []check{
			{what: "a new unconnected socket", kubeProxy: "opened", observe: openedUnconnected("u", "client")},
			staysWith("u"),
			{what: "a new unconnected socket of the host", kubeProxy: "opened", observe: openedUnconnected("h", "host")},
			staysWith("h"),
		},
	}},
}, {
	name: "UDP moves when its server goes", section: "8.4",
	steps: []step{{
		change: func(e *env) { e.service("dns", onUDP, ofType(corev1.ServiceTypeNodePort)); e.pods("dns", "local-1") },
		checks: []check{
			opens("connected", "udp", "client", clusterIP("dns", 4, 80), "local-1"),
			opens("connected6", "udp", "client", clusterIP("dns", 6, 80), "local-1"),
			opens("host", "udp", "host", clusterIP("dns", 4, 80), "local-1"),
			opens("node port", "udp", "client", nodePort("dns", node4, 80), "local-1"),
			opensUnconnected("unconnected", "client", clusterIP("dns", 4, 80), "local-1"),
			opensUnconnected("host unconnected", "host", nodePort("dns", node4, 80), "local-1"),
		},
	}, {
		name:   "another takes its place",
		change: func(e *env) { e.pods("dns", "remote-1"); e.end("dns", "local-1") },
		checks: []check{
			recovers("connected", "remote-1").except("udp-socket-ended", "remote-1 by a new socket"),
			recovers("connected6", "remote-1").except("udp-socket-ended", "remote-1 by a new socket"),
			recovers("host", "remote-1").except("udp-socket-ended", "remote-1 by a new socket"),
			recovers("node port", "remote-1").except("udp-socket-ended", "remote-1 by a new socket"),
			goesOn("unconnected", "remote-1"), goesOn("host unconnected", "remote-1"),
		},
	}, {
		name: "the server takes another port",
		change: func(e *env) {
			e.update("dns", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort.IntVal = world.OtherPort })
		},
		checks: []check{
			recovers("connected", "remote-1:other").except("udp-socket-ended", "remote-1:other by a new socket"),
			goesOn("unconnected", "remote-1:other"),
		},
	}, {
		name:   "nobody is left",
		change: func(e *env) { e.end("dns", "remote-1") },
		checks: []check{
			goesOn("unconnected", "dropped").except("refused-datagram", "refused"),
		},
	}},
}, {
	name: "a UDP client that was there before the first server is answered", section: "8.2",
	steps: []step{{
		change: func(e *env) { e.service("dns", onUDP) },
		checks: []check{
			opens("connected", "udp", "client", clusterIP("dns", 4, 80), "refused"),
			opensUnconnected("unconnected", "client", clusterIP("dns", 4, 80), "dropped").except("refused-datagram", "refused"),
		},
	}, {
		name:   "the first server",
		change: func(e *env) { e.pods("dns", "remote-1") },
		checks: []check{
			recovers("connected", "remote-1").except("udp-refused-at-connect", "remote-1 by a new socket"),
			goesOn("unconnected", "remote-1"),
		},
	}},
}, {
	name: "UDP of a terminating server stays while it serves", section: "8.2",
	steps: []step{{
		change: func(e *env) { e.service("dns", onUDP); e.pods("dns", "local-1") },
		checks: []check{
			opens("connected", "udp", "client", clusterIP("dns", 4, 80), "local-1"),
			opensUnconnected("unconnected", "client", clusterIP("dns", 4, 80), "local-1"),
		},
	}, {
		name:   "it terminates, another is ready",
		change: func(e *env) { e.pods("dns", "remote-1"); e.terminate("dns", "local-1") },
		checks: []check{
			goesOn("connected", "local-1"),
			goesOn("unconnected", "local-1").except("udp-leaves-at-once", "remote-1"),
			udp("client", clusterIP("dns", 4, 80), "remote-1 as own"),
		},
	}},
}}

// openedUnconnected opens a socket without a word about who answers.
func openedUnconnected(name, from string) func(*env, *world.World, string) string {
	inner := opensUnconnected(name, from, clusterIP("dns", 4, 80), "")
	return func(e *env, w *world.World, want string) string {
		switch answer := inner.observe(e, w, want); answer {
		case "local-1", "local-2", "remote-1", "remote-2":
			return "opened"
		default:
			return answer
		}
	}
}

// hairpinCases are section 5.3: a pod that dials its own Service.
var hairpinCases = []testCase{{
	name: "a pod reaches itself through its Service", section: "5.3",
	steps: []step{{
		change: func(e *env) {
			e.service("web", onBoth, ofType(corev1.ServiceTypeNodePort))
			e.pods("web", "local-1")
		},
		checks: []check{
			tcp("local-1", clusterIP("web", 4, 80), "local-1 as node").except(hairpinSource, "local-1 as own"),
			tcp("local-1", clusterIP("web", 6, 80), "local-1 as node").except(hairpinSource, "local-1 as own"),
			udp("local-1", clusterIP("web", 4, 80), "local-1 as node").except(hairpinSource, "local-1 as own"),
			datagram("local-1", clusterIP("web", 4, 80), "local-1 as node").except(hairpinSource, "local-1 as own"),
			tcp("local-1", nodePort("web", node4, 80), "local-1 as node").except(hairpinSource, "local-1 as own"),
		},
	}, {
		name:   "and others",
		change: func(e *env) { e.pods("web", "local-2", "remote-1") },
		checks: []check{
			tcp("local-1", clusterIP("web", 4, 80), "local-1 local-2 remote-1 as node+own").
				except(hairpinSource, "local-1 local-2 remote-1 as own"),
		},
	}},
}}
