// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Timing says how a change is noticed and when it is believed.
type Timing struct {
	// Settle is how long the directory must be quiet after a change before it is read: an editor or a copy makes many
	// small steps. A directory that never rests is read after ten times as long all the same.
	Settle time.Duration
	// Check is how often it is checked that the directory is still the one that is watched.
	Check time.Duration
	// Rescan is how often every file is looked at without an event: what changes behind a symbolic link, or on a file
	// system without events, is found so.
	Rescan time.Duration
}

// DefaultTiming is for a local directory.
func DefaultTiming() Timing {
	return Timing{Settle: 100 * time.Millisecond, Check: time.Second, Rescan: 10 * time.Second}
}

// watch tells when the directory should be read again.
type watch struct {
	dir    string
	timing Timing
	// notify delivers events; nil when the kernel gives none.
	notify *fsnotify.Watcher
	// failure is why no events come; the directory is polled then.
	failure error
	// watched is the directory that notify watches, nil for none.
	watched os.FileInfo
	// lost is true after the directory could not be found.
	lost bool
}

func newWatch(dir string, timing Timing) *watch {
	w := &watch{dir: dir, timing: timing}
	if w.notify, w.failure = fsnotify.NewWatcher(); w.failure != nil {
		w.failure = fmt.Errorf("watch manifests: %w; raise fs.inotify.max_user_instances", w.failure)
	}
	return w
}

func (w *watch) close() {
	if w.notify != nil {
		w.notify.Close()
	}
}

// attach makes sure that the directory that is there now is the one that is watched. It waits until one that has just
// come is filled: its files must not be taken for all there is while they are being copied.
func (w *watch) attach(ctx context.Context) error {
	info, err := os.Stat(w.dir)
	if err != nil {
		w.lost, w.watched = true, nil
		return fmt.Errorf("find manifests: %w", err)
	}
	if w.watched != nil && os.SameFile(info, w.watched) {
		return nil
	}
	returned := w.lost || w.watched != nil
	if w.notify != nil {
		// The old directory's watch, if there is one, has the same name.
		_ = w.notify.Remove(w.dir)
		if w.failure = w.notify.Add(w.dir); w.failure != nil {
			w.failure = fmt.Errorf("watch manifests: %w; raise fs.inotify.max_user_watches", w.failure)
		}
	}
	w.watched, w.lost = info, false
	if returned {
		w.quiet(ctx, 5*w.timing.Settle, 100*w.timing.Settle)
	}
	return nil
}

// events returns the channels of the watcher, nil ones that never deliver when there is none.
func (w *watch) events() (<-chan fsnotify.Event, <-chan error) {
	if w.notify == nil {
		return nil, nil
	}
	return w.notify.Events, w.notify.Errors
}

// wait returns when the directory should be read again: after events, when it is another one than before, after
// Rescan, or, if soon, after Settle.
func (w *watch) wait(ctx context.Context, soon bool) {
	events, errs := w.events()
	rescan := time.NewTimer(w.timing.Rescan)
	defer rescan.Stop()
	if soon {
		rescan.Reset(w.timing.Settle)
	}
	check := time.NewTicker(w.timing.Check)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-rescan.C:
			return
		case <-events:
			w.quiet(ctx, w.timing.Settle, 10*w.timing.Settle)
			return
		case <-errs:
			// Events were lost; the directory tells what they would have.
			return
		case <-check.C:
			if w.changed() {
				return
			}
		}
	}
}

// changed tells whether the directory has come, gone or been replaced.
func (w *watch) changed() bool {
	info, err := os.Stat(w.dir)
	if err != nil {
		return w.watched != nil
	}
	return w.watched == nil || !os.SameFile(info, w.watched)
}

// quiet returns when no event has come for a while, or after most.
func (w *watch) quiet(ctx context.Context, while, most time.Duration) {
	events, errs := w.events()
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	rest := time.NewTimer(while)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-deadline.C:
			return
		case <-rest.C:
			return
		case <-events:
			rest.Reset(while)
		case <-errs:
		}
	}
}
