// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

// balanced is a Service with a health port, and endpoints of which each is on a node.
func balanced(port int, endpoints ...agentlab.Endpoint) []string {
	return []string{
		agentlab.Service("web", fmt.Sprintf("{type: LoadBalancer, externalTrafficPolicy: Local, clusterIP: 10.96.7.2, "+
			"healthCheckNodePort: %d, ports: [{port: 80, protocol: TCP, nodePort: 30080}]}", port)),
		agentlab.Slice("web", "web-a", "[{name: '', port: 8080, protocol: TCP}]", endpoints...),
	}
}

func on(node *lab.Node, conditions string, pods ...*lab.Process) []agentlab.Endpoint {
	endpoints := agentlab.Having(conditions, pods...)
	for i := range endpoints {
		endpoints[i].Node = node.Name
	}
	return endpoints
}

// awaitHealth waits until a health port says that so many endpoints are on the node, as kube-proxy says it.
func awaitHealth(w *agentlab.World, port uint16, local int) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("health port %d counts %d", port, local), func() (bool, string) {
		got := get(w.Neighbour.Namespace, netip.AddrPortFrom(w.Node.Address4, port), "/healthz")
		status := map[bool]int{true: 200, false: 503}[local > 0]
		var body struct {
			Service             struct{ Namespace, Name string }
			LocalEndpoints      *int
			ServiceProxyHealthy bool
		}
		ok := json.Unmarshal([]byte(got.body), &body) == nil && got.status == status && body.LocalEndpoints != nil &&
			*body.LocalEndpoints == local && body.Service.Namespace == "default" && body.Service.Name == "web" &&
			body.ServiceProxyHealthy &&
			got.header.Get("X-Load-Balancing-Endpoint-Weight") == strconv.Itoa(local) &&
			got.header.Get("Content-Type") == "application/json" && got.header.Get("X-Content-Type-Options") == "nosniff"
		return ok, got.String()
	})
}

func TestAHealthPortCountsTheReadyEndpointsOfTheNodeAndClosesWithItsService(t *testing.T) {
	w := agentlab.New(t)
	a, b, away := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b"), agentlab.Serve(w.Neighbour, "away")
	const port, other = 31000, 31001
	ready := "{ready: true}"
	w.Write("node", nodeManifest(w.Node.Name, "", "", w.Node.Address4, w.Node.Address6))
	w.Write("web", balanced(port, append(on(w.Node, ready, a, b), on(w.Neighbour, ready, away)...)...)...)
	w.StartAgent()
	awaitHealth(w, port, 2)
	w.Write("web", balanced(port, append(on(w.Node, ready, a), on(w.Neighbour, ready, away)...)...)...)
	awaitHealth(w, port, 1)
	// One that ends still serves its connections; new ones are for other nodes.
	w.Write("web", balanced(port, append(on(w.Node, "{ready: false, serving: true, terminating: true}", a),
		on(w.Neighbour, ready, away)...)...)...)
	awaitHealth(w, port, 0)
	w.Write("web", balanced(other, on(w.Node, ready, a)...)...)
	awaitHealth(w, other, 1)
	awaitClosed(w, port)
	w.Remove("web")
	awaitClosed(w, other)
}

func awaitClosed(w *agentlab.World, port uint16) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("health port %d is closed", port), func() (bool, string) {
		got := get(w.Neighbour.Namespace, netip.AddrPortFrom(w.Node.Address4, port), "/")
		return got.status == 0, got.String()
	})
}

func TestANodeThatIsAboutToGoIsNotHealthyButAlive(t *testing.T) {
	w := agentlab.New(t)
	manifest := func(metadata, spec string) {
		w.Write("node", nodeManifest(w.Node.Name, metadata, spec, w.Node.Address4))
	}
	manifest("", "")
	w.StartAgent()
	await := func(when string, status int, eligible string) {
		t.Helper()
		w.Eventually(when, func() (bool, string) {
			got := get(w.Neighbour.Namespace, netip.AddrPortFrom(w.Node.Address4, healthz), "/healthz")
			var body struct{ Healthy, NodeEligible bool }
			err := json.Unmarshal([]byte(got.body), &body)
			return err == nil && got.status == status && body.Healthy && fmt.Sprint(body.NodeEligible) == eligible, got.String()
		})
		if got := get(w.Neighbour.Namespace, netip.AddrPortFrom(w.Node.Address4, healthz), "/livez"); got.status != 200 {
			t.Errorf("%s: /livez %s", when, got)
		}
	}
	await("a good node", 200, "true")
	manifest("", "taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]")
	await("the autoscaler's taint", 503, "false")
	manifest("", "taints: [{key: another, effect: NoSchedule}]")
	await("another taint", 200, "true")
	manifest("deletionTimestamp: '2026-01-01T00:00:00Z'", "")
	await("being deleted", 503, "false")
}

func TestNodePortsFollowTheAddressOfTheNodeObject(t *testing.T) {
	w := agentlab.New(t)
	second := netip.MustParseAddr("172.20.0.200")
	w.Must(w.Node.AddAddress("eth0", netip.PrefixFrom(second, 24)))
	server := agentlab.Serve(w.Node, "a")
	w.Write("node", nodeManifest(w.Node.Name, "", "", w.Node.Address4))
	w.Write("web", balanced(31000, on(w.Node, "{ready: true}", server)...)...)
	w.StartAgent()
	host := w.Node.Process()
	at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 30080) }
	w.AwaitReached(host, "tcp", at(w.Node.Address4), "a")
	if got := agentlab.Reach(host, "tcp", at(second)); got == "a" {
		t.Error("the node port is served at an address that is not the node's")
	}
	awaitHealth(w, 31000, 1)

	w.Write("node", nodeManifest(w.Node.Name, "", "", second))
	w.AwaitReached(host, "tcp", at(second), "a")
	w.Eventually("the node port leaves the old address", func() (bool, string) {
		got := agentlab.Reach(host, "tcp", at(w.Node.Address4))
		return got != "a", got
	})
	w.Eventually("the health port goes with it", func() (bool, string) {
		now := get(w.Neighbour.Namespace, netip.AddrPortFrom(second, 31000), "/")
		before := get(w.Neighbour.Namespace, netip.AddrPortFrom(w.Node.Address4, 31000), "/")
		return now.status == 200 && before.status == 0, fmt.Sprint(now, before)
	})
}

func TestEndpointsFollowTheZoneOfTheNodeObject(t *testing.T) {
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b")
	pod := w.Node.Pod(lab.PodOptions{}).Process()
	endpoints := agentlab.Ready(a, b)
	endpoints[0].Hints, endpoints[1].Hints = "{forZones: [{name: east}]}", "{forZones: [{name: west}]}"
	zone := func(name string) {
		w.Write("node", nodeManifest(w.Node.Name, "labels: {topology.kubernetes.io/zone: "+name+"}", "", w.Node.Address4))
	}
	zone("east")
	w.Write("web",
		agentlab.Service("web", "{clusterIP: 10.96.7.3, trafficDistribution: PreferSameZone, "+
			"ports: [{port: 80, protocol: TCP}]}"),
		agentlab.Slice("web", "web-a", "[{name: '', port: 8080, protocol: TCP}]", endpoints...))
	w.StartAgent()
	only := func(server string) {
		t.Helper()
		const connects = 50
		w.Eventually("all connections end at "+server, func() (bool, string) {
			result := pod.Connects("tcp", agentlab.At("10.96.7.3:80"), connects)
			return result.Servers[server] == connects, fmt.Sprint(result.Servers, result.Errnos)
		})
	}
	only("a")
	zone("west")
	only("b")
	zone("east")
	only("a")
}
