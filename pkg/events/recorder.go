// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

const (
	// repeatAfter is a bit more than the hour for which an API server keeps Events.
	repeatAfter = 65 * time.Minute
	// maxQueue bounds what waits for the rate limit or the API server.
	maxQueue = 1000
	// The rate limit: a start may find a few problems at once; afterwards one Event every two seconds is plenty.
	burst     = 25
	perSecond = 0.5
	// retryAfter is how long an API server that does not answer is left alone.
	retryAfter = 10 * time.Second
	// sendTimeout bounds one request.
	sendTimeout = 10 * time.Second
)

// Sink creates Events.
type Sink interface {
	Create(ctx context.Context, event *eventsv1.Event) error
}

// APISink creates Events in an API server.
type APISink struct {
	Client eventsclient.EventsV1Interface
}

// Create implements Sink.
func (s APISink) Create(ctx context.Context, event *eventsv1.Event) error {
	_, err := s.Client.Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	return err
}

// Options are what New needs.
type Options struct {
	// Sink is nil where there is no API server: the log has everything then.
	Sink Sink
	// Node is this node's name.
	Node string
	Log  *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Wait returns when the next Event may be sent; nil: the rate limit.
	Wait func(ctx context.Context) error
	// Pause returns after a while, or when ctx ends; nil: ten seconds.
	Pause func(ctx context.Context)
}

// Origin is who finds problems of an object; each says for itself which there are.
type Origin struct {
	// By is a word for what finds them.
	By string
	// Object is what they are problems of; its zero value where By says it.
	Object source.Object
}

// The origins that are about one Service.
const (
	byModel       = "model"
	byProgramming = "programming"
	byHealthPort  = "healthCheckNodePort"
)

// Model is the origin of what is wrong with a Service among the others.
func Model(name model.ServiceName) Origin { return Origin{byModel, serviceObject(name)} }

// Programming is the origin of what could not be programmed of a Service.
func Programming(name model.ServiceName) Origin { return Origin{byProgramming, serviceObject(name)} }

// HealthPort is the origin of a Service's health port of one family.
func HealthPort(name model.ServiceName, family model.Family) Origin {
	return Origin{byHealthPort + family.String(), serviceObject(name)}
}

// Recorder logs events and sends them to the sink. It is safe for concurrent use and never blocks its caller.
type Recorder struct {
	o Options

	mu sync.Mutex
	// known are the problems by origin, with the time at which each was last recorded.
	known map[Origin]map[Event]time.Time
	// uids of the Services.
	uids  map[model.ServiceName]string
	queue []*eventsv1.Event
	// lost counts Events that found the queue full since the last that found room.
	lost int
	// wake has a token when the queue has something.
	wake chan struct{}
}

// New returns a Recorder. Nothing is sent before Run.
func New(o Options) *Recorder {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Wait == nil {
		o.Wait = rate.NewLimiter(perSecond, burst).Wait
	}
	if o.Pause == nil {
		o.Pause = pause
	}
	return &Recorder{o: o, known: map[Origin]map[Event]time.Time{}, uids: map[model.ServiceName]string{},
		wake: make(chan struct{}, 1)}
}

func pause(ctx context.Context) {
	timer := time.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// SetUID says which object a Service's name stands for; empty: none.
func (r *Recorder) SetUID(service model.ServiceName, uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid == "" {
		delete(r.uids, service)
	} else {
		r.uids[service] = uid
	}
}

// Record records what has happened just now. A problem is one Event for all times at which it says the same; what is
// normal is told each time.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log(e)
	now, salt := r.o.Now(), ""
	if e.Normal {
		salt = strconv.FormatInt(now.UnixNano(), 10)
	}
	r.enqueue(r.identify(e), salt, now)
}

// identify adds a UID.
func (r *Recorder) identify(e Event) Event {
	switch {
	case e.UID != "":
	case e.Object.Kind == source.KindService:
		e.UID = r.uids[model.ServiceName{Namespace: e.Object.Namespace, Name: e.Object.Name}]
	case e.Object.Kind == source.KindNode:
		e.UID = e.Object.Name
	}
	return e
}

// Set makes problems all that an origin finds: new ones are recorded, those that it had before are not again until their
// Events have expired, those that are missing are over.
func (r *Recorder) Set(origin Origin, problems []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, now := r.known[origin], r.o.Now()
	if len(problems) == 0 && len(before) == 0 {
		return // the rule
	}
	after := make(map[Event]time.Time, len(problems))
	for _, e := range problems {
		e = r.identify(e)
		recorded, ok := before[e]
		if !ok {
			recorded = now
			r.log(e)
			r.enqueue(e, "", now)
		}
		after[e] = recorded
	}
	for e := range before {
		if _, ok := after[e]; !ok {
			r.o.Log.Info("problem is over", append(e.about(), "note", e.Note)...)
		}
	}
	if len(after) == 0 {
		delete(r.known, origin)
		return
	}
	r.known[origin] = after
}

// repeat records problems again that are older than an Event lives.
func (r *Recorder) repeat() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.o.Now()
	for _, problems := range r.known {
		for e, recorded := range problems {
			if now.Sub(recorded) >= repeatAfter {
				problems[e] = now
				r.enqueue(e, "", now)
			}
		}
	}
}

func (r *Recorder) log(e Event) {
	level := slog.LevelWarn
	if e.Normal {
		level = slog.LevelInfo
	}
	r.o.Log.Log(context.Background(), level, e.Note, e.about()...)
}

func (r *Recorder) enqueue(e Event, salt string, now time.Time) {
	if r.o.Sink == nil || !e.hasObject() {
		return
	}
	if len(r.queue) >= maxQueue {
		if r.lost++; r.lost == 1 {
			r.o.Log.Warn("too many Events wait for the API server: more are in this log only", "waiting", maxQueue)
		}
		return
	}
	r.lost = 0
	r.queue = append(r.queue, e.api(r.o.Node, salt, now))
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run sends what is recorded until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			r.repeat()
		case <-r.wake:
			r.drain(ctx)
		}
	}
}

// drain sends the queue, oldest first.
func (r *Recorder) drain(ctx context.Context) {
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.queue = nil
			r.mu.Unlock()
			return
		}
		event := r.queue[0]
		r.queue = r.queue[1:]
		r.mu.Unlock()
		if !r.send(ctx, event) {
			return
		}
	}
}

// send sends one Event until the API server has answered; it reports false when ctx has ended.
func (r *Recorder) send(ctx context.Context, event *eventsv1.Event) bool {
	for {
		if err := r.o.Wait(ctx); err != nil {
			return false
		}
		attempt, cancel := context.WithTimeout(ctx, sendTimeout)
		err := r.o.Sink.Create(attempt, event)
		cancel()
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil, apierrors.IsAlreadyExists(err): // another node, or this one before it restarted, has said it
			return true
		case answered(err):
			r.o.Log.Warn("the API server refuses an Event", "object", event.Regarding.Kind+" "+event.Regarding.Namespace+
				"/"+event.Regarding.Name, "reason", event.Reason, "err", err)
			return true
		}
		r.o.Pause(ctx)
	}
}

// answered reports whether an error is the API server's last word, so that trying again would not help.
func answered(err error) bool {
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && !apierrors.IsTooManyRequests(err) &&
		!apierrors.IsServerTimeout(err) && !apierrors.IsTimeout(err) && !apierrors.IsInternalError(err) &&
		!apierrors.IsServiceUnavailable(err)
}
