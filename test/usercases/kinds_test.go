// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/agentlab"
)

// Case A19: after each change of what a Service is, the maps hold that and nothing else.
func TestAfterEachChangeOfKindTheMapsHoldWhatIsDesiredAndNothingElse(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a := agentlab.Serve(w.Node, "a")
	w.StartAgent()
	const (
		v4    = "[{name: t, port: 80}]"
		np    = "[{name: t, port: 80, nodePort: 30088}]"
		lbips = "\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.70}]}}"
	)
	single := func(spec string) []string {
		return append([]string{agentlab.Service("web", spec)}, dualSlices("web", bothTargets, isReady, a)...)
	}
	web := func(spec string) map[string][]string { return map[string][]string{"web": single(spec)} }
	old := func(spec string) []string {
		return []string{agentlab.Service("old", spec), agentlab.Slice("old", "old-a", bothTargets, agentlab.Ready(a)...)}
	}
	base := usage(w)
	for _, step := range []struct {
		name      string
		files     map[string][]string // nil: the file goes
		frontends []string
		// backends, ports (service ports) and ranges are elements of maps.
		backends, ports, ranges int
	}{
		{"ClusterIP", web("{clusterIP: 10.96.0.70, ports: " + v4 + "}"),
			[]string{"10.96.0.70:80/TCP ClusterIP web 1"}, 1, 1, 0},
		{"NodePort", web("{type: NodePort, clusterIP: 10.96.0.70, ports: " + np + "}"),
			[]string{"10.96.0.70:80/TCP ClusterIP web 1", "0.0.0.0:30088/TCP NodePort web 1"}, 1, 1, 0},
		{"LoadBalancer", web("{type: LoadBalancer, clusterIP: 10.96.0.70, " +
			"loadBalancerSourceRanges: [10.0.0.0/8, 172.16.0.0/12], externalIPs: [192.0.2.71], ports: " + np + "}" + lbips),
			[]string{"10.96.0.70:80/TCP ClusterIP web 1", "0.0.0.0:30088/TCP NodePort web 1",
				"192.0.2.70:80/TCP LoadBalancer web 1", "192.0.2.71:80/TCP ExternalIP web 1"}, 1, 1, 2},
		{"dual-stack", web("{type: LoadBalancer, clusterIP: 10.96.0.70, clusterIPs: [10.96.0.70, " +
			"'fd00:10:96::70'], ipFamilies: [IPv4, IPv6], ports: " + np + "}" + lbips),
			[]string{"10.96.0.70:80/TCP ClusterIP web 1", "[fd00:10:96::70]:80/TCP ClusterIP web 1",
				"0.0.0.0:30088/TCP NodePort web 1", "[::]:30088/TCP NodePort web 1",
				"192.0.2.70:80/TCP LoadBalancer web 1"}, 2, 2, 0},
		{"IPv6 alone", web("{clusterIP: 'fd00:10:96::70', clusterIPs: ['fd00:10:96::70'], " +
			"ipFamilies: [IPv6], ports: " + v4 + "}"), []string{"[fd00:10:96::70]:80/TCP ClusterIP web 1"}, 1, 1, 0},
		{"ExternalName", web("{type: ExternalName, externalName: example.org}"), nil, 0, 0, 0},
		{"back to LoadBalancer", web("{type: LoadBalancer, clusterIP: 10.96.0.70, ports: " + np + "}" + lbips),
			[]string{"10.96.0.70:80/TCP ClusterIP web 1", "0.0.0.0:30088/TCP NodePort web 1",
				"192.0.2.70:80/TCP LoadBalancer web 1"}, 1, 1, 0},
		{"headless", web("{clusterIP: None, ports: " + v4 + "}"), nil, 0, 0, 0},
		{"another address", web("{clusterIP: 10.96.0.71, ports: " + v4 + "}"),
			[]string{"10.96.0.71:80/TCP ClusterIP web 1"}, 1, 1, 0},
		{"deleted", map[string][]string{"web": nil}, nil, 0, 0, 0},
		{"created again with another address", web("{clusterIP: 10.96.0.72, ports: " + v4 + "}"),
			[]string{"10.96.0.72:80/TCP ClusterIP web 1"}, 1, 1, 0},
		{"a port is renamed, the slices are not", web("{clusterIP: 10.96.0.72, ports: [{name: http, port: 80}]}"),
			[]string{"10.96.0.72:80/TCP ClusterIP web 0"}, 0, 1, 0},
		{"and back", web("{clusterIP: 10.96.0.72, ports: " + v4 + "}"),
			[]string{"10.96.0.72:80/TCP ClusterIP web 1"}, 1, 1, 0},
		{"TCP turns into UDP", web("{clusterIP: 10.96.0.72, ports: [{name: u, port: 80, protocol: UDP}]}"),
			[]string{"10.96.0.72:80/UDP ClusterIP web 1"}, 1, 1, 0},
		{"both protocols", web("{clusterIP: 10.96.0.72, ports: " + bothPorts + "}"),
			[]string{"10.96.0.72:80/TCP ClusterIP web 1", "10.96.0.72:80/UDP ClusterIP web 1"}, 2, 2, 0},
		{"the number of a port changes", web("{clusterIP: 10.96.0.72, ports: [{name: t, port: 81}]}"),
			[]string{"10.96.0.72:81/TCP ClusterIP web 1"}, 1, 1, 0},
		{"ports swap their numbers", web("{clusterIP: 10.96.0.72, ports: [{name: t, port: 80}, {name: x, port: 81}]}"),
			[]string{"10.96.0.72:80/TCP ClusterIP web 1", "10.96.0.72:81/TCP ClusterIP web 0"}, 1, 2, 0},
		{"and once more", web("{clusterIP: 10.96.0.72, ports: [{name: x, port: 80}, {name: t, port: 81}]}"),
			[]string{"10.96.0.72:80/TCP ClusterIP web 0", "10.96.0.72:81/TCP ClusterIP web 1"}, 1, 2, 0},
		{"another proxy's", map[string][]string{"web": func() []string {
			documents := single("{clusterIP: 10.96.0.72, ports: " + v4 + "}")
			documents[0] = strings.Replace(documents[0], "namespace: default}",
				"namespace: default, labels: {service.kubernetes.io/service-proxy-name: mesh}}", 1)
			return documents
		}()}, nil, 0, 0, 0},
		{"two want one external IP, the older has it", map[string][]string{
			"web": createdIn("2025", single("{clusterIP: 10.96.0.72, externalIPs: [192.0.2.72], ports: "+v4+"}")),
			"old": createdIn("2024", old("{clusterIP: 10.96.0.73, externalIPs: [192.0.2.72], ports: "+v4+"}")),
		}, []string{"10.96.0.72:80/TCP ClusterIP web 1", "10.96.0.73:80/TCP ClusterIP old 1",
			"192.0.2.72:80/TCP ExternalIP old 1"}, 2, 2, 0},
		{"it lets go", map[string][]string{
			"old": createdIn("2024", old("{clusterIP: 10.96.0.73, ports: "+v4+"}")),
		}, []string{"10.96.0.72:80/TCP ClusterIP web 1", "10.96.0.73:80/TCP ClusterIP old 1",
			"192.0.2.72:80/TCP ExternalIP web 1"}, 2, 2, 0},
		{"ClusterIPs swap", map[string][]string{
			"web": single("{clusterIP: 10.96.0.73, ports: " + v4 + "}"),
			"old": old("{clusterIP: 10.96.0.72, ports: " + v4 + "}"),
		}, []string{"10.96.0.73:80/TCP ClusterIP web 1", "10.96.0.72:80/TCP ClusterIP old 1"}, 2, 2, 0},
		{"everything goes", map[string][]string{"web": nil, "old": nil}, nil, 0, 0, 0},
	} {
		w.Run(step.name, func(t *testing.T) {
			for name, documents := range step.files {
				if documents == nil {
					w.Remove(name)
				} else {
					w.Write(name, documents...)
				}
			}
			awaitFrontends(w, step.frontends...)
			addresses := map[string]bool{}
			for _, f := range frontends(w) {
				if f.Kind != "NodePort" {
					addresses[f.Address.String()] = true
				}
			}
			awaitElements(w, map[string]int{
				maps.MapServices: len(step.frontends), maps.MapBackends: step.backends, maps.MapServiceNames: step.ports,
				maps.MapSourceRanges: step.ranges, maps.MapAddresses: base[maps.MapAddresses] + len(addresses),
			})
		})
	}
}

// createdIn gives a Service its age.
func createdIn(year string, documents []string) []string {
	documents[0] = strings.Replace(documents[0], "namespace: default}",
		"namespace: default, creationTimestamp: '"+year+"-01-01T00:00:00Z'}", 1)
	return documents
}

// usage counts the elements of each map.
func usage(w *agentlab.World) map[string]int {
	w.T.Helper()
	kernel, err := maps.Open(w.Pins(), maps.Options{ReadOnly: true})
	w.Must(err)
	defer kernel.Close()
	all, err := kernel.Usage()
	w.Must(err)
	counts := map[string]int{}
	for name, u := range all {
		counts[name] = int(u.Used)
	}
	return counts
}
