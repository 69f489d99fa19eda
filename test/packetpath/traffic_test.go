// SPDX-License-Identifier: Apache-2.0

package packetpath

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

func TestTrafficGoesWhereManifestsSay(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, l.layout)
			pod := agentlab.Serve(w.Node, "pod")
			w.service("near", 1, "", w.near)
			w.service("far", 2, "", w.far)
			w.service("local", 3, "externalTrafficPolicy: Local, healthCheckNodePort: 32003", w.near, w.far)
			w.service("elsewhere", 4, "externalTrafficPolicy: Local, healthCheckNodePort: 32004", w.far)
			w.service("nobody", 5, "")
			w.service("self", 6, "", pod)
			w.service("sticky", 7, "sessionAffinity: ClientIP", w.near, w.far, pod)
			w.service("open", 8, "loadBalancerSourceRanges: [172.20.0.0/24, 'fd00:172:20::/64']", w.near)
			w.service("closed", 9, "loadBalancerSourceRanges: [192.0.2.0/24, '2001:db8:9::/64']", w.near)
			w.start(l.flags...)
			for _, s := range w.sides() {
				for _, network := range networks {
					t.Run(s.name+" "+network, func(t *testing.T) {
						w.outside(t, s, network)
						w.inside(t, s, network, pod)
						w.refused(t, s, network, pod)
						w.remembered(t, s, network)
					})
				}
			}
			w.silent(t, pod)
		})
	}
}

// outside: the client's address is kept on this node, and replaced for another one.
func (w *world) outside(t *testing.T, s side, network string) {
	t.Helper()
	for _, to := range s.frontends(1) {
		w.expect(t, w.client, network, to, "near", s.client)
	}
	for _, to := range s.frontends(2) {
		w.expect(t, w.client, network, to, "far", s.node)
	}
	for range 4 {
		w.expect(t, w.client, network, s.frontends(3)["node port"], "near", s.client)
	}
	w.expect(t, w.client, network, s.frontends(8)["load-balancer address"], "near", s.client)
	w.expect(t, w.client, network, s.frontends(9)["node port"], "near", s.client)
}

// inside: pods keep their address, but for the one that reaches itself; so does the node.
func (w *world) inside(t *testing.T, s side, network string, pod *lab.Process) {
	t.Helper()
	self := pod.Address(s.number)
	w.expect(t, pod, network, s.clusterIP(1), "near", self)
	w.expect(t, pod, network, s.clusterIP(2), "far", self)
	if server, seen := ask(pod, network, s.clusterIP(6)); server != "pod" || seen == self {
		t.Errorf("a pod that dials its own Service reaches %s, which sees %s", server, seen)
	}
	host := w.Node.Process()
	defer host.Kill()
	if server, _ := ask(host, network, s.clusterIP(1)); server != "near" {
		t.Errorf("from the node %s is reached, want near", server)
	}
	if server, _ := ask(host, network, s.clusterIP(2)); server != "far" {
		t.Errorf("from the node %s is reached, want far", server)
	}
}

// refused: at once, and with the errno of a closed port.
func (w *world) refused(t *testing.T, s side, network string, pod *lab.Process) {
	t.Helper()
	undefined := netip.AddrPortFrom(s.clusterIP(1).Addr(), 81)
	for _, to := range []netip.AddrPort{s.clusterIP(5), undefined} {
		if got, _ := ask(pod, network, to); got != "ECONNREFUSED" {
			t.Errorf("%s to %s from a pod: %s, want ECONNREFUSED", network, to, got)
		}
	}
	for kind, to := range s.frontends(5) {
		if got, _ := ask(w.client, network, to); got != "ECONNREFUSED" {
			t.Errorf("%s to the %s %s: %s, want ECONNREFUSED", network, kind, to, got)
		}
	}
}

// remembered: all connections of a client go to one backend.
func (w *world) remembered(t *testing.T, s side, network string) {
	t.Helper()
	first, _ := ask(w.client, network, s.frontends(7)["node port"])
	for range 8 {
		if again, _ := ask(w.client, network, s.frontends(7)["external address"]); again != first {
			t.Errorf("with session affinity %s answers after %s", again, first)
		}
	}
}

// silent: what is dropped gets no answer. All are asked at once, for each answer is waited for.
func (w *world) silent(t *testing.T, pod *lab.Process) {
	t.Helper()
	type question struct {
		client  *lab.Process
		network string
		to      netip.AddrPort
	}
	var questions []question
	for _, s := range w.sides() {
		for _, network := range networks {
			questions = append(questions,
				question{w.client, network, s.frontends(4)["node port"]},
				question{w.client, network, s.frontends(9)["load-balancer address"]},
				question{pod, network, s.clusterIP(99)})
		}
	}
	answers := make(chan string, len(questions))
	for _, q := range questions {
		go func() {
			got, _ := ask(q.client, q.network, q.to)
			if got != process.Timeout {
				answers <- fmt.Sprintf("%s from %s to %s: %s, want silence", q.network, q.client.Name, q.to, got)
				return
			}
			answers <- ""
		}()
	}
	for range questions {
		if wrong := <-answers; wrong != "" {
			t.Error(wrong)
		}
	}
}
