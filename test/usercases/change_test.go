// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// load is connections to an address that must not fail.
type load struct {
	*lab.Series
	what string
}

// startLoad connects to each address over TCP and UDP from a pod of its own.
func startLoad(w *agentlab.World, addresses ...netip.AddrPort) []load {
	var all []load
	for _, to := range addresses {
		for _, network := range []string{tcp, udp} {
			client := w.Node.Pod(lab.PodOptions{}).Process()
			all = append(all, load{client.StartConnects(process.ConnectsRequest{Network: network, Address: to}),
				fmt.Sprintf("%s %s", network, to)})
		}
	}
	return all
}

// stopLoad wants that no connection failed, and all reached one of the servers.
func stopLoad(t *testing.T, all []load, servers ...string) {
	t.Helper()
	total := 0
	for _, l := range all {
		result := l.Stop()
		total += result.Total()
		if result.Failed() > 0 || result.Total() == 0 {
			t.Errorf("%s: %v %v", l.what, result.Servers, result.Errnos)
		}
		for server := range result.Servers {
			if !strings.Contains(strings.Join(servers, " "), server) {
				t.Errorf("%s: a connection reached %s, want one of %v", l.what, server, servers)
			}
		}
	}
	t.Logf("%d connections meanwhile", total)
}

// anyOf chooses one of the values.
func anyOf[T any](random *rand.Rand, values ...T) T { return values[random.IntN(len(values))] }

// Case A19, its kind: whatever changes about a Service that has an endpoint for its clients before and after, no
// connection fails meanwhile.
func TestNoChangeOfAServiceFailsAConnection(t *testing.T) {
	t.Parallel()
	const changes = 60
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := agentlab.New(t)
	pods := []*lab.Process{agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b"), agentlab.Serve(w.Neighbour, "c"),
		agentlab.Serve(w.Neighbour, "d")}
	w.Write("node", nodeManifest(w.Node, "topology.kubernetes.io/zone: za", w.Node.Address4, w.Node.Address6))
	manifests := func() []string {
		fields := []string{"type: LoadBalancer", anyOf(random, "externalIPs: []", "externalIPs: [192.0.2.91]")}
		fields = append(fields, "internalTrafficPolicy: "+anyOf(random, "Cluster", "Local"),
			"externalTrafficPolicy: "+anyOf(random, "Cluster", "Local"))
		fields = append(fields, anyOf(random, "sessionAffinity: None", affinityFields(1), affinityFields(10800)))
		fields = append(fields, "loadBalancerSourceRanges: "+anyOf(random, "[]", "[10.244.0.0/16, 'fd00:10:244::/48']",
			"[10.244.1.0/24, 'fd00:10:244:1::/64', 10.9.0.0/16]", "[10.0.0.0/8, 'fd00::/8']"))
		name := anyOf(random, "t", "http") // the slices follow
		extra := anyOf(random, "", ", {name: extra, port: 81}")
		ports := fmt.Sprintf("[{name: u, port: 80, protocol: UDP, nodePort: 30091}, "+
			"{name: %s, port: 80, nodePort: 30091}%s]", name, extra)
		targets := fmt.Sprintf("[{name: u, port: 8080, protocol: UDP}, {name: %s, port: 8080}, "+
			"{name: extra, port: 8080}]", name)
		status := "\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.92}, {ip: '2001:db8::92'}" +
			anyOf(random, "", ", {ip: 192.0.2.93, ipMode: Proxy}", ", {ip: 192.0.2.93}") + "]}}"
		all := []string{dual("web", 99, strings.Join(fields, ", "), ports) + status}
		for n := range 1 + random.IntN(2) {
			var four, six []agentlab.Endpoint
			for i, pod := range pods {
				e := agentlab.Endpoint{Address: pod.Address4, Node: []string{w.Node.Name, w.Neighbour.Name}[i/2],
					Conditions: anyOf(random, isReady, isReady, "{ready: false}", isLeaving)}
				// All serve, so that no flow of UDP is cut, and a local one is always ready.
				if i == 0 {
					e.Conditions = isReady
				}
				if zone := anyOf(random, "za", "za", "zb", ""); zone != "" {
					e.Hints = "{forZones: [{name: " + zone + "}]}"
				}
				four = append(four, e)
				e.Address = pod.Address6
				six = append(six, e)
			}
			all = append(all, agentlab.Slice("web", fmt.Sprintf("web-4-%d", n), targets, four...),
				agentlab.Slice("web", fmt.Sprintf("web-6-%d", n), targets, six...))
		}
		return all
	}
	w.Write("web", manifests()...)
	w.StartAgent()
	running := startLoad(w, forms(99, 80)[0], forms(99, 80)[1], agentlab.At("192.0.2.92:80"), agentlab.At("[2001:db8::92]:80"),
		netip.AddrPortFrom(w.Node.Address4, 30091), netip.AddrPortFrom(w.Node.Address6, 30091))
	flow := w.Node.Pod(lab.PodOptions{}).Process().Open(process.SocketRequest{Network: udp, Family: 4})
	for i := range changes {
		w.Write("web", manifests()...)
		w.Write("marker", agentlab.Service("marker", fmt.Sprintf("{clusterIP: 10.96.1.%d, ports: [{port: 80}]}", 1+i)))
		w.Eventually("the change is programmed", func() (bool, string) {
			got := flow.ExchangeWith(forms(99, 80)[0], "x")
			if !got.OK() || got.From != forms(99, 80)[0] {
				t.Fatalf("an unconnected socket: %s, from %s", got.Errno, got.From)
			}
			probe := flow.Send(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 1, byte(1 + i)}), 80), "x")
			return probe.Errno == refused, probe.Errno
		})
	}
	stopLoad(t, running, "a", "b", "c", "d")
}

// Case A19, the contested address: the younger Service takes over in the moment in which the older one lets go.
func TestAContestedAddressIsHandedOverWithoutAGap(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	pods := map[string]*lab.Process{"old": agentlab.Serve(w.Node, "a"), "young": agentlab.Serve(w.Node, "b")}
	created := map[string]string{"old": "2024", "young": "2025"}
	number := map[string]int{"old": 100, "young": 101}
	write := func(name string, externalIPs string) {
		documents := both(name, number[name], "externalIPs: ["+externalIPs+"]", isReady, pods[name])
		w.Write(name, createdIn(created[name], documents)...)
	}
	const contested = "192.0.2.94, '2001:db8::94'"
	write("old", contested)
	write("young", contested)
	w.StartAgent()
	client := w.Node.Pod(lab.PodOptions{}).Process()
	addresses := []netip.AddrPort{agentlab.At("192.0.2.94:80"), agentlab.At("[2001:db8::94]:80")}
	running := startLoad(w, addresses...)
	for range 8 {
		for _, row := range []struct{ has, want string }{{"", "b"}, {contested, "a"}} {
			write("old", row.has)
			for _, to := range addresses {
				w.AwaitReached(client, tcp, to, row.want)
				expectOnly(t, client, udp, to, row.want)
			}
		}
	}
	stopLoad(t, running, "a", "b")
}
