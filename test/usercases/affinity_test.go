// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

// sticky is a Service of both families and protocols with session affinity.
func sticky(number int, seconds int, conditions string, pods ...*lab.Process) []string {
	return both("shop", number, affinityFields(seconds), conditions, pods...)
}

func affinityFields(seconds int) string {
	return fmt.Sprintf("sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}", seconds)
}

// Case A08: a binding to an endpoint that may not be used any more is none, on the first try, however it left; the
// next binding stays when the endpoint comes back.
func TestABindingEndsWithItsEndpointAndTheNextOneStays(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	pods := []*lab.Process{agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b")}
	w.Write("shop", sticky(40, 10800, isReady, pods...)...)
	w.StartAgent()
	gone := func(how string, pod *lab.Process) []string {
		rest := others(pods, pod.Name)
		if how == "" {
			return sticky(40, 10800, isReady, rest...)
		}
		return append(sticky(40, 10800, isReady, rest...), rename(dualSlices("shop", bothTargets, how, pod))...)
	}
	type dial struct {
		client  *lab.Process
		network string
		to      netip.AddrPort
	}
	bound := map[dial]struct{}{}
	for _, client := range append(clients(w), clients(w)[0]) {
		for _, to := range forms(40, 80) {
			for _, network := range []string{tcp, udp} {
				bound[dial{client, network, to}] = struct{}{}
				expectOnly(t, client, network, to, agentlab.Reach(client, network, to))
			}
		}
	}
	for _, how := range []string{"", isUnready, isLeaving, hasNoServer} {
		for _, leaving := range pods {
			stays := others(pods, leaving.Name)[0]
			w.Write("shop", gone(how, leaving)...)
			awaitUsable(w, "shop", stays)
			for d := range bound {
				expectReached(t, d.client, d.network, d.to, stays.Name)
			}
			w.Write("shop", sticky(40, 10800, isReady, pods...)...)
			awaitUsable(w, "shop", pods...)
			for d := range bound {
				expectOnly(t, d.client, d.network, d.to, stays.Name)
			}
		}
	}
}

// Case A09: each new connection renews a binding, nothing else does; without one it expires.
func TestABindingIsRenewedByNewConnectionsAloneAndExpires(t *testing.T) {
	t.Parallel()
	const seconds = 3
	w := agentlab.New(t)
	var pods []*lab.Process
	for i := range 8 {
		pods = append(pods, agentlab.Serve(w.Node, fmt.Sprintf("s%d", i)))
	}
	w.Write("shop", sticky(41, seconds, isReady, pods...)...)
	w.StartAgent()
	client := w.Node.Pod(lab.PodOptions{}).Process()
	to := forms(41, 80)[0]
	first, renewed := agentlab.Reach(client, tcp, to), time.Now()
	for began := time.Now(); time.Since(began) < 2*seconds*time.Second; { // twice the timeout, renewed all the time
		w.Eventually("a part of the time is over", func() (bool, string) {
			left := bindings(w, "shop")[0].RemainingSeconds
			return left < seconds, fmt.Sprint(left)
		})
		got := agentlab.Reach(client, tcp, to)
		if got != first && time.Since(renewed) < seconds*time.Second {
			t.Fatalf("a binding that is renewed leads from %s to %s", first, got)
		}
		first, renewed = got, time.Now() // on a machine that takes its time it may have expired
	}
	open := client.Dial(tcp, to)
	flow := client.Dial(udp, forms(41, 80)[0])
	began := time.Now()
	w.Eventually("the bindings have expired", func() (bool, string) {
		open.Exchange("an open connection renews nothing")
		flow.Exchange("nor does a connected UDP socket")
		all := bindings(w, "shop")
		for _, b := range all {
			if b.State != "expired" {
				return false, fmt.Sprint(all)
			}
		}
		return true, ""
	})
	if took := time.Since(began); took < (seconds-1)*time.Second {
		t.Errorf("expired after %s, before its time", took)
	}
	// An expired binding binds no more: of 20 pods some choose another server than before.
	bound := map[*lab.Process]string{}
	for range 20 {
		pod := w.Node.Pod(lab.PodOptions{}).Process()
		bound[pod] = agentlab.Reach(pod, tcp, to)
	}
	w.Eventually("expired", func() (bool, string) {
		all := bindings(w, "shop")
		ok := true
		for _, b := range all {
			ok = ok && b.State == "expired"
		}
		return ok, fmt.Sprint(all)
	})
	moved := 0
	for pod, before := range bound {
		if agentlab.Reach(pod, tcp, to) != before {
			moved++
		}
	}
	if moved == 0 { // by chance once in 10^18
		t.Error("20 expired bindings all led to the same servers again")
	}
}

// Case A09, who is one client: each pod is one, all processes of the node are one, on every address of a service port.
func TestEachPodIsAClientAndTheNodeIsOne(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	var pods []*lab.Process
	for i := range 8 {
		pods = append(pods, agentlab.Serve(w.Node, fmt.Sprintf("s%d", i)))
	}
	ports := "[{name: u, port: 80, protocol: UDP, nodePort: 30086}, {name: t, port: 80, nodePort: 30086}]"
	w.Write("shop", append([]string{dual("shop", 42, "type: NodePort, externalIPs: [192.0.2.42], "+affinityFields(86400), ports)},
		dualSlices("shop", bothTargets, isReady, pods...)...)...)
	w.StartAgent()
	addresses := []netip.AddrPort{forms(42, 80)[0], forms(42, 80)[2], agentlab.At("192.0.2.42:80"),
		netip.AddrPortFrom(w.Node.Address4, 30086)}
	expectAll := func(client *lab.Process, want string) {
		t.Helper()
		for _, to := range addresses {
			expectOnly(t, client, tcp, to, want)
		}
	}
	bound := map[string]string{}
	var from []*lab.Process
	for i := range 6 {
		pod := w.Node.Pod(lab.PodOptions{Name: fmt.Sprintf("client-%d", i)})
		from = append(from, pod.Process(), pod.Process())
	}
	from = append(from, w.Node.Process(), w.Node.Process())
	distinct := map[string]bool{}
	for _, client := range from {
		got := agentlab.Reach(client, tcp, addresses[0])
		if before, known := bound[client.Name]; known && before != got {
			t.Errorf("two processes of %s are bound to %s and %s", client.Name, before, got)
		}
		bound[client.Name] = got
		distinct[got] = true
		expectAll(client, got)
	}
	if len(distinct) == 1 {
		t.Error("seven clients share one binding") // by chance once in 260,000
	}
	all := bindings(w, "shop")
	nodes := 0
	for _, b := range all {
		if b.RemainingSeconds < 86000 {
			t.Errorf("%s is bound for %d s of 86400", b.ClientAddress, b.RemainingSeconds)
		}
		if b.Node {
			nodes++
		}
	}
	if len(all) != 7 || nodes != 1 {
		t.Errorf("%d bindings, %d of the node, want 7 and 1: %+v", len(all), nodes, all)
	}
	// Bindings outlive the agent, and the start of another.
	w.Agent.Kill()
	for _, client := range from {
		expectAll(client, bound[client.Name])
	}
	w.StartAgent()
	for _, client := range from {
		expectAll(client, bound[client.Name])
	}
}

// Case A09, its family: the time that a Service asks for is changed while bindings exist.
func TestAChangedTimeIsThatOfBindingsThatExist(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	pods := []*lab.Process{agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b")}
	w.Write("shop", sticky(43, 3600, isReady, pods...)...)
	w.StartAgent()
	client, to := w.Node.Pod(lab.PodOptions{}).Process(), forms(43, 80)[0]
	first := agentlab.Reach(client, tcp, to)
	remaining := func(most int) {
		t.Helper()
		w.Eventually(fmt.Sprintf("bound for at most %d s", most), func() (bool, string) {
			all := bindings(w, "shop")
			return len(all) == 1 && all[0].RemainingSeconds <= most && all[0].RemainingSeconds > most-60, fmt.Sprint(all)
		})
	}
	remaining(3600)
	for _, seconds := range []int{86400, 100, 65536 + 50} {
		w.Write("shop", sticky(43, seconds, isReady, pods...)...)
		remaining(seconds)
		expectOnly(t, client, tcp, to, first)
	}
	w.Write("shop", both("shop", 43, "sessionAffinity: None", isReady, pods...)...)
	w.Eventually("no affinity, both are reached", func() (bool, string) {
		got := client.Connects(tcp, to, 40)
		return got.Servers["a"] > 0 && got.Servers["b"] > 0, fmt.Sprint(got.Servers)
	})
	// A time that the API does not allow is a fault of the object.
	mark := len(w.LogText())
	w.Write("shop", sticky(43, 86401, isReady, pods...)...)
	awaitLog(w, mark, "86401", "timeoutSeconds")
	if said := w.LogText()[mark:]; strings.Contains(said, "panic") {
		t.Error(said)
	}
}
