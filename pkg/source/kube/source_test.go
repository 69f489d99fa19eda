// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shunt-lb/shunt/pkg/source"
)

func service(name, ip string, labels ...string) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u-1"},
		Spec: v1.ServiceSpec{ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Port: 80}}},
	}
	for _, l := range labels {
		metav1.SetMetaDataLabel(&s.ObjectMeta, l, "")
	}
	return s
}

func slice(name, address string) *discovery.EndpointSlice {
	port, empty := int32(8080), ""
	return &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discovery.LabelServiceName: "web"},
			Annotations: map[string]string{v1.EndpointsLastChangeTriggerTime: "2025-01-02T03:04:05Z"}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: &empty, Port: &port}},
		Endpoints:   []discovery.Endpoint{{Addresses: []string{address}}},
	}
}

func node(name, zone string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelTopologyZone: zone}}}
}

func cidr(name string, ranges ...string) *networking.ServiceCIDR {
	return &networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networking.ServiceCIDRSpec{CIDRs: ranges}}
}

// consumer is what a consumer knows after the events so far.
type consumer struct {
	*testing.T
	mu               sync.Mutex
	services, slices map[string]string
	problems         map[string][]source.Problem
	zone, cidrs      string
	synced           int
	deletes          int
	nodes            int
	last             source.Event
}

func (c *consumer) take(e source.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = e
	switch e := e.(type) {
	case source.SetService:
		c.services[e.Service.Name] = e.Service.ClusterIPs[0].String()
		if e.UID != "" && e.UID != "u-1" {
			c.Errorf("UID %q", e.UID)
		}
	case source.DeleteService:
		c.deletes++
		delete(c.services, e.Name.Name)
	case source.SetSlice:
		c.slices[e.Slice.Name] = e.Slice.Endpoints[0].Address.String()
	case source.DeleteSlice:
		c.deletes++
		delete(c.slices, e.Name.Name)
	case source.SetNode:
		c.nodes++
		c.zone = e.Node.Zone
	case source.DeleteNode:
		c.nodes++
		c.zone = "none"
	case source.SetServiceCIDRs:
		c.cidrs = fmt.Sprint(e.CIDRs)
	case source.SetProblems:
		c.problems[e.Origin] = e.Problems
		if len(e.Problems) == 0 {
			delete(c.problems, e.Origin)
		}
	case source.Synced:
		c.synced++
	}
}

func (c *consumer) state() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var problems []string
	for _, origin := range slices.Sorted(maps.Keys(c.problems)) {
		problems = append(problems, origin+": "+c.problems[origin][0].Reason)
	}
	return fmt.Sprint(c.services, " ", c.slices, " zone ", c.zone, " ranges ", c.cidrs, " synced ", c.synced, " problems ", problems)
}

func (c *consumer) eventually(want string) {
	c.Helper()
	c.until(func() bool { return c.state() == want }, func() string { return "want\n" + want + "\nhave\n" + c.state() })
}

func (c *consumer) until(ok func() bool, complaint func() string) {
	c.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.Fatal(complaint())
		}
	}
}

// run runs a source against API servers.
func run(t *testing.T, timing Timing, config Config, prepare ...func(*Source)) *consumer {
	t.Helper()
	client, err := NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	s := New(client, "n1", timing)
	for _, f := range prepare {
		f(s)
	}
	c := &consumer{T: t, services: map[string]string{}, slices: map[string]string{}, problems: map[string][]source.Problem{}}
	ctx, cancel := context.WithCancel(context.Background())
	events, done := make(chan source.Event), make(chan error, 1)
	go func() { done <- s.Run(ctx, events) }()
	go func() {
		for {
			select {
			case e := <-events:
				c.take(e)
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	return c
}

func (s *apiServer) config() Config {
	return Config{APIServers: []string{s.http.URL}, Version: "v1.2.3"}
}

// everyServer runs a test against servers that stream lists and those that do not.
func everyServer(t *testing.T, test func(t *testing.T, s *apiServer)) {
	for _, streams := range []bool{true, false} {
		t.Run(fmt.Sprintf("streams=%v", streams), func(t *testing.T) {
			t.Parallel()
			test(t, newAPIServer(t, streams))
		})
	}
}

func TestObjectsComeChangeAndGo(t *testing.T) {
	t.Parallel()
	everyServer(t, func(t *testing.T, s *apiServer) {
		s.put(service("web", "10.96.0.1"), service("none", "None"), service("other", "10.96.0.9", source.LabelProxyName),
			slice("web-1", "10.244.1.1"), node("n1", "a"), node("n2", "b"), cidr("kubernetes", "10.96.0.0/12"))
		c := run(t, quick, s.config())
		c.eventually("map[web:10.96.0.1] map[web-1:10.244.1.1] zone a ranges [10.96.0.0/12] synced 1 problems []")
		if c.deletes != 0 {
			t.Errorf("%d objects were deleted at the start", c.deletes)
		}

		s.put(service("web", "10.96.0.2"), service("api", "10.96.0.3"), slice("web-1", "10.244.1.2"), node("n1", "c"),
			cidr("more", "fd00::/112"))
		c.eventually("map[api:10.96.0.3 web:10.96.0.2] map[web-1:10.244.1.2] zone c ranges [10.96.0.0/12 fd00::/112] synced 1 problems []")

		// Becoming another proxy's, headless or an external name is going away; and they come back.
		external := service("web", "10.96.0.2")
		external.Spec.Type = v1.ServiceTypeExternalName
		s.put(service("api", "10.96.0.3", source.LabelProxyName), external)
		s.remove(slice("web-1", ""))
		s.remove(cidr("kubernetes"))
		c.eventually("map[] map[] zone c ranges [fd00::/112] synced 1 problems []")
		s.put(service("api", "10.96.0.3"), service("web", "10.96.0.2"))
		c.eventually("map[api:10.96.0.3 web:10.96.0.2] map[] zone c ranges [fd00::/112] synced 1 problems []")
		s.put(service("web", "None"))
		c.eventually("map[api:10.96.0.3] map[] zone c ranges [fd00::/112] synced 1 problems []")
	})
}

func TestTheTriggerTimeTravelsWithTheSlice(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	c := run(t, quick, s.config())
	c.eventually("map[] map[] zone none ranges  synced 1 problems [node: NodeNotFound]")
	s.put(slice("web-1", "10.244.1.1"))
	c.eventually("map[] map[web-1:10.244.1.1] zone none ranges  synced 1 problems [node: NodeNotFound]")
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.last.(source.SetSlice)
	if !ok || !e.Triggered.Equal(time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("the last event is %+v", c.last)
	}
}

func TestProtobufIsAskedForAndJSONUnderstood(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, false)
	s.put(service("web", "10.96.0.1"))
	c := run(t, quick, s.config())
	c.eventually("map[web:10.96.0.1] map[] zone none ranges  synced 1 problems [node: NodeNotFound]")
	for _, r := range s.seen() {
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, ContentProtobuf) {
			t.Errorf("%s: Accept %q", r.URL, accept)
		}
		if agent := r.Header.Get("User-Agent"); agent != "shunt/v1.2.3" {
			t.Errorf("%s: User-Agent %q", r.URL, agent)
		}
	}
	config := s.config()
	config.ContentType = ContentJSON
	run(t, quick, config).eventually("map[web:10.96.0.1] map[] zone none ranges  synced 1 problems [node: NodeNotFound]")
}

func TestSelectionHappensOnTheServer(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	run(t, quick, s.config()).eventually("map[] map[] zone none ranges  synced 1 problems [node: NodeNotFound]")
	want := map[string][2]string{
		"/api/v1/services":                         {"!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None"},
		"/apis/discovery.k8s.io/v1/endpointslices": {"!service.kubernetes.io/headless", ""},
		"/api/v1/nodes":                            {"", "metadata.name=n1"},
		"/apis/networking.k8s.io/v1/servicecidrs":  {"", ""},
	}
	for _, r := range s.seen() {
		q := r.URL.Query()
		if got := [2]string{q.Get("labelSelector"), q.Get("fieldSelector")}; got != want[r.URL.Path] {
			t.Errorf("%s is selected by %q, want %q", r.URL.Path, got, want[r.URL.Path])
		}
	}
}

// abort ends a connection without an answer.
func abort(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }

func TestAnOutageDeletesNothingAndTheListAfterItTellsWhatHasGone(t *testing.T) {
	t.Parallel()
	everyServer(t, func(t *testing.T, s *apiServer) {
		s.put(service("a", "10.96.0.1"), service("b", "10.96.0.2"), slice("a-1", "10.244.1.1"), node("n1", "a"))
		c := run(t, quick, s.config())
		c.eventually("map[a:10.96.0.1 b:10.96.0.2] map[a-1:10.244.1.1] zone a ranges  synced 1 problems []")

		s.setIntercept(abort)
		s.disconnect()
		c.eventually("map[a:10.96.0.1 b:10.96.0.2] map[a-1:10.244.1.1] zone a ranges  synced 1 problems " +
			"[watch endpointslices: APIServerUnreachable watch nodes: APIServerUnreachable " +
			"watch servicecidrs: APIServerUnreachable watch services: APIServerUnreachable]")
		s.remove(service("a", ""))
		s.put(service("b", "10.96.0.22"), service("c", "10.96.0.3"))
		s.forget()
		s.setIntercept(nil)
		c.eventually("map[b:10.96.0.22 c:10.96.0.3] map[a-1:10.244.1.1] zone a ranges  synced 1 problems []")
		if c.deletes != 1 {
			t.Errorf("%d objects were deleted, want the one that has gone", c.deletes)
		}
	})
}

func TestAWatchThatIsCutGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	s.put(service("a", "10.96.0.1"), node("n1", "a"))
	c := run(t, quick, s.config())
	c.eventually("map[a:10.96.0.1] map[] zone a ranges  synced 1 problems []")
	for i := range 5 {
		s.disconnect()
		s.put(service("a", fmt.Sprintf("10.96.0.1%d", i)))
		c.eventually(fmt.Sprintf("map[a:10.96.0.1%d] map[] zone a ranges  synced 1 problems []", i))
	}
}

func TestAnExpiredVersionLeadsToANewListWithoutAProblem(t *testing.T) {
	t.Parallel()
	everyServer(t, func(t *testing.T, s *apiServer) {
		s.put(service("a", "10.96.0.1"), service("b", "10.96.0.2"), node("n1", "a"))
		c := run(t, quick, s.config())
		c.eventually("map[a:10.96.0.1 b:10.96.0.2] map[] zone a ranges  synced 1 problems []")
		s.setIntercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") == "" || r.URL.Query().Get("sendInitialEvents") != "" {
				return false
			}
			s.status(w, r, apierrors.NewResourceExpired("too old resource version"))
			return true
		})
		s.remove(service("a", ""))
		s.forget()
		s.disconnect()
		c.eventually("map[b:10.96.0.2] map[] zone a ranges  synced 1 problems []")
	})
}

func TestForbiddenNamesWhatToGrant(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	s.put(service("web", "10.96.0.1"))
	for _, row := range []struct{ path, resource, group, state string }{
		{"endpointslices", "endpointslices", "discovery.k8s.io",
			"map[web:10.96.0.1] map[] zone none ranges  synced 0 problems [node: NodeNotFound watch endpointslices: Forbidden]"},
		// The Node is missed by its rules alone, so nothing waits for it.
		{"nodes", "nodes", "", "map[web:10.96.0.1] map[] zone  ranges  synced 1 problems [watch nodes: Forbidden]"},
		{"servicecidrs", "servicecidrs", "networking.k8s.io",
			"map[web:10.96.0.1] map[] zone none ranges  synced 1 problems [node: NodeNotFound watch servicecidrs: Forbidden]"},
	} {
		s.setIntercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, row.path) {
				return false
			}
			s.status(w, r, apierrors.NewForbidden(schema.GroupResource{Group: row.group, Resource: row.resource}, "",
				errors.New(`User "shunt" cannot do it`)))
			return true
		})
		c := run(t, quick, s.config())
		c.eventually(row.state)
		c.mu.Lock()
		got := c.problems["watch "+row.resource][0].Message
		c.mu.Unlock()
		want := fmt.Sprintf("grant the verbs list and watch on the resource %s of the API group %q", row.resource, row.group)
		if !strings.Contains(got, want) {
			t.Errorf("message %q, want %q in it", got, want)
		}
	}
}

func TestAClusterWithoutServiceCIDRsIsNoProblem(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	s.put(service("web", "10.96.0.1"), node("n1", "a"))
	asked := make(chan struct{}, 100)
	s.setIntercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "servicecidrs") {
			return false
		}
		s.status(w, r, apierrors.NewNotFound(schema.GroupResource{Resource: "servicecidrs"}, ""))
		select {
		case asked <- struct{}{}:
		default:
		}
		return true
	})
	c := run(t, quick, s.config())
	for range 3 {
		<-asked
	}
	c.eventually("map[web:10.96.0.1] map[] zone a ranges  synced 1 problems []")
}

func TestANodeThatDoesNotExistYetIsReportedAndAwaited(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	s.put(node("N1", "a"))
	c := run(t, quick, s.config())
	c.eventually("map[] map[] zone none ranges  synced 1 problems [node: NodeNotFound]")
	s.put(node("n1", "a"))
	c.eventually("map[] map[] zone a ranges  synced 1 problems []")
	s.remove(node("n1", ""))
	c.eventually("map[] map[] zone none ranges  synced 1 problems [node: NodeNotFound]")
}

func TestANodeWhoseStatusAloneChangesIsSentOnce(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	s.put(node("n1", "a"))
	c := run(t, quick, s.config())
	c.eventually("map[] map[] zone a ranges  synced 1 problems []")
	n := node("n1", "a")
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, LastHeartbeatTime: metav1.Now()}}
	s.put(n, node("n1", "b"))
	c.eventually("map[] map[] zone b ranges  synced 1 problems []")
	if c.nodes != 2 {
		t.Errorf("the Node was sent %d times, want twice", c.nodes)
	}
}

func TestAServerThatIsSlowIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	s.put(service("web", "10.96.0.1"), slice("web-1", "10.244.1.1"), node("n1", "a"))
	release := make(chan struct{})
	s.setIntercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "endpointslices") {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		return false
	})
	c := run(t, quick, s.config())
	c.eventually("map[web:10.96.0.1] map[] zone a ranges  synced 0 problems []")
	close(release)
	c.eventually("map[web:10.96.0.1] map[web-1:10.244.1.1] zone a ranges  synced 1 problems []")
}

func TestTheNodeIsNotWaitedForLongerThanItsGrace(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	s.put(service("web", "10.96.0.1"))
	s.setIntercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "nodes") {
			<-r.Context().Done()
		}
		return false
	})
	timing := quick
	timing.NodeGrace = time.Millisecond
	run(t, timing, s.config()).eventually("map[web:10.96.0.1] map[] zone  ranges  synced 1 problems []")
}
