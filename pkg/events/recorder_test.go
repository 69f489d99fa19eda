// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

// server is an API server that keeps Events by name. Answers has the errors of the next requests.
type server struct {
	mu       sync.Mutex
	kept     []*eventsv1.Event
	answers  []error
	requests int
}

func (s *server) Create(_ context.Context, e *eventsv1.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	if len(s.answers) > 0 {
		err := s.answers[0]
		s.answers = s.answers[1:]
		if err != nil {
			return err
		}
	}
	for _, other := range s.kept {
		if other.Namespace == e.Namespace && other.Name == e.Name {
			return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, e.Name)
		}
	}
	s.kept = append(s.kept, e)
	return nil
}

func (s *server) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func (s *server) events() []*eventsv1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.kept)
}

func (s *server) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = nil
}

func (s *server) notes() []string {
	var notes []string
	for _, e := range s.events() {
		notes = append(notes, e.Note)
	}
	return notes
}

// run runs test beside a recorder in a bubble whose time is virtual.
func run(t *testing.T, o Options, test func(r *Recorder, log *strings.Builder)) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		r := New(o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		test(r, &log)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

var (
	web   = source.Object{Kind: source.KindService, Namespace: "shop", Name: "web"}
	other = source.Object{Kind: source.KindService, Namespace: "shop", Name: "other"}
	// aboutWeb is one who finds problems of web.
	aboutWeb = Model(model.ServiceName{Namespace: "shop", Name: "web"})
	shared   = Event{Object: web, UID: "u1", Reason: model.ReasonFrontendConflict, Action: ActionTranslate, Note: "taken"}
)

func TestAProblemIsOneEventOnItsObject(t *testing.T) {
	s := &server{}
	run(t, Options{Sink: s, Node: "node-1"}, func(r *Recorder, log *strings.Builder) {
		problem := model.Problem{Service: model.ServiceName{Namespace: "shop", Name: "web"},
			Reason: model.ReasonFrontendConflict, Message: "spec.externalIPs: 192.0.2.1 belongs to shop/other"}
		r.SetUID(problem.Service, "u1")
		for range 5 {
			r.Set(aboutWeb, []Event{FromModel(problem)})
		}
		synctest.Wait()
		if len(s.events()) != 1 {
			t.Fatalf("Events %q", s.notes())
		}
		e := s.events()[0]
		if e.Namespace != "shop" || e.Regarding.Kind != "Service" || e.Regarding.APIVersion != "v1" ||
			e.Regarding.Name != "web" || e.Regarding.Namespace != "shop" || e.Regarding.UID != "u1" {
			t.Errorf("about %+v in %s", e.Regarding, e.Namespace)
		}
		if e.Type != "Warning" || e.Reason != "FrontendConflict" || e.Action != "Translate" || e.Note != problem.Message ||
			e.ReportingController != "shunt" || e.ReportingInstance != "shunt-node-1" || e.EventTime.IsZero() {
			t.Errorf("Event %+v", e)
		}
		if strings.Count(log.String(), "level=WARN") != 1 || !strings.Contains(log.String(), "192.0.2.1") {
			t.Errorf("log %s", log)
		}
	})
}

func TestProblemsThatAreOverAreNotRepeatedAndNewOnesAreRecorded(t *testing.T) {
	s := &server{}
	second := shared
	second.Note = "also taken"
	run(t, Options{Sink: s}, func(r *Recorder, log *strings.Builder) {
		r.Set(aboutWeb, []Event{shared})
		r.Set(Origin{Object: other}, nil)
		r.Set(aboutWeb, []Event{second})
		synctest.Wait()
		if !strings.Contains(log.String(), `msg="problem is over" object="Service shop/web" reason=FrontendConflict note=taken`) {
			t.Errorf("log %s", log)
		}
		r.Set(aboutWeb, nil)
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if want := []string{"taken", "also taken"}; !slices.Equal(s.notes(), want) || s.asked() != 2 {
			t.Errorf("Events %q after %d requests, want %q", s.notes(), s.asked(), want)
		}
	})
}

func TestAProblemThatLastsIsRecordedAgainWhenItsEventHasExpired(t *testing.T) {
	s := &server{}
	run(t, Options{Sink: s}, func(r *Recorder, _ *strings.Builder) {
		r.Set(aboutWeb, []Event{shared})
		time.Sleep(64 * time.Minute)
		synctest.Wait()
		if s.asked() != 1 {
			t.Fatalf("%d requests within the hour", s.asked())
		}
		s.expire()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(s.events()) != 1 {
			t.Errorf("Events %q", s.notes())
		}
	})
}

func TestNodesThatSeeTheSameProblemMakeOneEvent(t *testing.T) {
	s := &server{}
	own := OnService(model.ServiceName{Namespace: "shop", Name: "web"}, ReasonServiceHealthcheck, ActionListen,
		"open healthCheckNodePort 30000")
	for _, node := range []string{"node-1", "node-2", "node-3"} {
		run(t, Options{Sink: s, Node: node}, func(r *Recorder, _ *strings.Builder) {
			r.Set(aboutWeb, []Event{shared, own})
			synctest.Wait()
		})
	}
	if got := s.notes(); len(got) != 4 || got[0] != "taken" {
		t.Errorf("Events %q: want one of all nodes, and one of each", got)
	}
}

func TestARecordedEventIsAlwaysNew(t *testing.T) {
	s := &server{}
	start := OnNode("node-1", ReasonStarting, ActionStart, "")
	start.Normal = true
	run(t, Options{Sink: s, Node: "node-1"}, func(r *Recorder, _ *strings.Builder) {
		r.Record(start)
		time.Sleep(time.Second)
		r.Record(start)
		synctest.Wait()
	})
	if len(s.events()) != 2 {
		t.Fatalf("%d Events", len(s.events()))
	}
	if e := s.events()[0]; e.Type != "Normal" || e.Namespace != "default" || e.Regarding.Kind != "Node" ||
		e.Regarding.Namespace != "" || e.Regarding.Name != "node-1" || e.Regarding.UID != "node-1" {
		t.Errorf("Event %+v", e)
	}
}

func TestTheAPIServerIsAskedAgainUntilItAnswers(t *testing.T) {
	events := schema.GroupResource{Resource: "events"}
	s := &server{answers: []error{
		errors.New("connection refused"), apierrors.NewServerTimeout(events, "create", 1),
		apierrors.NewTooManyRequests("busy", 1), apierrors.NewInternalError(errors.New("etcd")), nil,
		apierrors.NewForbidden(events, "web", errors.New("namespace is being terminated")), nil,
	}}
	run(t, Options{Sink: s}, func(r *Recorder, log *strings.Builder) {
		begin := time.Now()
		for _, note := range []string{"one", "two", "three"} {
			e := shared
			e.Note = note
			r.Record(e)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := s.notes(); !slices.Equal(got, []string{"one", "three"}) || s.asked() != 7 {
			t.Errorf("Events %q after %d requests", got, s.asked())
		}
		if strings.Count(log.String(), "refuses an Event") != 1 {
			t.Errorf("log %s", log)
		}
		if waited := s.events()[0].EventTime.Sub(begin); waited != 0 {
			t.Errorf("the Event's time is %s after it happened", waited)
		}
	})
}

func TestTheRateIsLimited(t *testing.T) {
	s := &server{}
	run(t, Options{Sink: s}, func(r *Recorder, log *strings.Builder) {
		for i := range maxQueue + 500 {
			e := shared
			e.UID = time.Duration(i).String()
			r.Set(Origin{By: e.UID}, []Event{e})
		}
		synctest.Wait()
		if s.asked() != burst {
			t.Errorf("%d Events at once, want %d", s.asked(), burst)
		}
		time.Sleep(100*time.Second + time.Millisecond)
		synctest.Wait()
		if s.asked() != burst+50 {
			t.Errorf("%d Events after 100 s, want %d", s.asked(), burst+50)
		}
		if strings.Count(log.String(), "too many Events") != 1 {
			t.Errorf("the log does not say once that Events are lost")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if s.asked() > maxQueue+burst+1 { // some were sent while the queue filled
			t.Errorf("%d Events, more than wait at most", s.asked())
		}
	})
}

func TestWithoutAnAPIServerTheLogHasEverything(t *testing.T) {
	run(t, Options{}, func(r *Recorder, log *strings.Builder) {
		r.Set(aboutWeb, []Event{shared})
		synctest.Wait()
		if !strings.Contains(log.String(), "taken") || len(r.queue) != 0 {
			t.Errorf("log %s, queue %d", log, len(r.queue))
		}
	})
}

func TestTheTextsFitTheAPI(t *testing.T) {
	long := Event{Object: source.Object{Kind: source.KindEndpointSlice, Namespace: "shop", Name: strings.Repeat("n", 253)},
		Note: strings.Repeat("x", 1020) + "äöü"}
	e := long.api(strings.Repeat("h", 200), "", time.Unix(1, 0))
	if len(e.Name) > 253 || len(e.Note) > 1024 || !strings.HasSuffix(e.Note, "x...") || len(e.ReportingInstance) > 128 {
		t.Errorf("name %d, note %d %q, instance %d", len(e.Name), len(e.Note), e.Note[1000:], len(e.ReportingInstance))
	}
	if e.Regarding.APIVersion != "discovery.k8s.io/v1" {
		t.Errorf("about %+v", e.Regarding)
	}
}

func TestTheAPISinkCreatesEventsInTheirNamespace(t *testing.T) {
	client := fake.NewClientset()
	sink := APISink{client.EventsV1()}
	if err := sink.Create(t.Context(), shared.api("node-1", "", time.Unix(1, 0))); err != nil {
		t.Fatal(err)
	}
	if err := sink.Create(t.Context(), shared.api("node-2", "", time.Unix(2, 0))); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the second = %v", err)
	}
}

func TestAProblemOfTheSourceKeepsItsObject(t *testing.T) {
	p := source.Problem{Object: source.Object{Kind: source.KindEndpointSlice, Namespace: "shop", Name: "web-1"},
		Field: "endpoints[0].addresses[0]", Value: "10.0.0.300", Reason: source.ReasonInvalidField, Message: "no address"}
	e := FromSource(p, "u2")
	if e.Object != p.Object || e.UID != "u2" || e.Reason != "InvalidField" || !strings.Contains(e.Note, "10.0.0.300") ||
		!strings.Contains(e.Note, "no address") || e.PerNode {
		t.Errorf("Event %+v", e)
	}
}

func TestEachOriginSpeaksForItself(t *testing.T) {
	s := &server{}
	name := model.ServiceName{Namespace: "shop", Name: "web"}
	run(t, Options{Sink: s}, func(r *Recorder, _ *strings.Builder) {
		full := OnService(name, ReasonMapFull, ActionTranslate, "full")
		r.Set(Programming(name), []Event{full})
		r.Set(aboutWeb, []Event{shared})
		r.Set(HealthPort(name, model.IPv4), []Event{OnService(name, ReasonServiceHealthcheck, ActionListen, "4")})
		r.Set(HealthPort(name, model.IPv6), nil)
		r.Set(aboutWeb, nil)
		r.Set(Programming(name), []Event{full})
		synctest.Wait()
		if want := []string{"full", "taken", "4"}; !slices.Equal(s.notes(), want) {
			t.Errorf("Events %q, want %q", s.notes(), want)
		}
	})
}

func TestTheEventsOfAServiceCarryTheUIDOfTheServiceThatNowHasTheName(t *testing.T) {
	s := &server{}
	name := model.ServiceName{Namespace: "shop", Name: "web"}
	problem := []Event{FromModel(model.Problem{Service: name, Reason: model.ReasonFrontendConflict, Message: "taken"})}
	run(t, Options{Sink: s}, func(r *Recorder, _ *strings.Builder) {
		r.Set(aboutWeb, problem)
		for _, uid := range []string{"u1", "u2", ""} {
			r.SetUID(name, uid)
			r.Set(aboutWeb, problem)
			r.Record(OnService(name, ReasonBindConflict, ActionListen, "bound by "+uid))
		}
		synctest.Wait()
	})
	var got []string
	for _, e := range s.events() {
		got = append(got, string(e.Regarding.UID)+" "+e.Note)
	}
	want := []string{" taken", "u1 taken", "u1 bound by u1", "u2 taken", "u2 bound by u2", " bound by "}
	if !slices.Equal(got, want) {
		t.Errorf("Events %q, want %q", got, want)
	}
}

func TestWhatIsAboutNoObjectOfTheAPIIsInTheLogAlone(t *testing.T) {
	s := &server{}
	run(t, Options{Sink: s}, func(r *Recorder, log *strings.Builder) {
		r.Set(Origin{By: "a.yaml"}, []Event{
			FromSource(source.Problem{Where: "a.yaml", Reason: source.ReasonUnreadable, Message: "no file"}, ""),
			FromSource(source.Problem{Object: source.Object{Kind: "Pod", Name: "p"}, Message: "no such kind"}, ""),
		})
		r.Set(Origin{By: "a.yaml"}, nil)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if s.asked() > 0 {
			t.Errorf("Events %q", s.notes())
		}
		for _, want := range []string{"no file", "no such kind", "Pod p", "problem is over"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q: %s", want, log)
			}
		}
		if strings.Contains(log.String(), `object=" "`) {
			t.Errorf("log %s", log)
		}
	})
}

func TestAProblemThatHappensAgainAndAgainIsOneEvent(t *testing.T) {
	s := &server{}
	run(t, Options{Sink: s}, func(r *Recorder, _ *strings.Builder) {
		for range 3 {
			r.Record(shared)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if got := s.notes(); !slices.Equal(got, []string{"taken"}) {
			t.Errorf("Events %q", got)
		}
	})
}
