// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/source"
	"github.com/shunt-lb/shunt/pkg/writer"
)

// clockwork is a Reconciler whose loop the test turns, at a time that the test sets.
type clockwork struct {
	*Reconciler
	t        *testing.T
	now      time.Time
	observer *fakeObserver
	audits   int
}

func newClockwork(t *testing.T, w func(now func() time.Time) Writer, change func(*Options)) *clockwork {
	t.Helper()
	c := &clockwork{t: t, now: time.Unix(1000, 0), observer: &fakeObserver{}}
	now := func() time.Time { return c.now }
	o := Options{
		Model: model.New(model.Config{Node: model.Node{Name: "n1"}}), Writer: w(now), Observer: c.observer, Now: now,
		SyncPeriod: 30 * time.Second, Log: slog.New(slog.DiscardHandler),
		Audit: func() (string, error) { c.audits++; return "", nil }, AuditPeriod: time.Hour,
	}
	change(&o)
	c.Reconciler = New(o)
	c.setAddresses(local)
	return c
}

// turn waits, in no time, for what is due, and does it.
func (c *clockwork) turn() {
	c.t.Helper()
	at, ok := c.nextDue()
	if !ok {
		c.t.Fatal("nothing is due")
	}
	if at.After(c.now) {
		c.now = at
	}
	c.work()
}

// TestTheLoopWakesForWorkAlone: a retry and an audit that fall into the pause between two passes wait for its end. When
// the loop woke for them it found nothing that it may do, and woke again at once, until the pause was over.
func TestTheLoopWakesForWorkAlone(t *testing.T) {
	failing := &fakeWriter{fail: map[model.ServiceName]error{name("a"): errors.New("no")}}
	for _, test := range []struct {
		name   string
		change func(*Options)
	}{
		{"retry", func(o *Options) {}},
		{"audit", func(o *Options) { o.AuditPeriod = time.Millisecond }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newClockwork(t, func(func() time.Time) Writer { return failing }, func(o *Options) {
				o.MinSyncPeriod = 10 * time.Second
				test.change(o)
			})
			c.event(service("a", model.TCP))
			c.event(source.Synced{})
			done := func() int { _, passes := c.observer.last(); return passes + c.audits }
			for turn := range 8 {
				before := done()
				c.turn()
				if done() == before {
					t.Fatalf("turn %d, %s after the latest pass, did nothing", turn, c.now.Sub(c.lastPass))
				}
			}
		})
	}
}

// TestWhatFoundNoRoomIsTriedWhenThereIsSome: with a Service as large as the cells allow, each change needs cells that
// the run before gives back a grace period later. Many failed attempts must not mean a long wait after the last change.
func TestWhatFoundNoRoomIsTriedWhenThereIsSome(t *testing.T) {
	const cells = 6 // the run that is used and the one that takes its place
	fake := maps.NewFake(map[string]uint32{maps.MapSlots: cells})
	c := newClockwork(t, func(now func() time.Time) Writer {
		return writer.New(fake, plan.New(plan.Limits{Slots: cells, Services: 16}), writer.Options{Now: now})
	}, func(*Options) {})
	c.event(service("a", model.TCP))
	c.event(source.Synced{})
	for change := range 20 {
		c.event(endpoints("a", 3, byte(change+1)))
		c.work()
		c.now = c.now.Add(10 * time.Millisecond)
	}
	if p, _ := c.observer.last(); len(p.Failures) == 0 {
		t.Fatal("all changes found room: this proves nothing")
	}
	changed := c.now
	for turn := 0; len(c.failed) > 0 && turn < 10; turn++ {
		c.turn()
	}
	if len(c.failed) > 0 {
		t.Fatal("not written in ten turns")
	}
	if took := c.now.Sub(changed); took > writer.DefaultGrace {
		t.Errorf("written %s after the last change, there was room after %s at the latest", took, writer.DefaultGrace)
	}
}

// endpoints is a slice of so many ready endpoints, none of which another version has.
func endpoints(s string, count int, version byte) source.Event {
	e := slice(s, time.Time{}).(source.SetSlice)
	e.Slice.Endpoints = nil
	for i := range count {
		e.Slice.Endpoints = append(e.Slice.Endpoints, model.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, 244, version, byte(i + 1)}), Ready: true, Serving: true})
	}
	return e
}
