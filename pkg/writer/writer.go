// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
)

// DefaultGrace is longer than any program runs, preempted ones included for all practical purposes.
const DefaultGrace = time.Second

// maxBatch bounds the memory of one batch.
const maxBatch = 4096

// Options are how a Writer works.
type Options struct {
	// Grace is how long what no new reader finds is kept for old ones; 0: DefaultGrace.
	Grace time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Writer executes plans.
type Writer struct {
	maps  maps.Writer
	state *plan.State
	grace time.Duration
	now   func() time.Time
	// waiting is in the order of the times.
	waiting []waiting
	buffers buffers
	// audited is how many steps of the audit have been done.
	audited int
}

type waiting struct {
	due     time.Time
	garbage plan.Garbage
}

// Failure is a service port that is not, or not in full, as desired, and why. What was programmed for it before goes
// on working. It is to be written again later.
type Failure struct {
	// Port is zero when the failure is of no single service port: a node address.
	Port model.ServicePortName
	Err  error
}

// Result is what one call did.
type Result struct {
	// Operations is the number of operations that were done.
	Operations int
	Failures   []Failure
}

// Err joins the failures; nil when there are none.
func (r Result) Err() error {
	errs := make([]error, 0, len(r.Failures))
	for _, f := range r.Failures {
		if f.Port == (model.ServicePortName{}) {
			errs = append(errs, f.Err)
			continue
		}
		errs = append(errs, fmt.Errorf("program service port %s:%s/%s (%s): %w", f.Port.ServiceName, f.Port.Port,
			f.Port.Protocol, f.Port.Family, f.Err))
	}
	return errors.Join(errs...)
}

// New returns a Writer of m, whose content state mirrors: plan.New for maps just made, else from ReadBack.
func New(m maps.Writer, state *plan.State, o Options) *Writer {
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Writer{maps: m, state: state, grace: o.Grace, now: o.Now}
}

// LimitsOf returns the limits of a State for these maps.
func LimitsOf(m maps.Writer) plan.Limits {
	c := m.Capacity()
	return plan.Limits{
		Slots: c[maps.MapSlots], Services: c[maps.MapServiceStats],
		Backends: c[maps.MapBackends], Ranges: c[maps.MapSourceRanges],
	}
}

// State returns the mirror. It is the Writer's: read it, and in the Writer's goroutine only.
func (w *Writer) State() *plan.State { return w.state }

// Write makes the maps hold what the changes say. All Services whose frontends touch one another's, because one has
// moved, belong into one call.
func (w *Writer) Write(changes []plan.Change) Result {
	ops, failures := w.state.Plan(changes)
	r := w.execute(ops)
	for _, f := range failures {
		r.Failures = append(r.Failures, Failure{f.Port, typed(f.Err)})
	}
	w.schedule(w.state.TakeRetired())
	return r
}

// typed makes a plan's error the same that the map would have given.
func typed(err error) error {
	var full *plan.FullError
	if errors.As(err, &full) {
		return &maps.FullError{Map: full.Map, Size: full.Size}
	}
	return err
}

// SetNodeAddresses makes the maps hold which addresses serve node ports and which are on the node's devices.
func (w *Writer) SetNodeAddresses(nodePorts, onNode []netip.Addr) Result {
	return w.execute(w.state.PlanNodeAddresses(nodePorts, onNode))
}

// Prune removes every Service that keep does not report. To be called when all sources have synced and the desired
// Services have been written; before it, nothing is removed that no change names.
func (w *Writer) Prune(keep func(model.ServiceName) bool) Result {
	return w.Write(w.state.Prune(keep))
}

// Due returns when Collect has something to do; false when nothing waits.
func (w *Writer) Due() (time.Time, bool) {
	if len(w.waiting) == 0 {
		return time.Time{}, false
	}
	return w.waiting[0].due, true
}

// Collect gives up what retired a grace period ago. What fails is tried again after another one.
func (w *Writer) Collect() Result {
	now, n := w.now(), 0
	for n < len(w.waiting) && !w.waiting[n].due.After(now) {
		n++
	}
	if n == 0 {
		return Result{}
	}
	due := make([]plan.Garbage, n)
	for i := range due {
		due[i] = w.waiting[i].garbage
	}
	w.waiting = w.waiting[n:]
	r := w.execute(w.state.Collect(due))
	for _, g := range due {
		if w.state.Pending(g) {
			w.schedule([]plan.Garbage{g})
		}
	}
	return r
}

func (w *Writer) schedule(garbage []plan.Garbage) {
	due := w.now().Add(w.grace)
	for _, g := range garbage {
		w.waiting = append(w.waiting, waiting{due, g})
	}
}
