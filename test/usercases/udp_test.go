// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// sender is an unconnected UDP socket that keeps its source port.
type sender struct {
	*lab.Socket
	client *lab.Process
	to     netip.AddrPort
	port   uint16
}

// senders are one for each client and form of the address.
func senders(w *agentlab.World, number int, from ...*lab.Process) []*sender {
	w.T.Helper()
	var all []*sender
	for _, client := range from {
		for i, to := range forms(number, 80) {
			s := &sender{client: client, to: to, port: uint16(20000 + 10*number + i)}
			bind := netip.AddrPortFrom(netip.IPv4Unspecified(), s.port)
			if familyOf(to) == 6 {
				bind = netip.AddrPortFrom(netip.IPv6Unspecified(), s.port)
			}
			s.Socket = client.Open(process.SocketRequest{Network: udp, Family: familyOf(to), Bind: bind})
			if !s.OK() {
				w.T.Fatalf("bind %s: %s", bind, s.Errno)
			}
			all = append(all, s)
		}
	}
	return all
}

func (s *sender) String() string { return fmt.Sprintf("%s to %s", s.client.Name, s.to) }

// ask is the server that answers a datagram, or the errno; an answer that does not come from the frontend, or was not
// sent from the socket's own port, is described.
func (s *sender) ask(t *testing.T) string {
	t.Helper()
	answer := s.ExchangeWith(s.to, "who")
	if !answer.OK() {
		return answer.Errno
	}
	if answer.From != s.to || answer.Peer.Port() != s.port {
		t.Errorf("%s: the answer comes from %s, and the server saw port %d instead of %d",
			s, answer.From, answer.Peer.Port(), s.port)
	}
	return answer.Server
}

// awaitAll waits until each sender has this answer.
func awaitAll(t *testing.T, w *agentlab.World, want string, all []*sender) {
	t.Helper()
	for _, s := range all {
		w.Eventually(fmt.Sprintf("%s: %s", s, want), func() (bool, string) {
			got := s.ask(t)
			return got == want, got
		})
	}
}

// Cases A01 and B01: whatever takes the last endpoint away, an unconnected socket learns it, sends no datagram to who
// is gone, and finds who comes, with the same source port throughout.
func TestAnUnconnectedUDPSocketLearnsThatNobodyIsLeftAndFindsWhoComes(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b")
	service := dual("stats", 1, "", bothPorts)
	at := func(conditions string, pods ...*lab.Process) []string {
		return append([]string{service}, dualSlices("stats", bothTargets, conditions, pods...)...)
	}
	w.Write("stats", at(isReady, a)...)
	w.StartAgent()
	all := senders(w, 1, clients(w)...)
	for _, row := range []struct {
		name      string
		manifests []string
	}{
		{"empty slices", at(isReady)},
		{"no slices", []string{service}},
		{"not ready", at(isUnready, a)},
		{"leaving and not serving", at(hasNoServer, a)},
		{"a port of another name", append([]string{service},
			dualSlices("stats", "[{name: other, port: 8080, protocol: UDP}]", isReady, a)...)},
		{"a port of another protocol", append([]string{service},
			dualSlices("stats", "[{name: u, port: 8080, protocol: TCP}]", isReady, a)...)},
	} {
		w.Run(row.name, func(t *testing.T) {
			awaitAll(t, w, "a", all)
			began := time.Now()
			w.Write("stats", row.manifests...)
			awaitAll(t, w, refused, all)
			within(t, "refused", time.Second, began)
			capture := a.Capture("")
			for range 20 {
				for _, s := range all {
					if sent := s.Send(s.to, "x"); sent.Errno != refused {
						t.Fatalf("%s: %q, want %s", s, sent.Errno, refused)
					}
				}
			}
			if n := packets(capture.Stop(), toPods(a)); n > 0 {
				t.Errorf("%d packets to the backend that has gone", n)
			}
			w.Write("stats", at(isReady, b)...)
			awaitAll(t, w, "b", all)
			w.Write("stats", at(isReady, a)...)
		})
	}
	awaitAll(t, w, "a", all)
	w.Remove("stats")
	w.Eventually("nothing is programmed", func() (bool, string) {
		left := w.Shunt("services", "-o", "json")
		return left == "[]\n", left
	})
	capture := a.Capture("")
	for _, s := range all {
		s.Send(s.to, "x")
	}
	if n := packets(capture.Stop(), toPods(a)); n > 0 {
		t.Errorf("%d packets to the backend of a Service that has gone", n)
	}
}

// Case A03: one socket is one flow.
func TestTheDatagramsOfOneSocketGoToOneBackendUntilItGoes(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	pods := []*lab.Process{agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b"), agentlab.Serve(w.Neighbour, "c")}
	w.Write("game", both("game", 3, "", isReady, pods...)...)
	w.StartAgent()
	all := append(senders(w, 3, clients(w)...), senders(w, 3, clients(w)[0])...)
	one := func(s *sender, of ...*lab.Process) string {
		t.Helper()
		first := s.ask(t)
		if named(of, first) == nil {
			t.Fatalf("%s: answered by %s", s, first)
		}
		for range 19 {
			if next := s.ask(t); next != first {
				t.Fatalf("%s: answered by %s, before by %s", s, next, first)
			}
		}
		return first
	}
	for _, s := range all {
		first := one(s, pods...)
		left := others(pods, first)
		w.Write("game", both("game", 3, "", isReady, left...)...)
		w.Eventually("the backend is left", func() (bool, string) {
			got := s.ask(t)
			return got != first, got
		})
		second := one(s, left...)
		w.Write("game", both("game", 3, "", isReady, pods...)...)
		w.Eventually("the first backend is back", func() (bool, string) {
			result := s.client.Connects(tcp, s.to, 10)
			return result.Servers[first] > 0, fmt.Sprint(result.Servers)
		})
		if third := one(s, pods...); third != second {
			t.Errorf("%s: a backend that comes back takes the flow from %s to %s", s, second, third)
		}
	}
}

// Cases A02 and B03: a connected socket does not send into the void for the rest of its life.
func TestAConnectedUDPSocketOfABackendThatIsGoneGetsAnError(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b")
	dns := func(conditions string, pods ...*lab.Process) []string { return both("dns", 2, "", conditions, pods...) }
	w.Write("dns", dns(isReady, a)...)
	w.Write("more", both("more", 20, "", isReady, a)...)
	w.StartAgent()
	from := clients(w)
	onlyTCP := append([]string{dual("dns", 2, "", "[{name: t, port: 80, protocol: TCP}]")},
		dualSlices("dns", bothTargets, isReady, a)...)
	for _, row := range []struct {
		name string
		gone func()
	}{
		{"another takes its place", func() { w.Write("dns", dns(isReady, b)...) }},
		{"nobody takes its place", func() { w.Write("dns", dns(isReady)...) }},
		{"it is not ready and another is", func() {
			w.Write("dns", append(dns(isUnready, a), rename(dualSlices("dns", bothTargets, isReady, b))...)...)
		}},
		{"the Service is deleted", func() { w.Remove("dns") }},
		{"the Service becomes headless", func() {
			w.Write("dns", agentlab.Service("dns", "{clusterIP: None, ports: "+bothPorts+"}"))
		}},
		{"the Service keeps its TCP port alone", func() { w.Write("dns", onlyTCP...) }},
		{"the pods serve another port", func() {
			slices := dualSlices("dns", "[{name: u, port: 8081, protocol: UDP}]", isReady, a)
			w.Write("dns", append(dns(isReady)[:1], slices...)...)
		}},
		{"while no agent runs, another takes its place", func() {
			w.Agent.Kill()
			w.Write("dns", dns(isReady, b)...)
			w.StartAgent()
		}},
		{"while no agent runs, the Service is deleted", func() {
			w.Agent.Kill()
			w.Remove("dns")
			w.StartAgent()
		}},
	} {
		w.Run(row.name, func(t *testing.T) {
			w.Write("dns", dns(isReady, a)...)
			w.Eventually("the Service is there", func() (bool, string) {
				all := lines(frontends(w))
				return len(all) == 8, list(all)
			})
			awaitUsable(w, "dns", a)
			writers, readers, bystanders := connected(t, from, 2), connected(t, from, 2), connected(t, from, 20)
			for _, client := range from { // dialled by its own address, it is nobody's business
				bystanders = append(bystanders, client.Dial(udp, netip.AddrPortFrom(a.Address4, 8080)))
			}
			began := time.Now()
			row.gone()
			for _, s := range writers {
				w.Eventually("an error of send", func() (bool, string) {
					sent := s.Send(netip.AddrPort{}, "x")
					return !sent.OK(), "sent"
				})
			}
			for _, s := range readers {
				w.Eventually("an error of receive", func() (bool, string) {
					got := s.Receive(10 * time.Millisecond)
					return !got.OK() && got.Errno != process.Timeout, got.Errno
				})
			}
			within(t, "ended", 2*time.Second, began)
			for _, s := range bystanders {
				if got := s.Exchange("who"); got.Server != "a" {
					t.Errorf("a socket of a backend that is still there: %s%s", got.Server, got.Errno)
				}
				s.Close()
			}
		})
	}
}

// Case A02, its other side: as long as an endpoint serves, a connected socket is left alone, also when new flows are
// given to others.
func TestAConnectedUDPSocketOfABackendThatServesGoesOn(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Neighbour, "a"), agentlab.Serve(w.Node, "b")
	zones := func(zone string, pod *lab.Process) []agentlab.Endpoint {
		endpoints := agentlab.Ready(pod)
		endpoints[0].Hints = "{forZones: [{name: " + zone + "}]}"
		return endpoints
	}
	w.Write("node", nodeManifest(w.Node, "topology.kubernetes.io/zone: za", w.Node.Address4, w.Node.Address6))
	const port = "[{name: '', port: 8080, protocol: UDP}]"
	write := func(fields string, endpoints ...agentlab.Endpoint) {
		w.Write("dns", agentlab.Service("dns", "{"+fields+"clusterIP: 10.96.0.8, ports: [{port: 80, protocol: UDP}]}"),
			agentlab.Slice("dns", "dns-a", port, endpoints...))
	}
	ready := func(pods ...*lab.Process) []agentlab.Endpoint { return agentlab.Ready(pods...) }
	to := forms(8, 80)[0]
	write("", ready(a)...)
	w.StartAgent()
	from := clients(w)
	for _, row := range []struct {
		name   string
		change func()
	}{
		{"it leaves and serves", func() { write("", append(agentlab.Having(isLeaving, a), ready(b)...)...) }},
		{"hints are for others", func() { write("", append(zones("zb", a), zones("za", b)...)...) }},
		{"the policy is Local", func() {
			write("internalTrafficPolicy: Local, ", append(onNode(w.Neighbour, ready(a)), onNode(w.Node, ready(b))...)...)
		}},
	} {
		w.Run(row.name, func(t *testing.T) {
			write("", ready(a)...)
			var open []*lab.Socket
			for _, client := range from {
				w.AwaitReached(client, udp, to, "a")
				open = append(open, client.Dial(udp, to))
			}
			row.change()
			for _, client := range from {
				w.AwaitReached(client, udp, to, "b")
			}
			// a is none any more, and the sockets have been looked at.
			awaitElements(w, map[string]int{maps.MapBackends: 1})
			for _, s := range open {
				for range 10 {
					if got := s.Exchange("who"); got.Server != "a" {
						t.Fatalf("an open socket: %s%s", got.Server, got.Errno)
					}
				}
			}
			write("", append(agentlab.Having(hasNoServer, a), ready(b)...)...)
			for _, s := range open {
				w.Eventually("it has ended with its endpoint", func() (bool, string) {
					got := s.Exchange("who")
					return !got.OK() && got.Errno != process.Timeout, got.Server + got.Errno
				})
				s.Close()
			}
		})
	}
}

// Case B03, its third socket: sockets that share a local port. Those that are connected to who is gone end, all of
// them, and the unconnected one among them keeps its port and goes on.
func TestOfSocketsOnOnePortTheConnectedOnesEnd(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b")
	w.Write("dns", both("dns", 7, "", isReady, a)...)
	w.StartAgent()
	type opened struct {
		client *lab.Process
		port   int
	}
	var all []opened
	pod := w.Node.Pod(lab.PodOptions{})
	for _, start := range []func() *lab.Process{pod.Process, w.Node.Process} {
		for _, to := range forms(7, 80)[1:] { // the sockets are IPv6 ones
			client := start()
			var result groupResult
			w.Must(client.Call("group-open", groupRequest{Address: to, Connected: 4}, &result))
			if got := fmt.Sprint(result.Connected, result.Unconnected); got != "[   ]" {
				t.Fatalf("%s: %s", to, got)
			}
			all = append(all, opened{client, result.Port})
		}
	}
	w.Write("dns", both("dns", 7, "", isReady, b)...)
	for _, o := range all {
		w.Eventually("each connected socket has ended", func() (bool, string) {
			var result groupResult
			w.Must(o.client.Call("group-send", struct{}{}, &result))
			if result.Unconnected != "" || result.Port != o.port {
				t.Fatalf("the unconnected socket: %q, port %d, before %d", result.Unconnected, result.Port, o.port)
			}
			return !slices.Contains(result.Connected, ""), fmt.Sprintf("%q", result.Connected)
		})
	}
}

// rename gives slices other names, so that they stand beside those of the same Service.
func rename(slices []string) []string {
	for i := range slices {
		slices[i] = strings.Replace(slices[i], "\n  name: ", "\n  name: more-", 1)
	}
	return slices
}

// connected are connected UDP sockets, one for each client and form of the address, all at a.
func connected(t *testing.T, from []*lab.Process, number int) []*lab.Socket {
	t.Helper()
	var all []*lab.Socket
	for _, client := range from {
		for _, to := range forms(number, 80) {
			s := client.Dial(udp, to)
			if got := s.Exchange("who"); got.Server != "a" {
				t.Fatalf("%s from %s: %s%s", to, client.Name, got.Server, got.Errno)
			}
			all = append(all, s)
		}
	}
	return all
}

// Case B02: two Services share a backend, and one socket talks to both.
func TestEachReplyOfASharedBackendComesFromTheServiceThatWasAsked(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a := agentlab.Serve(w.Node, "a")
	w.Write("one", both("one", 5, "", isReady, a)...)
	w.Write("two", both("two", 6, "", isReady, a)...)
	w.StartAgent()
	for _, client := range clients(w) {
		for i, one := range forms(5, 80) {
			two := forms(6, 80)[i]
			socket := client.Open(process.SocketRequest{Network: udp, Family: familyOf(one)})
			order := []netip.AddrPort{one, two, two, one, one, two}
			for _, to := range order {
				if sent := socket.Send(to, "x"); !sent.OK() {
					t.Fatalf("send to %s: %s", to, sent.Errno)
				}
			}
			for n, to := range order {
				if from := socket.Receive(agentlab.Patience).From; from != to {
					t.Errorf("%s: reply %d to %s comes from %s", client.Name, n, to, from)
				}
			}
			for _, to := range []netip.AddrPort{one, two, one} { // the same socket, connected to each in turn
				if outcome := socket.Connect(to); !outcome.OK() {
					t.Fatalf("connect to %s: %s", to, outcome.Errno)
				}
				answer := socket.Exchange("who")
				if peer := socket.Inspect().Peer; peer != to || answer.From != to || answer.Server != "a" {
					t.Errorf("%s: connected to %s, getpeername says %s, the reply comes from %s %s",
						client.Name, to, peer, answer.From, answer.Errno)
				}
			}
		}
	}
}
