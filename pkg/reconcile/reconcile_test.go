// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/node"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/source"
	"github.com/shunt-lb/shunt/pkg/writer"
)

// world runs a Reconciler over fakes of everything around it.
type world struct {
	audits    chan string // what the audit finds
	t         *testing.T
	events    chan source.Event
	addresses chan []netip.Addr
	writer    *fakeWriter
	observer  *fakeObserver
	stale     chan Keep
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, events: make(chan source.Event), addresses: make(chan []netip.Addr),
		writer: &fakeWriter{fail: map[model.ServiceName]error{}}, observer: &fakeObserver{},
		stale: make(chan Keep, 100), audits: make(chan string, 1),
	}
	nodePorts, err := node.ParseNodePortAddresses(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := New(Options{
		Source: w, Model: model.New(model.Config{Node: model.Node{Name: "n1"}}), Writer: w.writer, NodePorts: nodePorts,
		WatchAddresses: func(ctx context.Context, changed func([]netip.Addr)) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case now := <-w.addresses:
					changed(now)
				}
			}
		},
		EndStale: func(keep Keep) (int, error) { w.stale <- keep; return 1, nil },
		Audit: func() (string, error) {
			select {
			case difference := <-w.audits:
				return difference, nil
			default:
				return "", nil
			}
		},
		AuditPeriod: time.Millisecond,
		Observer:    w.observer, SyncPeriod: time.Second, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil at the end of its context", err)
		}
	})
	return w
}

// Run implements source.Source.
func (w *world) Run(ctx context.Context, out chan<- source.Event) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-w.events:
			if e == nil {
				return errors.New("cannot go on")
			}
			source.Send(ctx, out, e)
		}
	}
}

func (w *world) send(events ...source.Event) {
	for _, e := range events {
		w.events <- e
	}
}

// eventually polls until the condition holds.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("not in ten seconds: %s; writes: %v", what, w.writer.log())
		}
		time.Sleep(time.Millisecond)
	}
}

func name(s string) model.ServiceName { return model.ServiceName{Namespace: "default", Name: s} }

func service(s string, protocol model.Protocol) source.Event {
	return source.SetService{Service: &model.Service{
		ServiceName: name(s),
		ClusterIPs:  []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, s[0]})},
		Ports:       []model.Port{{Protocol: protocol, Port: 80}},
	}}
}

func slice(s string, triggered time.Time) source.Event {
	return source.SetSlice{Triggered: triggered, Slice: &model.EndpointSlice{
		SliceName: model.SliceName{Namespace: "default", Name: s + "-1"}, Service: name(s), Family: model.IPv4,
		Ports:     []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{{Address: netip.MustParseAddr("10.244.1.5"), Ready: true, Serving: true}},
	}}
}

var local = []netip.Addr{netip.MustParseAddr("192.0.2.1")}

// fakeWriter notes what it is asked to write.
type fakeWriter struct {
	mu     sync.Mutex
	writes []string
	fail   map[model.ServiceName]error
	// due is when the first of so many collections is due.
	due         time.Time
	collections int
	// notRemoved fails when it is pruned.
	notRemoved model.ServiceName
}

func (f *fakeWriter) setPruneFailure(n model.ServiceName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.notRemoved = n
}

func (f *fakeWriter) note(s string) {
	f.writes = append(f.writes, s)
}

func (f *fakeWriter) log() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.writes)
}

func (f *fakeWriter) has(s string) bool { return slices.Contains(f.log(), s) }

func (f *fakeWriter) setFail(n model.ServiceName, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[n] = err
}

func (f *fakeWriter) Write(changes []plan.Change) writer.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	var r writer.Result
	for _, c := range changes {
		names = append(names, c.Service.Name)
		if err := f.fail[c.Service]; err != nil {
			r.Failures = append(r.Failures, writer.Failure{Port: model.ServicePortName{ServiceName: c.Service}, Err: err})
		}
	}
	f.note("write " + strings.Join(names, " "))
	return r
}

func (f *fakeWriter) SetNodeAddresses(nodePorts, _ []netip.Addr) writer.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	for _, a := range nodePorts {
		list = append(list, a.String())
	}
	f.note("node ports on " + strings.Join(list, " "))
	return writer.Result{}
}

func (f *fakeWriter) Prune(keep func(model.ServiceName) bool) writer.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	var kept []string
	for _, s := range []string{"a", "b", "c"} {
		if keep(name(s)) {
			kept = append(kept, s)
		}
	}
	f.note("prune all but " + strings.Join(kept, " "))
	if f.notRemoved == (model.ServiceName{}) {
		return writer.Result{}
	}
	return writer.Result{Failures: []writer.Failure{{Port: model.ServicePortName{ServiceName: f.notRemoved},
		Err: errors.New("not permitted")}}}
}

// collectable makes something due that many times, each after longer than two looks at the sockets are apart.
func (f *fakeWriter) collectable(times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.due, f.collections = time.Now().Add(2*stalePause), times
}

func (f *fakeWriter) Due() (time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.due, f.collections > 0
}

func (f *fakeWriter) Collect() writer.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.collections--
	f.due = f.due.Add(2 * stalePause)
	return writer.Result{}
}

// fakeObserver notes the passes and problems.
type fakeObserver struct {
	mu         sync.Mutex
	passes     []Pass
	programmed []string
}

func (o *fakeObserver) ServiceChanged(model.ServiceName, string)        {}
func (o *fakeObserver) SliceChanged(model.SliceName)                    {}
func (o *fakeObserver) NodeChanged(*source.Node, node.IPs)              {}
func (o *fakeObserver) Problems(model.ServiceName, []model.Problem)     {}
func (o *fakeObserver) SourceProblems(string, string, []source.Problem) {}
func (o *fakeObserver) Programmed(n model.ServiceName, _ []model.ServicePort, _ []model.HealthCheck) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.programmed = append(o.programmed, n.Name)
}

func (o *fakeObserver) Passed(p Pass) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.passes = append(o.passes, p)
}

func (o *fakeObserver) last() (Pass, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.passes) == 0 {
		return Pass{}, 0
	}
	return o.passes[len(o.passes)-1], len(o.passes)
}

func TestNothingIsWrittenBeforeTheSourceHasSynced(t *testing.T) {
	w := start(t)
	w.addresses <- local
	w.send(service("a", model.TCP), service("b", model.TCP), slice("a", time.Time{}))
	if got := w.writer.log(); len(got) > 0 {
		t.Fatalf("written before the sync: %v", got)
	}
	w.send(source.Synced{})
	w.eventually("the first pass", func() bool { _, n := w.observer.last(); return n == 1 })
	want := []string{"node ports on 192.0.2.1", "write a b", "prune all but a b"}
	if got := w.writer.log(); !slices.Equal(got, want) {
		t.Errorf("first pass wrote %q, want %q", got, want)
	}
	if p, _ := w.observer.last(); !p.Full {
		t.Error("the first pass is not full")
	}
}

func TestAPassWritesOnlyWhatHasChanged(t *testing.T) {
	w := start(t)
	w.addresses <- local
	w.send(service("a", model.TCP), service("b", model.TCP), source.Synced{})
	w.eventually("the first pass", func() bool { _, n := w.observer.last(); return n == 1 })
	w.send(slice("b", time.Now().Add(-time.Minute)))
	w.eventually("the change of b", func() bool { return w.writer.has("write b") })
	p, n := w.observer.last()
	if n != 2 || p.Full || p.Services != 1 {
		t.Errorf("pass %d was %+v, want a second one, of one Service", n, p)
	}
	if len(p.Latencies) != 0 {
		t.Errorf("latencies %v: a change from before the start counts", p.Latencies)
	}
	w.send(source.DeleteSlice{Name: model.SliceName{Namespace: "default", Name: "b-1"}}, slice("b", time.Now()))
	w.eventually("the latency of b", func() bool { p, _ := w.observer.last(); return len(p.Latencies) == 1 })
}

func TestAFailedServiceIsTriedAgainAndStopsNoOther(t *testing.T) {
	w := start(t)
	w.writer.setFail(name("a"), errors.New("map services is full"))
	w.addresses <- local
	w.send(service("a", model.TCP), service("b", model.TCP), source.Synced{})
	w.eventually("an attempt of a alone", func() bool { return w.writer.has("write a") })
	w.observer.mu.Lock()
	done := slices.Clone(w.observer.programmed)
	w.observer.mu.Unlock()
	if !slices.Equal(done, []string{"b"}) {
		t.Errorf("programmed %q, want b alone", done)
	}
	w.send(service("c", model.TCP))
	w.eventually("c beside the failure", func() bool { return w.writer.has("write c") || w.writer.has("write a c") })
	w.writer.setFail(name("a"), nil)
	w.eventually("a at last", func() bool {
		w.observer.mu.Lock()
		defer w.observer.mu.Unlock()
		return slices.Contains(w.observer.programmed, "a")
	})
}

func TestTheNodeDecidesWhichAddressesServeNodePorts(t *testing.T) {
	w := start(t)
	w.addresses <- []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	w.send(source.SetNode{Node: &source.Node{Node: model.Node{Name: "n1"}, Addresses: local}}, source.Synced{})
	w.eventually("node ports on the node's own address", func() bool { return w.writer.has("node ports on 192.0.2.1") })
	moved := []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	w.send(source.SetNode{Node: &source.Node{Node: model.Node{Name: "n1"}, Addresses: moved}})
	w.eventually("node ports on the new address", func() bool { return w.writer.has("node ports on 192.0.2.2") })
}

func TestUDPSocketsAreLookedThroughWhenUDPBackendsMayHaveGone(t *testing.T) {
	w := start(t)
	w.addresses <- local
	w.send(source.Synced{})
	for _, row := range []struct {
		what  string
		event source.Event
		looks bool
	}{
		{"the first pass, about what an earlier agent left", nil, true},
		{"a TCP Service", service("a", model.TCP), false},
		{"a UDP Service", service("b", model.UDP), true},
		{"a UDP Service that turns into a TCP one", service("b", model.TCP), true},
		{"what is now a TCP Service", source.DeleteService{Name: name("b")}, false},
		{"another UDP Service", service("c", model.UDP), true},
		{"a UDP Service that goes", source.DeleteService{Name: name("c")}, true},
	} {
		_, before := w.observer.last()
		if row.event != nil {
			w.send(row.event)
			w.eventually("a pass", func() bool { _, n := w.observer.last(); return n > before })
		}
		if row.looks {
			w.awaitLook(row.what)
		}
		select {
		case <-w.stale:
			t.Errorf("looked through once more for %s", row.what)
		default:
		}
	}
	w.writer.collectable(2)
	w.send(service("c", model.UDP))
	for _, what := range []string{"the pass", "the first collection", "the last one"} {
		w.awaitLook(what)
	}
}

func TestEndpointsThatServeKeepTheUDPFlowsTheyHave(t *testing.T) {
	w := start(t)
	w.addresses <- local
	w.send(source.Synced{})
	w.awaitLook("the first pass")
	endpoint := func(address string, ready, serving bool) model.Endpoint {
		return model.Endpoint{Address: netip.MustParseAddr(address), Ready: ready, Serving: serving, Terminating: !ready}
	}
	udp := func(service string, endpoints ...model.Endpoint) source.Event {
		return source.SetSlice{Slice: &model.EndpointSlice{
			SliceName: model.SliceName{Namespace: "default", Name: service + "-1"}, Service: name(service), Family: model.IPv4,
			Ports: []model.SlicePort{{Protocol: model.UDP, Port: 53}}, Endpoints: endpoints,
		}}
	}
	w.send(service("a", model.UDP))
	w.awaitLook("a UDP Service")
	port := model.ServicePortName{ServiceName: name("a"), Protocol: model.UDP, Family: model.IPv4}
	ready, leaving := endpoint("10.244.1.1", true, true), endpoint("10.244.1.2", false, true)
	ended := endpoint("10.244.1.3", false, false)
	for _, row := range []struct {
		what  string
		event source.Event
		kept  string
	}{
		{"a Service of one that leaves and one that has ended", udp("a", ready, leaving, ended), "10.244.1.2:53"},
		{"it has ended too", udp("a", ready, ended), ""},
		{"it is back", udp("a", ready, leaving), "10.244.1.2:53"},
		{"the Service is deleted", source.DeleteService{Name: name("a")}, ""},
	} {
		w.send(row.event)
		keep := w.awaitLook(row.what)
		for _, address := range []string{"10.244.1.1:53", "10.244.1.2:53", "10.244.1.2:54", "10.244.1.3:53"} {
			if got := keep(port, netip.MustParseAddrPort(address)); got != (address == row.kept) {
				t.Errorf("%s: keep(%s) = %v", row.what, address, got)
			}
		}
		other := port
		other.Port = "other"
		if row.kept != "" && keep(other, netip.MustParseAddrPort(row.kept)) {
			t.Errorf("%s: kept for another port of the Service", row.what)
		}
	}
}

func TestALookThroughUDPSocketsThatFailsIsRepeatedAndReportedOnce(t *testing.T) {
	looks, failing := make(chan struct{}, 10), 2
	var said strings.Builder
	s := newStaleFlows(func(Keep) (int, error) {
		defer func() { looks <- struct{}{} }()
		if failing--; failing >= 0 {
			return 0, errors.New("the namespace cannot be entered")
		}
		return 1, nil
	}, slog.New(slog.NewTextHandler(&said, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { s.run(ctx); close(ended) }()
	s.check()
	for look := range 3 {
		select {
		case <-looks:
		case <-time.After(20 * time.Second):
			t.Fatalf("after %d looks there is no other", look)
		}
	}
	cancel()
	<-ended
	if n := strings.Count(said.String(), "cannot be entered"); n != 1 {
		t.Errorf("reported %d times: %s", n, said.String())
	}
}

// awaitLook waits until the sockets are looked through.
func (w *world) awaitLook(why string) Keep {
	w.t.Helper()
	select {
	case keep := <-w.stale:
		return keep
	case <-time.After(10 * time.Second):
		w.t.Fatalf("not looked through for %s", why)
	}
	return nil
}

func TestADifferenceThatTheAuditFindsWritesEverythingAgain(t *testing.T) {
	w := start(t)
	w.addresses <- local
	w.send(service("a", model.TCP), service("b", model.TCP), source.Synced{})
	w.eventually("the first pass", func() bool { _, n := w.observer.last(); return n == 1 })
	w.audits <- "map services: 3 elements, 2 were written"
	w.eventually("a second full pass", func() bool { p, n := w.observer.last(); return n == 2 && p.Full })
	if got := w.writer.log(); !slices.Equal(got[len(got)/2:], got[:len(got)/2]) {
		t.Errorf("the second full pass wrote other things than the first: %q", got)
	}
}

func TestWhatWasWrittenTogetherIsProgrammedTogether(t *testing.T) {
	w := start(t)
	w.addresses <- local
	w.send(service("a", model.TCP), slice("a", time.Time{}), source.Synced{})
	w.eventually("the first pass", func() bool { _, n := w.observer.last(); return n == 1 })
	// Each event by itself would be a change worth a pass.
	batch := source.Batch{service("a", model.UDP)}
	for _, s := range []string{"b", "c"} {
		batch = append(batch, service(s, model.TCP), slice(s, time.Time{}))
	}
	for range 100 {
		batch = append(batch, service("a", model.TCP), service("a", model.UDP))
	}
	w.send(batch)
	w.eventually("the batch", func() bool { _, n := w.observer.last(); return n == 2 })
	if got := w.writer.log(); got[len(got)-1] != "write a b c" {
		t.Errorf("wrote %q, want the whole batch in one pass", got)
	}
}

func TestAFailureToRemoveIsTriedAgain(t *testing.T) {
	w := start(t)
	w.addresses <- local
	w.writer.setPruneFailure(name("c"))
	w.send(service("a", model.TCP), source.Synced{})
	w.eventually("the removal of c", func() bool { return w.writer.has("write c") })
}

func TestRunEndsWithTheSourcesError(t *testing.T) {
	w := &world{t: t, events: make(chan source.Event), writer: &fakeWriter{}, observer: &fakeObserver{}}
	r := New(Options{
		Source: w, Model: model.New(model.Config{}), Writer: w.writer, Observer: w.observer,
		WatchAddresses: func(ctx context.Context, _ func([]netip.Addr)) error { <-ctx.Done(); return nil },
		Log:            slog.New(slog.DiscardHandler),
	})
	go func() { w.events <- nil }()
	if err := r.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "cannot go on") {
		t.Errorf("Run = %v, want the source's error", err)
	}
}
