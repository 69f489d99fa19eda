// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Endpoints of the decision table, and the frontends of its Service.
var (
	localReady     = endpoint("10.244.1.1")
	remoteReady    = endpoint("10.244.2.1")
	localLeaving   = endpoint("10.244.1.2", terminating)
	remoteLeaving  = endpoint("10.244.2.2", terminating)
	localUnready   = endpoint("10.244.1.3", unready)
	remoteUnready  = endpoint("10.244.2.3", unready)
	localGone      = endpoint("10.244.1.4", gone)
	remoteGone     = endpoint("10.244.2.4", gone)
	internalDial   = "10.96.0.1:80"
	externalDials  = []string{"192.0.2.1:80", "192.0.2.2:80", "0.0.0.0:30080"}
	publishedReady = endpoint("10.244.1.5", func(e *model.Endpoint) { e.Terminating = true })
)

const (
	localDial   = "10.244.1.1:8080"
	remoteDial  = "10.244.2.1:8080"
	bothDial    = localDial + " " + remoteDial
	localLeft   = "10.244.1.2:8080"
	remoteLeft  = "10.244.2.2:8080"
	bothLeaving = localLeft + " " + remoteLeft
)

// everyFrontend has all kinds of frontends.
func everyFrontend(options ...func(*model.Service)) *model.Service {
	all := []func(*model.Service){externalIPs("192.0.2.1"), loadBalancer("192.0.2.2"), nodePort(30080)}
	return service("default/web", append(all, options...)...)
}

// Section 3.4: which set, which verdict.
func TestPolicyDecidesSetAndVerdict(t *testing.T) {
	t.Parallel()
	// Situations, and what is found in them by a client of the cluster set and by one of the local set.
	situations := []struct {
		name           string
		endpoints      []model.Endpoint
		cluster, local string
	}{
		{"ready here and elsewhere", []model.Endpoint{localReady, remoteReady}, bothDial, localDial},
		{"ready elsewhere alone", []model.Endpoint{remoteReady}, remoteDial, "DROP"},
		{"terminating elsewhere alone", []model.Endpoint{remoteLeaving}, remoteLeft, "DROP"},
		{"terminating here alone", []model.Endpoint{localLeaving}, localLeft, localLeft},
		{"terminating here and elsewhere", []model.Endpoint{localLeaving, remoteLeaving}, bothLeaving, localLeft},
		{"terminating here, ready elsewhere", []model.Endpoint{localLeaving, remoteReady}, remoteDial, localLeft},
		{"ready here, terminating elsewhere", []model.Endpoint{localReady, remoteLeaving}, localDial, localDial},
		{"unready here, ready elsewhere", []model.Endpoint{localUnready, remoteReady}, remoteDial, "DROP"},
		{"gone here, ready elsewhere", []model.Endpoint{localGone, remoteReady}, remoteDial, "DROP"},
		{"unready and gone everywhere", []model.Endpoint{localUnready, remoteUnready, localGone, remoteGone},
			"REJECT", "REJECT"},
		{"no endpoint at all", nil, "REJECT", "REJECT"},
	}
	policies := []struct {
		name                                 string
		options                              []func(*model.Service)
		clusterIPLocal, externalOutsideLocal bool
	}{
		{"iTP Cluster, eTP Cluster", nil, false, false},
		{"iTP Local, eTP Cluster", []func(*model.Service){internalLocal}, true, false},
		{"iTP Cluster, eTP Local", []func(*model.Service){externalLocal}, false, true},
		{"iTP Local, eTP Local", []func(*model.Service){internalLocal, externalLocal}, true, true},
	}
	for _, s := range situations {
		for _, p := range policies {
			t.Run(s.name+", "+p.name, func(t *testing.T) {
				t.Parallel()
				c := cluster(everyFrontend(p.options...), slice("s", s.endpoints...))
				given := map[bool]string{false: s.cluster, true: s.local}
				expect(t, c, internalDial, inside, given[p.clusterIPLocal])
				expect(t, c, internalDial, outside, given[p.clusterIPLocal])
				for _, dial := range externalDials {
					expect(t, c, dial, inside, s.cluster)
					expect(t, c, dial, outside, given[p.externalOutsideLocal])
				}
			})
		}
	}
}

// Section 3.5: the class of one endpoint, told by what a Service gives that has no other, and one beside a ready one.
func TestConditionsOfAnEndpoint(t *testing.T) {
	t.Parallel()
	const firstChoice, fallback, unusable = "first choice", "fallback", "unusable"
	for _, row := range []struct {
		ready, serving, terminating bool
		class                       string
	}{
		{true, true, false, firstChoice},
		{true, true, true, firstChoice},
		{true, false, true, firstChoice},
		{true, false, false, firstChoice},
		{false, true, true, fallback},
		{false, true, false, unusable},
		{false, false, true, unusable},
		{false, false, false, unusable},
	} {
		e := endpoint("10.244.1.9")
		e.Ready, e.Serving, e.Terminating = row.ready, row.serving, row.terminating
		alone := answer(cluster(service("default/web"), slice("s", e)), internalDial, inside)
		beside := answer(cluster(service("default/web"), slice("s", e, remoteReady)), internalDial, inside)
		class := unusable
		switch {
		case beside == "10.244.1.9:8080 "+remoteDial:
			class = firstChoice
		case alone == "10.244.1.9:8080":
			class = fallback
		case alone != "REJECT" || beside != remoteDial:
			class = "alone " + alone + ", beside " + beside
		}
		if class != row.class {
			t.Errorf("ready %v, serving %v, terminating %v: got %s, want %s", row.ready, row.serving, row.terminating,
				class, row.class)
		}
	}
}

// Section 3.1: which sets exist. A set that nobody could be given holds no backends.
func TestSetsAreFilledIfSomebodyUsesThem(t *testing.T) {
	t.Parallel()
	const l, r = "10.244.1.1", "10.244.2.1"
	const onlyCluster = "cluster [" + l + " " + r + "] local []"
	const onlyLocal = "cluster [] local [" + l + "]"
	const both = "cluster [" + l + " " + r + "] local [" + l + "]"
	type options = []func(*model.Service)
	for _, row := range []struct {
		name    string
		options options
		want    string
	}{
		{"a ClusterIP alone uses the cluster set", nil, onlyCluster},
		{"iTP Local without external frontend uses the local set alone", options{internalLocal}, onlyLocal},
		{"eTP Local without external frontend (load balancer pending) has no effect", options{externalLocal}, onlyCluster},
		{"both Local without external frontend use the local set alone", options{internalLocal, externalLocal}, onlyLocal},
		{"iTP Local with a node port needs both", options{internalLocal, nodePort(30080)}, both},
		{"iTP Local with an external IP needs both", options{internalLocal, externalIPs("192.0.2.1")}, both},
		{"iTP Local with a load-balancer IP needs both", options{internalLocal, loadBalancer("192.0.2.1")}, both},
		{"eTP Local with a node port needs both", options{externalLocal, nodePort(30080)}, both},
		{"eTP Local with an external IP needs both", options{externalLocal, externalIPs("192.0.2.1")}, both},
		{"eTP Local with a load-balancer IP needs both", options{externalLocal, loadBalancer("192.0.2.1")}, both},
		{"eTP Cluster with a node port uses the cluster set alone", options{nodePort(30080)}, onlyCluster},
		{"an external IP of the other family does not make it accessible",
			options{internalLocal, externalIPs("2001:db8::1")}, onlyLocal},
		{"an external IP that is refused does not make it accessible",
			options{internalLocal, externalIPs("127.0.0.1")}, onlyLocal},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := cluster(service("default/web", row.options...), slice("s", localReady, remoteReady))
			if got := sets(c); got != row.want {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// Existing connections to the last pod go on, new ones still reach it, and the load balancer is told to stop.
func TestTheLastTerminatingPod(t *testing.T) {
	t.Parallel()
	s := everyFrontend(externalLocal)
	s.HealthCheckNodePort = 31000
	c := cluster(s, slice("s", localLeaving))
	expect(t, c, internalDial, inside, localLeft)
	expect(t, c, "192.0.2.2:80", outside, localLeft)
	if got := c.HealthChecks(name("default/web")); len(got) != 1 || got[0].LocalReady != 0 {
		t.Errorf("health checks: got %+v, want none ready", got)
	}
	set(c, slice("s", endpoint("10.244.1.2", gone)))
	expect(t, c, internalDial, inside, "REJECT")
	expect(t, c, "192.0.2.2:80", outside, "REJECT")
	set(c, slice("s", localLeaving, remoteReady))
	expect(t, c, internalDial, inside, remoteDial)
	expect(t, c, "192.0.2.2:80", outside, localLeft)
}

func TestPublishNotReadyAddressesMakeTerminatingEndpointsReady(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"), slice("s", publishedReady, remoteReady))
	expect(t, c, internalDial, inside, "10.244.1.5:8080 "+remoteDial)
}

func TestPolicyLocalIsToldOfExternalFrontendsAlone(t *testing.T) {
	t.Parallel()
	for _, local := range []bool{false, true} {
		s := everyFrontend(internalLocal)
		s.ExternalLocal = local
		frontends := cluster(s).Desired(s.ServiceName)[0].Frontends
		if len(frontends) != 4 {
			t.Fatalf("got %d frontends, want 4", len(frontends))
		}
		for _, f := range frontends {
			if want := local && f.Kind != model.ClusterIP; f.PolicyLocal != want {
				t.Errorf("eTP Local %v: PolicyLocal of the %v: got %v, want %v", local, f.Kind, f.PolicyLocal, want)
			}
		}
	}
}

// Section 10: what sync_proxy_rules_no_local_endpoints_total counts.
func TestNoLocalCountsEmptyLocalSetsWithEndpointsElsewhere(t *testing.T) {
	t.Parallel()
	type options = []func(*model.Service)
	for _, row := range []struct {
		name               string
		options            options
		endpoints          []model.Endpoint
		internal, external bool
	}{
		{"Cluster policies", options{}, []model.Endpoint{remoteReady}, false, false},
		{"iTP Local", options{internalLocal}, []model.Endpoint{remoteReady}, true, false},
		{"eTP Local", options{externalLocal}, []model.Endpoint{remoteReady}, false, true},
		{"both Local", options{internalLocal, externalLocal}, []model.Endpoint{remoteReady}, true, true},
		{"both Local, one here", options{internalLocal, externalLocal},
			[]model.Endpoint{localReady, remoteReady}, false, false},
		{"both Local, one leaving here", options{internalLocal, externalLocal},
			[]model.Endpoint{localLeaving, remoteReady}, false, false},
		{"both Local, none anywhere", options{internalLocal, externalLocal}, []model.Endpoint{remoteUnready}, false, false},
	} {
		c := cluster(everyFrontend(row.options...), slice("s", row.endpoints...))
		internal, external := c.Desired(name("default/web"))[0].NoLocal()
		if internal != row.internal || external != row.external {
			t.Errorf("%s: got %v, %v, want %v, %v", row.name, internal, external, row.internal, row.external)
		}
	}
}
