// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/test/cluster/probe"
	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// testCase is a row: objects, and what clients see of them, in steps.
type testCase struct {
	name    string
	section string // of what kube-proxy does
	steps   []step
}

// step changes objects and then looks.
type step struct {
	name   string
	change func(e *env)
	checks []check
	// unsettled: nobody is there to program the change.
	unsettled bool
}

// check is one thing that a client sees, as text: "local-1 remote-1 as own", "refused", "dropped".
type check struct {
	what       string
	observe    func(e *env, w *world.World, want string) string
	kubeProxy  string
	difference string // of docs/differences.md, with
	shunt      string
}

// except says that shunt does something else, and under which name that is listed.
func (c check) except(difference, shunt string) check {
	c.difference, c.shunt = difference, shunt
	return c
}

// target is an address to dial, which may depend on what the API server gave out.
type target func(e *env) netip.AddrPort

// tcp dials from a client ("client", "host" or a server's name) many times.
func tcp(from string, to target, want string) check { return dial(process.TCP, false, from, to, want) }

// udp asks by connected sockets.
func udp(from string, to target, want string) check { return dial(process.UDP, false, from, to, want) }

// datagram asks by sendto.
func datagram(from string, to target, want string) check {
	return dial(process.UDP, true, from, to, want)
}

func dial(network string, unconnected bool, from string, to target, want string) check {
	what := network
	if unconnected {
		what += " sendto"
	}
	return check{
		what: what + " from " + from, kubeProxy: want,
		observe: func(e *env, w *world.World, want string) string {
			request := probe.Request{Network: network, To: to(e), Unconnected: unconnected, Count: 40, Timeout: 4 * time.Second}
			switch want {
			case probe.Dropped:
				request.Count, request.Timeout = 4, 700*time.Millisecond
			case probe.Refused:
				request.Count = 4
			}
			return e.dial(w, from, request)
		},
	}
}

// dial renders a series of connections.
func (e *env) dial(w *world.World, from string, request probe.Request) string {
	client := clientOf(w, from)
	result, err := probe.Run(client, request)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, strange := range result.Strange {
		e.t.Errorf("%s: %s", w.Name, strange)
	}
	var words []string
	for server := range result.Servers {
		words = append(words, server)
	}
	slices.Sort(words)
	if sources := sourcesSeen(client, result); len(words) > 0 {
		words = append(words, "as "+sources)
	}
	var failures []string
	for failure := range result.Failures {
		failures = append(failures, failure)
	}
	slices.Sort(failures)
	return strings.Join(append(words, failures...), " ")
}

func clientOf(w *world.World, name string) *lab.Process {
	switch name {
	case "client":
		return w.Client
	case "host":
		return w.Host
	case "outside":
		return w.Outside
	}
	return w.Servers[name]
}

// nodeAddresses are all addresses of the tested node.
var nodeAddresses = []netip.Addr{
	netip.MustParseAddr("172.20.0.10"), netip.MustParseAddr("fd00:172:20::a"),
	netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:10:244:1::1"),
}

// sourcesSeen names the addresses that the servers saw: "own", "node", or the address itself.
func sourcesSeen(client *lab.Process, result probe.Result) string {
	var names []string
	for source := range result.Sources {
		switch {
		case slices.Contains(nodeAddresses, source):
			names = append(names, "node")
		case source == client.Address4 || source == client.Address6:
			names = append(names, "own")
		default:
			names = append(names, source.String())
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), "+")
}

// run runs a case in a namespace of its own.
func (s *suite) run(t *testing.T, c testCase) {
	e := s.newEnv(t)
	for i, step := range c.steps {
		if step.change != nil {
			step.change(e)
		}
		if !step.unsettled {
			e.settle()
		}
		name := step.name
		if name == "" {
			name = fmt.Sprintf("step %d", i+1)
		}
		for _, check := range step.checks {
			e.compare(name, check)
		}
		if t.Failed() {
			return
		}
	}
}

// compare looks in both worlds. What is seen late is given a moment: that the marker is there says that all is
// programmed, not that the kernel has ended what was before.
func (e *env) compare(step string, c check) {
	e.t.Helper()
	wanted := map[*world.World]string{e.reference: c.kubeProxy, e.subject: c.kubeProxy}
	if c.difference != "" {
		wanted[e.subject] = c.shunt
	}
	for _, w := range e.worlds() {
		const patience = 3 * time.Second
		deadline := time.Now().Add(patience)
		seen := c.observe(e, w, wanted[w])
		for seen != wanted[w] && time.Now().Before(deadline) {
			seen = c.observe(e, w, wanted[w])
		}
		if seen != wanted[w] {
			e.t.Errorf("%s: %s: with %s: %q, want %q", step, c.what, w.Name, seen, wanted[w])
		}
	}
}
