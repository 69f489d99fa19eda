// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/node"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/source"
	"github.com/shunt-lb/shunt/pkg/writer"
)

// Writer programs the maps; a *writer.Writer.
type Writer interface {
	Write([]plan.Change) writer.Result
	SetNodeAddresses(nodePorts, onNode []netip.Addr) writer.Result
	Prune(keep func(model.ServiceName) bool) writer.Result
	Due() (time.Time, bool)
	Collect() writer.Result
}

// Observer is told what happens, for health, metrics and users. It is called from Run's goroutine and must not block.
type Observer interface {
	// ServiceChanged and SliceChanged are called for each event, before it is programmed. uid is empty for a Service
	// that is gone, or has none.
	ServiceChanged(name model.ServiceName, uid string)
	SliceChanged(model.SliceName)
	// NodeChanged has the Node object, nil when there is none, and the node's addresses as they are used.
	NodeChanged(*source.Node, node.IPs)
	// Problems replaces what is wrong with one Service, its slices included.
	Problems(service model.ServiceName, problems []model.Problem)
	// SourceProblems replaces what is wrong at one place: an object's fields, a file, the API server. uid is the
	// object's, empty when there is no single one.
	SourceProblems(origin, uid string, problems []source.Problem)
	// Programmed is called for each Service of a pass that could be written, with its state; none: it is gone.
	Programmed(service model.ServiceName, ports []model.ServicePort, checks []model.HealthCheck)
	// Passed ends a pass.
	Passed(Pass)
}

// Pass is what one pass did.
type Pass struct {
	Started  time.Time
	Duration time.Duration
	// Full: every Service was written.
	Full       bool
	Services   int
	Operations int
	Failures   []writer.Failure
	Latencies  []Latency
}

// Latency is the time from a change in the cluster that a slice reports to the end of the pass that programmed it.
type Latency struct {
	Family   model.Family
	Duration time.Duration
}

// trigger is the beginning of a Latency.
type trigger struct {
	family model.Family
	at     time.Time
}

// Options are what a Reconciler needs.
type Options struct {
	Source source.Source
	Model  *model.Cluster
	Writer Writer
	// NodePorts and BindAddress decide, with the Node object, which addresses serve node ports.
	NodePorts   node.NodePortAddresses
	BindAddress netip.Addr
	// WatchAddresses calls its argument with the addresses of the node's devices, at once and at each change.
	WatchAddresses func(context.Context, func([]netip.Addr)) error
	// EndStale ends connected UDP sockets whose backend is not one any more, but for those that Keep speaks for, and
	// returns how many; nil: they stay.
	EndStale func(Keep) (int, error)
	// Audit compares a part of the maps with the writer's mirror, the next part at each call, and says in words how
	// they differ; the writer's mirror is then what it has found. nil: no audit.
	Audit func() (difference string, err error)
	// AuditPeriod is the pause between two calls of Audit.
	AuditPeriod time.Duration
	Observer    Observer
	// MinSyncPeriod is the pause between two passes, SyncPeriod the longest between two attempts of a failed one.
	MinSyncPeriod, SyncPeriod time.Duration
	Log                       *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Reconciler is the loop.
type Reconciler struct {
	Options

	synced bool
	// full: the next pass writes all Services and removes all others.
	full    bool
	auditAt time.Time
	// owners of the slices, to find a slice's Service when it goes.
	owners map[model.SliceName]model.ServiceName
	// triggers are the changes that slices report and that are not programmed yet.
	triggers map[model.ServiceName][]trigger
	started  time.Time

	nodeObject *source.Node
	ips        node.IPs
	onNode     []netip.Addr
	// addressesKnown: the addresses of the devices have been read.
	addressesKnown, addressesChanged bool

	// What failed waits for retryAt; zero: nothing did.
	failed          map[model.ServiceName]struct{}
	addressesFailed bool
	retryAt         time.Time
	backoff         time.Duration
	lastPass        time.Time

	stale *staleFlows
	// udp are the Services with UDP ports.
	udp map[model.ServiceName]struct{}
	// checkAgain: stale sockets are looked for once more when what waits has been collected.
	checkAgain bool
}

// firstBackoff is the pause before a failed write is tried again; it doubles up to SyncPeriod.
const firstBackoff = 250 * time.Millisecond

// New returns a Reconciler that has done nothing yet.
func New(o Options) *Reconciler {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Reconciler{
		Options:  o,
		owners:   map[model.SliceName]model.ServiceName{},
		triggers: map[model.ServiceName][]trigger{},
		failed:   map[model.ServiceName]struct{}{},
		udp:      map[model.ServiceName]struct{}{},
		started:  o.Now(),
		full:     true,
		stale:    newStaleFlows(o.EndStale, o.Log),
	}
}

// eventBuffer lets the source go on during a pass.
const eventBuffer = 4096

// Run reconciles until ctx ends; then it returns nil. It returns an error when the source gives up or the node's
// addresses cannot be read.
func (r *Reconciler) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	events := make(chan source.Event, eventBuffer)
	addresses := make(chan []netip.Addr, 1)
	go func() {
		if err := r.Source.Run(ctx, events); ctx.Err() == nil {
			cancel(ended("the source of Services", err))
		}
	}()
	go func() {
		err := r.WatchAddresses(ctx, func(now []netip.Addr) {
			select {
			case addresses <- now:
			case <-ctx.Done():
			}
		})
		if ctx.Err() == nil {
			cancel(ended("watching this node's addresses", err))
		}
	}()
	go r.stale.run(ctx)

	for ctx.Err() == nil {
		r.wait(ctx, events, addresses)
		r.work()
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

func ended(what string, err error) error {
	if err == nil {
		return fmt.Errorf("%s ended", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// wait takes the next event, or waits until something is due, and then takes all else that is there.
func (r *Reconciler) wait(ctx context.Context, events <-chan source.Event, addresses <-chan []netip.Addr) {
	var due <-chan time.Time
	if at, ok := r.nextDue(); ok {
		timer := time.NewTimer(at.Sub(r.Now()))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return
	case <-due:
	case e := <-events:
		r.event(e)
	case now := <-addresses:
		r.setAddresses(now)
	}
	// Bounded, so that a flood of events cannot keep the pass from its turn.
	for range eventBuffer {
		select {
		case e := <-events:
			r.event(e)
		case now := <-addresses:
			r.setAddresses(now)
		default:
			return
		}
	}
}

// nextDue returns when there is something to do without an event.
func (r *Reconciler) nextDue() (time.Time, bool) {
	var next time.Time
	earlier := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if at, ok := r.Writer.Due(); ok {
		earlier(at)
	}
	// Nothing of what follows is done sooner than this: to be woken for it would be to be woken in vain, at once again.
	pause := r.lastPass.Add(r.MinSyncPeriod)
	if !r.retryAt.IsZero() {
		earlier(later(r.retryAt, pause))
	}
	if r.auditDue() {
		earlier(later(r.auditAt, pause))
	}
	if r.synced && r.addressesKnown && (r.full || r.Model.Dirty() || r.addressesChanged) {
		earlier(pause)
	}
	return next, !next.IsZero()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// work does what is due.
func (r *Reconciler) work() {
	now := r.Now()
	if at, ok := r.Writer.Due(); ok && !at.After(now) {
		r.collect(now)
	}
	if !r.synced || !r.addressesKnown || now.Before(r.lastPass.Add(r.MinSyncPeriod)) {
		return
	}
	if r.auditDue() && !r.auditAt.After(now) {
		r.audit()
	}
	retry := !r.retryAt.IsZero() && !r.retryAt.After(now)
	if retry || r.full || r.addressesChanged || r.Model.Dirty() {
		r.pass(retry)
	}
}

// collect gives up what nobody uses any more. What failed may have found no room, and now there is some: it is tried
// again without waiting for its time, which during many changes of a large Service moves far away.
func (r *Reconciler) collect(now time.Time) {
	result := r.Writer.Collect()
	if err := result.Err(); err != nil {
		r.Log.Warn("removing what is not used any more failed, it is tried again", "err", err)
	}
	if result.Operations > 0 && (len(r.failed) > 0 || r.addressesFailed) {
		r.retryAt = now
	}
	if r.checkAgain {
		r.stale.check()
		_, r.checkAgain = r.Writer.Due()
	}
}

// auditDue tells whether there is an audit to come: not before the first pass, and not while changes wait.
func (r *Reconciler) auditDue() bool {
	return r.Audit != nil && !r.lastPass.IsZero() && !r.Model.Dirty()
}
