// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/shunt-lb/shunt/pkg/source"
)

// Source reads and watches a directory.
type Source struct {
	dir, node string
	timing    Timing
}

var _ source.Source = (*Source)(nil)

// New returns the source for a directory. node is this node's name: the Node of that name is delivered, others are
// read and ignored.
func New(dir, node string, timing Timing) *Source {
	return &Source{dir: dir, node: node, timing: timing}
}

// Run delivers the directory's objects and their changes until ctx ends. A directory that is not there is waited for.
func (s *Source) Run(ctx context.Context, events chan<- source.Event) error {
	r := &run{
		source: s, events: events,
		scanner: newScanner(s.dir, s.node, time.Now),
		state:   newState(),
	}
	w := newWatch(s.dir, s.timing)
	defer w.close()
	for ctx.Err() == nil {
		again := r.pass(ctx, w)
		w.wait(ctx, again)
	}
	return ctx.Err()
}

func (s *Source) problem(err error, effect string) []source.Problem {
	return []source.Problem{{Where: s.dir, Reason: source.ReasonUnreadable, Message: err.Error(), Effect: effect}}
}

// run is what Run remembers from pass to pass.
type run struct {
	source  *Source
	events  chan<- source.Event
	scanner *scanner
	state   *state
	synced  bool
	// reported is what was last said about the directory.
	reported []source.Problem
}

// pass reads the directory once and sends what is new. It reports whether a file was being written meanwhile.
func (r *run) pass(ctx context.Context, w *watch) (again bool) {
	var changes []change
	err := w.attach(ctx)
	if err == nil {
		changes, again, err = r.scanner.scan()
	}
	var problems []source.Problem
	switch {
	case err != nil:
		problems = r.source.problem(err, "the last good state stays in force until the directory is back")
	case w.failure != nil:
		problems = r.source.problem(w.failure, fmt.Sprintf("changes are noticed after %v", w.timing.Rescan))
	}
	if !slices.Equal(problems, r.reported) {
		r.reported = problems
		source.Send(ctx, r.events, source.SetProblems{Origin: r.source.dir, Problems: problems})
	}
	if batch := r.state.apply(changes); len(batch) > 0 && !source.Send(ctx, r.events, source.Batch(batch)) {
		return false
	}
	if err == nil && !again && !r.synced {
		r.synced = source.Send(ctx, r.events, source.Synced{})
	}
	return again
}
