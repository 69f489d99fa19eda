// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Section 3.3. The node is n1 in zone a; a and b are endpoints on it, c and d elsewhere.
func TestHintsNarrowTheClusterSet(t *testing.T) {
	t.Parallel()
	const a, b, c, d = "10.244.1.1", "10.244.1.2", "10.244.2.1", "10.244.2.2"
	type endpoints = []model.Endpoint
	for _, row := range []struct {
		name      string
		endpoints endpoints
		want      string
	}{
		{"without hints all are used", endpoints{endpoint(a), endpoint(c)}, a + " " + c},
		{"zone hints keep those hinted to this zone",
			endpoints{endpoint(a, zones("a")), endpoint(c, zones("b")), endpoint(d, zones("a"))}, a + " " + d},
		{"an endpoint may be hinted to several zones",
			endpoints{endpoint(a, zones("b", "a")), endpoint(c, zones("b"))}, a},
		{"one missing hint: all are used",
			endpoints{endpoint(a, zones("a")), endpoint(b, zones("b")), endpoint(c)}, a + " " + b + " " + c},
		{"no hint names this zone: all are used",
			endpoints{endpoint(a, zones("b")), endpoint(c, zones("c"))}, a + " " + c},
		{"a missing hint of an unready endpoint does not veto",
			endpoints{endpoint(a, zones("a")), endpoint(b, unready), endpoint(c, zones("b"))}, a},
		{"a missing hint of a terminating endpoint does not veto",
			endpoints{endpoint(a, zones("a")), endpoint(b, terminating), endpoint(c, zones("b"))}, a},
		{"a hint of an unready endpoint does not select",
			endpoints{endpoint(a, zones("a"), unready), endpoint(c, zones("b"))}, c},
		{"the hint decides, not locality",
			endpoints{endpoint(a, zones("b")), endpoint(c, zones("a"))}, c},
		{"node hints keep those hinted to this node",
			endpoints{endpoint(a, nodes("n1")), endpoint(c, nodes("n2"))}, a},
		{"a node hint on an endpoint elsewhere is obeyed",
			endpoints{endpoint(a, nodes("n2")), endpoint(c, nodes("n1"))}, c},
		{"node hints come before zone hints",
			endpoints{endpoint(a, nodes("n1"), zones("a")), endpoint(c, nodes("n2"), zones("a"))}, a},
		{"node hints that do not name this node fall to zone hints",
			endpoints{endpoint(a, nodes("n3"), zones("a")), endpoint(c, nodes("n2"), zones("b"))}, a},
		{"a missing node hint falls to zone hints",
			endpoints{endpoint(a, nodes("n1"), zones("b")), endpoint(c, zones("a"))}, c},
		{"node hints without zone hints that do not name this node: all",
			endpoints{endpoint(a, nodes("n2")), endpoint(c, nodes("n3"))}, a + " " + c},
		{"hints of mixed kinds: all",
			endpoints{endpoint(a, nodes("n1")), endpoint(c, zones("a"))}, a + " " + c},
		{"terminating endpoints as fallback ignore hints",
			endpoints{endpoint(a, zones("a"), terminating), endpoint(c, zones("b"), terminating)}, a + " " + c},
		{"an empty zone name does not match a node that has one",
			endpoints{endpoint(a, zones("")), endpoint(c, zones("b"))}, a + " " + c},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got := sets(cluster(service("default/web"), slice("s", row.endpoints...)))
			if want := "cluster [" + row.want + "] local []"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

func TestHintsApplyToExternalFrontendsAndShortCircuit(t *testing.T) {
	t.Parallel()
	endpoints := slice("s", endpoint("10.244.1.1", zones("b")), endpoint("10.244.2.1", zones("a")))
	c := cluster(everyFrontend(), endpoints)
	expect(t, c, "192.0.2.2:80", outside, remoteDial)
	c = cluster(everyFrontend(externalLocal), endpoints)
	expect(t, c, "192.0.2.2:80", inside, remoteDial)
}

func TestTheLocalSetIgnoresHints(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web", internalLocal),
		slice("s", endpoint("10.244.1.1", zones("b"), nodes("n2")), endpoint("10.244.2.1", zones("a"), nodes("n1"))))
	expect(t, c, internalDial, inside, localDial)
}

func TestAnUnlabelledNodeMatchesAnEmptyZone(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"),
		slice("s", endpoint("10.244.1.1", zones("")), endpoint("10.244.2.1", zones("b"))))
	c.SetNode(model.Node{Name: "n1"})
	expect(t, c, internalDial, inside, localDial)
}

func TestHintsAreJudgedPerPort(t *testing.T) {
	t.Parallel()
	c := cluster(
		service("default/web", ports(
			model.Port{Name: "http", Protocol: model.TCP, Port: 80},
			model.Port{Name: "metrics", Protocol: model.TCP, Port: 90})),
		slice("s", endpoint("10.244.1.1", zones("a")), endpoint("10.244.2.1", zones("b"))),
		portSlice("m", model.SlicePort{Name: "metrics", Protocol: model.TCP, Port: 9090}, endpoint("10.244.1.1", zones("a")),
			endpoint("10.244.2.1")),
	)
	expect(t, c, "10.96.0.1:80", inside, localDial)
	expect(t, c, "10.96.0.1:90", inside, "10.244.1.1:9090 10.244.2.1:9090")
}

func TestAZoneLabelTakesEffectAtOnceWhereHintsAre(t *testing.T) {
	t.Parallel()
	other := slice("other", endpoint("10.244.2.9", nodes("n1")))
	other.Service = name("default/plain")
	c := cluster(service("default/web"),
		slice("s", endpoint("10.244.1.1", zones("a")), endpoint("10.244.2.1", zones("b")), endpoint("10.244.2.2", unready)),
		service("default/plain", clusterIPs("10.96.0.2")), other)
	c.TakeDirty()
	expect(t, c, internalDial, inside, localDial)
	c.SetNode(model.Node{Name: "n1", Zone: "b"})
	expectDirty(t, c, "default/web")
	expect(t, c, internalDial, inside, remoteDial)
	c.SetNode(model.Node{Name: "n1", Zone: "b"})
	expectDirty(t, c)
}

func TestANodeNameThatIsLearntLateMakesEndpointsLocal(t *testing.T) {
	t.Parallel()
	anywhere := endpoint("10.244.9.9")
	anywhere.NodeName = ""
	c := model.New(model.Config{})
	set(c, service("default/web", internalLocal), slice("s", localReady, remoteReady, anywhere),
		service("default/bare", clusterIPs("10.96.0.2")))
	expect(t, c, internalDial, inside, "DROP")
	c.TakeDirty()
	c.SetNode(node)
	expectDirty(t, c, "default/web")
	expect(t, c, internalDial, inside, localDial)
}
