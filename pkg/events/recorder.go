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

// Recorder logs events and sends them to the sink. It is safe for concurrent use and never blocks its caller.
type Recorder struct {
	o Options

	mu sync.Mutex
	// known are the problems of each object, with the time at which they were last recorded.
	known map[source.Object]map[Event]time.Time
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
	return &Recorder{o: o, known: map[source.Object]map[Event]time.Time{}, wake: make(chan struct{}, 1)}
}

func pause(ctx context.Context) {
	timer := time.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Record records an event once, whatever was recorded before.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log(e)
	now := r.o.Now()
	r.enqueue(e.api(r.o.Node, strconv.FormatInt(now.UnixNano(), 10), now))
}

// Report records a problem that its caller has logged and tells once: unlike those of Set it is not told again when the
// Event has expired.
func (r *Recorder) Report(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enqueue(e.api(r.o.Node, "", r.o.Now()))
}

// ServiceProblem reports a problem of a Service; uid may be empty.
func (r *Recorder) ServiceProblem(uid string, p model.Problem) { r.Report(FromModel(p, uid)) }

// SourceProblem reports a problem of an object as it was received. Where it names no object, or a file, there is
// nothing that an Event could be about.
func (r *Recorder) SourceProblem(p source.Problem) {
	if _, ok := apiVersions[p.Object.Kind]; ok && p.Object.Name != "" {
		r.Report(FromSource(p, ""))
	}
}

// Set makes problems all that an object has: new ones are recorded, those that it had before are not again, those that
// are missing are over.
func (r *Recorder) Set(object source.Object, problems []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, now := r.known[object], r.o.Now()
	after := make(map[Event]time.Time, len(problems))
	for _, e := range problems {
		recorded, ok := before[e]
		if !ok {
			recorded = now
			r.log(e)
			r.enqueue(e.api(r.o.Node, "", now))
		}
		after[e] = recorded
	}
	for e := range before {
		if _, ok := after[e]; !ok {
			r.o.Log.Info("problem is over", "object", object.String(), "reason", e.Reason, "note", e.Note)
		}
	}
	if len(after) == 0 {
		delete(r.known, object)
		return
	}
	r.known[object] = after
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
				r.enqueue(e.api(r.o.Node, "", now))
			}
		}
	}
}

func (r *Recorder) log(e Event) {
	level := slog.LevelWarn
	if e.Normal {
		level = slog.LevelInfo
	}
	r.o.Log.Log(context.Background(), level, e.Note, "object", e.Object.String(), "reason", e.Reason)
}

func (r *Recorder) enqueue(event *eventsv1.Event) {
	if r.o.Sink == nil {
		return
	}
	if len(r.queue) >= maxQueue {
		if r.lost++; r.lost == 1 {
			r.o.Log.Warn("too many Events wait for the API server: more are in this log only", "waiting", maxQueue)
		}
		return
	}
	r.lost = 0
	r.queue = append(r.queue, event)
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
