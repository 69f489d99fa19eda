// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

// Case A15: hints narrow the endpoints to those of this node's zone, if they are complete and one is for it; the node's
// label counts as it is now, and policy Local overrules.
func TestHintsAreFollowedWhenTheyAreCompleteAndForThisZone(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	pods := []*lab.Process{agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b"), agentlab.Serve(w.Neighbour, "c")}
	zone := func(name string) {
		labels := ""
		if name != "" {
			labels = "topology.kubernetes.io/zone: " + name
		}
		w.Write("node", nodeManifest(w.Node, labels, w.Node.Address4, w.Node.Address6))
	}
	manifests := func(fields string, hints ...string) []string {
		var four, six []agentlab.Endpoint
		for i, pod := range pods {
			e := agentlab.Endpoint{Address: pod.Address4, Node: []string{w.Node.Name, w.Neighbour.Name, w.Neighbour.Name}[i],
				Conditions: isReady}
			if hints[i] != "" {
				e.Hints = "{forZones: [{name: " + strings.Join(strings.Split(hints[i], " "), "}, {name: ") + "}]}"
			}
			four = append(four, e)
			e.Address = pod.Address6
			six = append(six, e)
		}
		return []string{dual("web", 60, fields, bothPorts), agentlab.Slice("web", "web-4", bothTargets, four...),
			agentlab.Slice("web", "web-6", bothTargets, six...)}
	}
	w.StartAgent()
	from := clients(w)
	for _, row := range []struct {
		name, zone, fields string
		hints              []string
		want               string
	}{
		{"one hint is missing", "za", "", []string{"za", "zb", ""}, "a b c"},
		{"complete", "za", "", []string{"za", "zb", "za"}, "a c"},
		{"the node's label changes", "zb", "", []string{"za", "zb", "za"}, "b"},
		{"no endpoint is for the zone", "zc", "", []string{"za", "zb", "za"}, "a b c"},
		{"the node loses its label", "", "", []string{"za", "zb", "za"}, "a b c"},
		{"hints for several zones", "zb", "", []string{"za zb", "zb", "za"}, "a b"},
		{"internal policy Local overrules", "zb", "internalTrafficPolicy: Local", []string{"za", "zb", "zb"}, "a"},
		{"external policy Local does not concern those inside", "za", "type: NodePort, externalTrafficPolicy: Local",
			[]string{"zb", "za", "za"}, "b c"},
	} {
		w.Run(row.name, func(t *testing.T) {
			zone(row.zone)
			w.Write("web", manifests(row.fields, row.hints...)...)
			want := strings.Fields(row.want)
			for _, client := range from {
				for _, to := range forms(60, 80) {
					w.Eventually(fmt.Sprintf("%s from %s reaches %v", to, client.Name, want), func() (bool, string) {
						const count = 50 // one of three is missed by all of 50 once in 10^8
						result := client.Connects(tcp, to, count)
						reached := []string{}
						for name := range result.Servers {
							reached = append(reached, name)
						}
						slices.Sort(reached)
						return slices.Equal(reached, want) && result.Failed() == 0, fmt.Sprint(result.Servers, result.Errnos)
					})
				}
			}
		})
	}
}
