// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

const (
	nodePortSpec = "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000"
	nodePorts    = "[{name: u, port: 80, protocol: UDP, nodePort: 30084}, {name: t, port: 80, protocol: TCP, nodePort: 30084}]"
	lbStatus     = "\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.30}]}}"
)

// health is the status that the health check port answers with.
func health(client *lab.Process, node *lab.Node) string {
	line := agentlab.HTTPGet(client, netip.AddrPortFrom(node.Address4, 31000), "/")
	_, status, _ := strings.Cut(strings.TrimSpace(line), " ")
	return status
}

// Cases A07 and B05: the last pod of a Service is still given new connections while it ends and serves, and none when
// it stops serving or somebody else is ready; what is open goes on throughout.
func TestTheLastPodOfAServiceServesUntilItStops(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b")
	from := clients(w)
	outside := w.Lab.Client(lab.ClientOptions{}).Process()
	addresses := append(forms(30, 80), agentlab.At("192.0.2.30:80"), netip.AddrPortFrom(w.Node.Address4, 30084),
		netip.AddrPortFrom(w.Node.Address6, 30084))
	for _, policies := range []struct{ name, fields string }{
		{"cluster-wide", "type: LoadBalancer"},
		{"external Local", nodePortSpec},
		{"both Local", nodePortSpec + ", internalTrafficPolicy: Local"},
		{"internal Local", "type: LoadBalancer, internalTrafficPolicy: Local"},
	} {
		w.Run(policies.name, func(t *testing.T) {
			write := func(endpoints ...agentlab.Endpoint) {
				t.Helper()
				var six []agentlab.Endpoint
				for _, e := range endpoints {
					pod := named([]*lab.Process{a, b}, map[netip.Addr]string{a.Address4: "a", b.Address4: "b"}[e.Address])
					e.Address = pod.Address6
					six = append(six, e)
				}
				w.Write("web", dual("web", 30, policies.fields, nodePorts)+lbStatus,
					agentlab.Slice("web", "web-4", bothTargets, endpoints...), agentlab.Slice("web", "web-6", bothTargets, six...))
			}
			local := func(conditions string) agentlab.Endpoint {
				return onNode(w.Node, agentlab.Having(conditions, a))[0]
			}
			remote := onNode(w.Neighbour, agentlab.Ready(b))[0]
			checked := strings.Contains(policies.fields, "healthCheckNodePort")
			expect := func(want string, status string) {
				t.Helper()
				w.AwaitReached(from[0], tcp, addresses[0], want)
				for _, client := range from {
					for _, to := range addresses {
						for _, network := range []string{tcp, udp} {
							w.AwaitReached(client, network, to, want)
						}
					}
					if want != refused {
						expectOnly(t, client, tcp, addresses[0], want)
					}
				}
				if checked {
					w.Eventually("health check "+status, func() (bool, string) {
						got := health(outside, w.Node)
						return strings.HasPrefix(got, status), got
					})
				}
			}
			write(local(isReady))
			if w.Agent == nil {
				w.StartAgent()
			}
			expect("a", "200")
			var open []*lab.Socket
			for _, client := range from {
				for _, to := range addresses {
					open = append(open, client.Dial(tcp, to))
				}
			}
			goesOn := func() {
				t.Helper()
				for _, s := range open {
					if got := s.Exchange("still there?"); got.Server != "a" {
						t.Errorf("an open connection: %s%s", got.Server, got.Errno)
					}
				}
			}
			goesOn()
			write(local(isLeaving))
			if checked { // what cannot be seen from connections, because they go on to the same pod
				expect("a", "503")
			}
			expect("a", "503")
			goesOn()
			write(local(hasNoServer))
			expect(refused, "503")
			goesOn()
			if !strings.Contains(policies.fields, "internalTrafficPolicy") {
				write(local(isLeaving), remote)
				expect("b", "503") // from inside the policy Local of external addresses does not bind
				goesOn()
			}
			write(remote)
			goesOn()
			for _, s := range open {
				s.Close()
			}
		})
	}
}

// Case B05, its UDP part: a socket moves from a pod that ends to one that is ready.
func TestAUDPFlowMovesFromAPodThatEndsToOneThatIsReady(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b")
	leaving := func(pods ...*lab.Process) []string {
		return append(both("dns", 31, "", isLeaving, a), rename(dualSlices("dns", bothTargets, isReady, pods...))...)
	}
	w.Write("dns", both("dns", 31, "", isReady, a)...)
	w.StartAgent()
	all := senders(w, 31, clients(w)...)
	awaitAll(t, w, "a", all)
	w.Write("dns", leaving()...)
	w.Eventually("the slices without endpoints are read", func() (bool, string) {
		return strings.Count(w.Shunt("backends", "default/dns"), "\n") == 1+4, w.Shunt("backends", "default/dns")
	})
	for range 5 {
		awaitAll(t, w, "a", all)
	}
	w.Write("dns", leaving(b)...)
	awaitAll(t, w, "b", all)
}

// Cases A21 and B04: whatever becomes of its endpoint, an open connection is nobody's business: nothing is sent on it,
// and as long as the pod answers it goes on. New connections go elsewhere.
func TestAnOpenConnectionIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b")
	from := clients(w)
	service := dual("web", 32, "type: NodePort", "[{name: u, port: 80, protocol: UDP, nodePort: 30085}, {name: t, port: 80, nodePort: 30085}]")
	at := func(conditions string, pods ...*lab.Process) []string {
		return append([]string{service}, dualSlices("web", bothTargets, conditions, pods...)...)
	}
	addresses := append(forms(32, 80), netip.AddrPortFrom(w.Node.Address4, 30085), netip.AddrPortFrom(w.Node.Address6, 30085))
	w.Write("web", at(isReady, a)...)
	w.StartAgent()
	for _, row := range []struct {
		name, next string
		backends   int
		change     func()
	}{
		{"leaves while it lives", "b", 4, func() { w.Write("web", at(isReady, b)...) }},
		{"is not ready", "b", 4, func() {
			w.Write("web", append(at(isReady, b), rename(dualSlices("web", bothTargets, isUnready, a))...)...)
		}},
		{"ends gracefully", "b", 4, func() {
			w.Write("web", append(at(isReady, b), rename(dualSlices("web", bothTargets, isLeaving, a))...)...)
		}},
		{"leaves with nobody left", refused, 0, func() { w.Write("web", at(isReady)...) }},
		{"loses its Service", "", 0, func() { w.Remove("web") }},
	} {
		w.Run(row.name, func(t *testing.T) {
			w.Write("web", at(isReady, a)...)
			var open []*lab.Socket
			for _, client := range from {
				for _, to := range addresses {
					w.AwaitReached(client, tcp, to, "a")
					s := client.Dial(tcp, to)
					if got := s.Exchange("x"); got.Server != "a" {
						t.Fatalf("%s: %s%s", to, got.Server, got.Errno)
					}
					open = append(open, s)
				}
			}
			w.Eventually("earlier connections have been closed", func() (bool, string) {
				capture := a.Capture("eth0")
				frontends(w) // takes a while
				n := packets(capture.Stop(), isUnicast)
				return n == 0, fmt.Sprint(n)
			})
			capture := a.Capture("eth0")
			row.change()
			switch row.next {
			case "b":
				awaitUsable(w, "web", b)
			case refused:
				awaitUsable(w, "web")
			default:
				awaitFrontends(w)
			}
			awaitElements(w, map[string]int{maps.MapBackends: row.backends}) // the old ones are collected, too
			if n := packets(capture.Stop(), isUnicast); n > 0 {
				t.Errorf("%d packets on idle connections", n)
			}
			for _, s := range open {
				if got := s.Exchange("x"); got.Server != "a" {
					t.Errorf("an open connection: %s%s", got.Server, got.Errno)
				}
				s.Close()
			}
			for _, client := range from {
				switch row.next {
				case "b":
					expectOnly(t, client, tcp, addresses[0], "b")
				case refused:
					expectReached(t, client, tcp, addresses[3], refused)
				}
			}
		})
	}
}
