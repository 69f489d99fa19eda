// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// Case B11: an API server that delivers the slices of a Service little by little to an agent that starts. Nothing is
// taken away before all have come, and no connection fails.
func TestASlowAPIServerTakesNothingAway(t *testing.T) {
	t.Parallel()
	for _, streams := range []bool{false, true} {
		t.Run(map[bool]string{false: "lists", true: "streams"}[streams], func(t *testing.T) { slowAPIServer(t, streams) })
	}
}

func slowAPIServer(t *testing.T, streams bool) {
	const perSlice, slices = 84, 3
	w := agentlab.New(t)
	pod := w.Node.Pod(lab.PodOptions{Name: "many"})
	server := pod.Process()
	server.Listen(tcp, netip.AddrPortFrom(netip.IPv6Unspecified(), 8080), "many")
	var objects []string
	for s := range slices {
		var endpoints []agentlab.Endpoint
		for i := range perSlice {
			address := netip.AddrFrom4([4]byte{10, 246, byte(s), byte(i + 1)})
			w.Must(pod.AddAddress("eth0", netip.PrefixFrom(address, 32)))
			w.Must(w.Node.AddRoute(netip.PrefixFrom(address, 32), pod.Device, netip.Addr{}))
			endpoints = append(endpoints, agentlab.Endpoint{Address: address, Conditions: isReady})
		}
		objects = append(objects, agentlab.Slice("web", fmt.Sprintf("web-4-%d", s), bothTargets, endpoints...))
	}
	objects = append(objects, agentlab.Slice("web", "web-6", bothTargets, agentlab.Ready6(server)...))
	host := w.Node.Process()
	request := apiRequest{Address: "127.0.0.1:6443", Streams: streams, Objects: map[string][]json.RawMessage{
		"services":       asJSON(w, dual("web", 98, "", bothPorts)),
		"endpointslices": asJSON(w, objects...),
		"nodes":          asJSON(w, nodeManifest(w.Node, "", w.Node.Address4, w.Node.Address6)),
	}}
	w.Must(host.Call("api-serve", request, nil))
	kubeconfig := w.Node.File("kubeconfig")
	w.Must(os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u}]\n"+
		"clusters: [{name: c, cluster: {server: 'http://127.0.0.1:6443'}}]\n"), 0o600))
	flags := []string{"--manifests=", "--kubeconfig=" + kubeconfig}
	w.StartAgent(flags...)
	want := map[string]int{maps.MapServices: 4, maps.MapBackends: 2 * (slices*perSlice + 1)}
	awaitElements(w, want)
	var load []*lab.Series
	for _, to := range forms(98, 80) {
		client := w.Node.Pod(lab.PodOptions{}).Process()
		load = append(load, client.StartConnects(process.ConnectsRequest{Network: tcp, Address: to}))
	}
	for after := 1; after <= slices; after++ {
		w.Agent.Kill()
		w.Must(host.Call("api-hold", apiHold{After: after}, nil))
		w.Agent = w.Node.Start("agent", w.AgentCommand(flags...))
		w.Eventually("the list of slices stands still", func() (bool, string) {
			var state apiState
			w.Must(host.Call("api-state", struct{}{}, &state))
			return state.Held > 0, ""
		})
		client := w.Node.Pod(lab.PodOptions{}).Process()
		for range 10 {
			if now := usage(w); now[maps.MapBackends] != want[maps.MapBackends] {
				t.Errorf("%d backends after %d of %d slices, want %d",
					now[maps.MapBackends], after, slices+1, want[maps.MapBackends])
			}
			if result := client.Connects(tcp, forms(98, 80)[0], 50); result.Failed() > 0 {
				t.Errorf("while slices are missing: %v", result.Errnos)
			}
		}
		w.Must(host.Call("api-hold", apiHold{After: -1}, nil))
		w.AwaitAgent()
		if now := usage(w); now[maps.MapBackends] != want[maps.MapBackends] {
			t.Errorf("%d backends at the end, want %d", now[maps.MapBackends], want[maps.MapBackends])
		}
	}
	for _, series := range load {
		if result := series.Stop(); result.Failed() > 0 || result.Total() == 0 {
			t.Errorf("under load: %v %v", result.Servers, result.Errnos)
		}
	}
}

func asJSON(w *agentlab.World, documents ...string) []json.RawMessage {
	w.T.Helper()
	var all []json.RawMessage
	for _, d := range documents {
		converted, err := yaml.YAMLToJSON([]byte(d))
		w.Must(err)
		all = append(all, converted)
	}
	return all
}
