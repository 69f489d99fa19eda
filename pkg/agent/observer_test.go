// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	eventsv1 "k8s.io/api/events/v1"

	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/events"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/node"
	"github.com/shunt-lb/shunt/pkg/reconcile"
	"github.com/shunt-lb/shunt/pkg/source"
	"github.com/shunt-lb/shunt/pkg/writer"
)

// sink keeps Events, as "object uid reason note".
type sink struct {
	mu   sync.Mutex
	kept []string
}

func (s *sink) Create(_ context.Context, e *eventsv1.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, fmt.Sprintf("%s %s %s %s", e.Regarding.Name, e.Regarding.UID, e.Reason, e.Note))
	return nil
}

// take returns what came since the last call, in the order of the alphabet.
func (s *sink) take() []string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.kept
	s.kept = nil
	slices.Sort(taken)
	return taken
}

// observed runs test with an observer whose Events go to a sink, in a bubble whose time is virtual.
func observed(t *testing.T, test func(o *observer, a *agent, s *sink, log *strings.Builder)) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := &sink{}
		logger := slog.New(slog.NewTextHandler(&log, nil))
		reporter := events.New(events.Options{Sink: s, Node: "n", Log: logger})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- reporter.Run(ctx) }()
		a := &agent{cfg: &config.Config{}, log: logger, datapath: &datapath{}}
		a.makeServers(reporter)
		defer a.services.Close()
		test(newObserver(observer{proxy: a.proxy, services: a.services, metrics: a.metrics, reporter: reporter,
			log: logger, nodeChanged: a.nodeChanged}), a, s, &log)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

var (
	web       = model.ServiceName{Namespace: "shop", Name: "web"}
	webPort   = model.ServicePortName{ServiceName: web, Port: "http", Protocol: model.TCP, Family: model.IPv4}
	mapIsFull = writer.Failure{Port: webPort, Err: &maps.FullError{Map: maps.MapSlots, Size: 8}}
)

func want(t *testing.T, when string, got []string, parts ...string) {
	t.Helper()
	if len(got) != len(parts) {
		t.Errorf("%s: Events %q, want %d", when, got, len(parts))
		return
	}
	for i, part := range parts {
		if !strings.Contains(got[i], part) {
			t.Errorf("%s: Event %q, want %q in it", when, got[i], part)
		}
	}
}

func TestAServiceThatCannotBeProgrammedIsAnEventUntilItCanBe(t *testing.T) {
	observed(t, func(o *observer, _ *agent, s *sink, log *strings.Builder) {
		o.ServiceChanged(web, "u1")
		for range 3 { // attempts
			o.Passed(reconcile.Pass{Failures: []writer.Failure{mapIsFull}})
		}
		want(t, "full", s.take(), "web u1 MapFull port \"http\" (TCP, IPv4)")
		o.Passed(reconcile.Pass{}) // about something else
		time.Sleep(70 * time.Minute)
		want(t, "still full when the Event has expired", s.take(), "web u1 MapFull")
		o.Programmed(web, nil, nil)
		time.Sleep(3 * time.Hour)
		want(t, "programmed", s.take())
		o.Passed(reconcile.Pass{Failures: []writer.Failure{{Port: webPort, Err: errors.New("no memory")}}})
		want(t, "another fault", s.take(), "web u1 NotProgrammed")
		o.Passed(reconcile.Pass{Failures: []writer.Failure{{Err: errors.New("addresses")}}})
		want(t, "a fault of no Service", s.take())
		if !strings.Contains(log.String(), "err=addresses") {
			t.Errorf("log %s", log)
		}
	})
}

func TestProblemsOfTheModelAndOfTheSourceAreEventsWithTheUID(t *testing.T) {
	observed(t, func(o *observer, _ *agent, s *sink, _ *strings.Builder) {
		problem := []model.Problem{{Service: web, Reason: model.ReasonFrontendConflict, Message: "taken"}}
		invalid := []source.Problem{{Object: source.Object{Kind: source.KindService, Namespace: "shop", Name: "web"},
			Reason: source.ReasonInvalidField, Message: "no address"}}
		o.ServiceChanged(web, "u1")
		for range 2 {
			o.SourceProblems("Service shop/web", "u1", invalid)
			o.Problems(web, problem)
		}
		want(t, "two problems", s.take(), "web u1 FrontendConflict taken", "web u1 InvalidField Service shop/web: no address")
		o.SourceProblems("Service shop/web", "u1", nil)
		time.Sleep(70 * time.Minute)
		want(t, "one lasts", s.take(), "web u1 FrontendConflict taken")
		o.Problems(web, nil)
		o.ServiceChanged(web, "")
		time.Sleep(3 * time.Hour)
		want(t, "none lasts", s.take())
	})
}

func TestAHealthPortThatIsTakenIsAnEventOfItsService(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := uint16(taken.Addr().(*net.TCPAddr).Port)
	observed(t, func(o *observer, a *agent, s *sink, log *strings.Builder) {
		var err error
		if a.nodePorts, err = node.ParseNodePortAddresses([]string{"0.0.0.0/0"}); err != nil {
			t.Fatal(err)
		}
		o.ServiceChanged(web, "u1")
		for range 2 {
			o.Programmed(web, nil, []model.HealthCheck{{Family: model.IPv4, Port: port, LocalReady: 1}})
			o.Passed(reconcile.Pass{})
		}
		want(t, "taken", s.take(), "web u1 FailedToStartServiceHealthcheck open healthCheckNodePort")
		if n := strings.Count(log.String(), "healthCheckNodePort"); n != 1 {
			t.Errorf("logged %d times: %s", n, log)
		}
	})
}

func TestHealthPortsListenOnTheAddressesOfTheDevicesThatServeNodePorts(t *testing.T) {
	a := &agent{}
	var err error
	if a.nodePorts, err = node.ParseNodePortAddresses([]string{"192.0.2.0/24"}); err != nil {
		t.Fatal(err)
	}
	serving := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")}
	a.setAddresses(append([]netip.Addr{netip.MustParseAddr("198.51.100.1")}, serving...))
	if got, all := a.healthListeners(model.IPv4); all || !slices.Equal(got, serving) {
		t.Errorf("IPv4 on %v, all %v", got, all)
	}
	if got, all := a.healthListeners(model.IPv6); !all {
		t.Errorf("IPv6, of which the list has no prefix, on %v", got)
	}
}
