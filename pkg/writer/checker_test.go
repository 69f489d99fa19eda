// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

const grace = time.Second

var errCrash = errors.New("the process has ended")

// checker looks at the maps after each single operation, with the eyes of a program.
type checker struct {
	t    *testing.T
	fake *maps.Fake
	now  time.Time

	// used are the runs that a program may be reading, until when.
	used map[maps.Run]time.Time
	// backends is every id ever seen, with what makes it the same backend.
	backends map[uint32]maps.Backend
	// served is when a service id was last found in services, and under which name.
	served map[uint32]lastServed
	// steady must be in services at all times.
	steady map[model.FrontendKey]bool

	crashAt, failAt int // the operation's number; -1: never
	failWith        error
}

type lastServed struct {
	name maps.ServiceName
	at   time.Time
}

func newChecker(t *testing.T, capacity map[string]uint32) *checker {
	c := &checker{
		t: t, fake: maps.NewFake(capacity), now: time.Unix(1000, 0),
		used: map[maps.Run]time.Time{}, backends: map[uint32]maps.Backend{}, served: map[uint32]lastServed{},
		crashAt: -1, failAt: -1,
	}
	c.fake.Before(c.before)
	c.fake.After(c.after)
	return c
}

func (c *checker) before(o maps.Operation) error {
	if c.crashAt >= 0 && o.Number >= c.crashAt {
		return errCrash
	}
	if o.Number == c.failAt {
		return c.failWith
	}
	if o.Map == maps.MapSlots {
		written := o.Key.(maps.Run)
		for r, until := range c.used {
			if c.now.Before(until) && written.Base < r.Base+r.Count && r.Base < written.Base+written.Count {
				c.t.Fatalf("%v: run %v may be in use", o, r)
			}
		}
	}
	return nil
}

func (c *checker) after(o maps.Operation) {
	c.checkServices(o)
	c.checkBackends(o)
	if o.Map == maps.MapServiceNames {
		c.checkName(o)
	}
	for key := range c.steady {
		if _, ok, _ := c.fake.Service(frontendKey(key)); !ok {
			c.t.Fatalf("after %v: frontend %s is missing", o, key)
		}
	}
}

func (c *checker) checkServices(o maps.Operation) {
	for e := range c.fake.Services() {
		s := e.Value
		if s.FrontendCheck != e.Key.Check() {
			c.t.Fatalf("after %v: check of %v is wrong", o, e.Key)
		}
		name, ok, _ := c.fake.ServiceName(s.ServiceID)
		if !ok {
			c.t.Fatalf("after %v: service %d of %v has no name", o, s.ServiceID, e.Key)
		}
		c.checkAddress(o, e.Key.Address, s.Kind)
		c.served[s.ServiceID] = lastServed{name, c.now}
		c.checkRun(o, s.ServiceID, s.Internal, s.Flags&maps.ServiceInternalLocal != 0)
		c.checkRun(o, s.ServiceID, s.External, s.Flags&maps.ServiceExternalLocal != 0)
		// A program counts, so that a reset counter can be told from one that was never used.
		c.fake.AddServiceStats(s.ServiceID, maps.ServiceStats{Connections: 1})
	}
}

func (c *checker) checkAddress(o maps.Operation, a maps.Address, k maps.ServiceKind) {
	want := maps.AddressService
	switch k {
	case maps.KindNodePort:
		return
	case maps.KindClusterIP:
		want = maps.AddressClusterIP
	}
	if flags, _, _ := c.fake.Address(a); flags&want == 0 {
		c.t.Fatalf("after %v: address %s of a frontend of kind %d has flags %b", o, a.Addr(), k, flags)
	}
}

func (c *checker) checkRun(o maps.Operation, service uint32, r maps.Run, local bool) {
	flag := maps.BackendCluster
	if local {
		flag = maps.BackendLocal
	}
	if r.Count > 0 {
		c.used[r] = c.now.Add(grace)
	}
	ids, err := c.fake.Slots(r)
	if err != nil {
		c.t.Fatalf("after %v: %v", o, err)
	}
	for _, id := range ids {
		b, ok, _ := c.fake.Backend(id)
		if !ok || b.ServiceID != service || b.BackendID != id || b.Flags&flag == 0 {
			c.t.Fatalf("after %v: service %d, run %v has backend %d, which is %+v (%t)", o, service, r, id, b, ok)
		}
	}
}

func (c *checker) checkBackends(o maps.Operation) {
	meta, _ := c.fake.Meta()
	for b := range c.fake.Backends() {
		b.Flags = 0
		if first, seen := c.backends[b.BackendID]; seen && first != b {
			c.t.Fatalf("after %v: backend id of %+v was given to %+v", o, first, b)
		}
		c.backends[b.BackendID] = b
		if b.BackendID == 0 || b.BackendID >= meta.NextBackendID {
			c.t.Fatalf("after %v: backend id %d is not below the mark %d", o, b.BackendID, meta.NextBackendID)
		}
	}
}

// checkName sees to the reuse of service ids.
func (c *checker) checkName(o maps.Operation) {
	id := o.Key.(uint32)
	if o.Delete {
		if stats, _ := c.fake.ServiceStats([]uint32{id}); stats[0] != (maps.ServiceStats{}) {
			c.t.Fatalf("after %v: service %d is free and has counters %+v", o, id, stats[0])
		}
		return
	}
	name, _, _ := c.fake.ServiceName(id)
	if last, seen := c.served[id]; seen && last.name != name && c.now.Before(last.at.Add(grace)) {
		c.t.Fatalf("after %v: service id %d is given to %v too early", o, id, PortName(name))
	}
}

// exactly fails the test unless the maps hold the desired state and nothing else.
func (c *checker) exactly(w *Writer, d desired, node map[netip.Addr]maps.AddressFlags) {
	c.t.Helper()
	if got, want := contentOf(c.t, c.fake), d.content(); !reflect.DeepEqual(got, want) {
		c.t.Fatalf("maps hold\n%v\nnot\n%v", got, want)
	}
	addresses := map[netip.Addr]maps.AddressFlags{}
	for e := range c.fake.Addresses() {
		addresses[e.Key.Addr()] = e.Value
	}
	want := d.addressContent()
	for a, f := range node {
		want[a] |= f
	}
	if !reflect.DeepEqual(addresses, want) {
		c.t.Fatalf("addresses are %v, not %v", addresses, want)
	}
	usage, _ := c.fake.Usage()
	if used, free := usage[maps.MapSlots].Used, w.State().FreeSlots(); used+free != usage[maps.MapSlots].Capacity {
		c.t.Fatalf("%d cells are used and %d free, of %d", used, free, usage[maps.MapSlots].Capacity)
	}
}

// others fails the test unless every service port without a failure has its frontends as desired.
func (c *checker) others(d desired, r Result) {
	c.t.Helper()
	failed := map[model.ServicePortName]bool{}
	for _, f := range r.Failures {
		failed[f.Port] = true
		if !errors.Is(f.Err, c.failWith) {
			c.t.Fatalf("failure %v is not %v", f, c.failWith)
		}
	}
	got, want := frontends(contentOf(c.t, c.fake)), frontends(d.content())
	for name, lines := range want {
		if !failed[name] && !reflect.DeepEqual(got[name], lines) {
			c.t.Fatalf("%v has\n%v\nnot\n%v\n(failures %v)", name, got[name], lines, r.Failures)
		}
	}
	for name := range got {
		if !failed[name] && want[name] == nil {
			c.t.Fatalf("%v is still there: %v (failures %v)", name, got[name], r.Failures)
		}
	}
}

func frontends(c content) content {
	left := content{}
	for name, lines := range c {
		for _, l := range lines {
			if l[0] == 'f' {
				left[name] = append(left[name], l)
			}
		}
	}
	return left
}

// keep makes the frontends steady that are there and will be.
func (c *checker) keep(from, to desired, sameOwner bool) {
	c.steady = map[model.FrontendKey]bool{}
	before := from.owners()
	for key, owner := range to.owners() {
		was, there := before[key]
		if _, now, _ := c.fake.Service(frontendKey(key)); now && there && (!sameOwner || was == owner) {
			c.steady[key] = true
		}
	}
}

func (c *checker) options() Options {
	return Options{Grace: grace, Now: func() time.Time { return c.now }}
}

func (c *checker) fresh() *Writer {
	return New(c.fake, newState(c.fake), c.options())
}

// restart is a new process on the same maps. It takes longer than any program runs.
func (c *checker) restart() *Writer {
	c.crashAt = -1
	c.now = c.now.Add(grace)
	state, err := ReadBack(c.fake, LimitsOf(c.fake))
	if err != nil {
		c.t.Fatal(err)
	}
	return New(c.fake, state, c.options())
}

// settle waits for the end of the grace period, and gives up what has retired.
func (c *checker) settle(w *Writer) {
	c.t.Helper()
	c.now = c.now.Add(grace)
	if err := w.Collect().Err(); err != nil {
		c.t.Fatal(err)
	}
	if due, waits := w.Due(); waits {
		c.t.Fatalf("something still waits, until %v", due)
	}
}

// write fails the test when not all is written.
func (c *checker) write(w *Writer, from, to desired) {
	c.t.Helper()
	c.keep(from, to, false)
	if err := w.Write(changes(from, to)).Err(); err != nil {
		c.t.Fatal(err)
	}
}

// mirrored fails the test unless the mirror is true.
func (c *checker) mirrored(w *Writer) {
	c.t.Helper()
	for range audits {
		if difference, err := w.Audit(c.fake); difference != "" || err != nil {
			c.t.Fatalf("the mirror is not true: %s, %v", difference, err)
		}
	}
}

// prune removes what is not desired.
func (c *checker) prune(w *Writer, d desired) {
	c.t.Helper()
	r := w.Prune(func(n model.ServiceName) bool { _, wanted := d[n]; return wanted })
	if err := r.Err(); err != nil {
		c.t.Fatal(err)
	}
}

func (d desired) String() string { return fmt.Sprint(d.content()) }
