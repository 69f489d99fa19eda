// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/plan"
)

func newState(m maps.Writer) *plan.State { return plan.New(LimitsOf(m)) }

// randomDice is dice for a table row: the same throws in each run.
func randomDice(seed uint64) *dice {
	random := rand.New(rand.NewPCG(seed, 1))
	d := &dice{bytes: make([]byte, 4096)}
	for i := range d.bytes {
		d.bytes[i] = byte(random.Uint32())
	}
	return d
}

// walk goes through random states in random ways, with every invariant checked after every operation.
func walk(t *testing.T, d *dice) {
	c := newChecker(t, map[string]uint32{maps.MapSlots: 512})
	w := c.fresh()
	now := desired{}
	node := map[netip.Addr]maps.AddressFlags{}
	for range 1 + d.roll(8) {
		next := d.state()
		switch d.roll(5) {
		case 0: // a crash
			c.crashAt = c.fake.Operations() + d.roll(64)
			c.keep(now, next, false)
			w.Write(changes(now, next))
			c.now = c.now.Add(grace)
			w.Collect()
			w = c.restart()
			c.write(w, now, next)
			c.prune(w, next)
		case 1: // a map is full for a moment
			c.failAt, c.failWith = c.fake.Operations()+d.roll(64), &maps.FullError{Map: maps.MapBackends, Size: 1}
			c.keep(now, next, true)
			c.others(next, w.Write(changes(now, next)))
			c.failAt = -1
			c.mirrored(w)
			c.write(w, next, next)
			c.write(w, now, next)
		case 2: // the node's addresses change
			node = map[netip.Addr]maps.AddressFlags{
				netip.AddrFrom4([4]byte{10, 96, 0, byte(d.roll(6))}): maps.AddressOnNode,
				netip.AddrFrom4([4]byte{10, 0, 0, byte(d.roll(2))}):  maps.AddressOnNode | maps.AddressNodePorts,
			}
			var nodePorts, onNode []netip.Addr
			for a, f := range node {
				onNode = append(onNode, a)
				if f&maps.AddressNodePorts != 0 {
					nodePorts = append(nodePorts, a)
				}
			}
			if err := w.SetNodeAddresses(nodePorts, onNode).Err(); err != nil {
				t.Fatal(err)
			}
			c.write(w, now, next)
		default:
			c.write(w, now, next)
		}
		now = next
		c.others(now, Result{})
		c.mirrored(w)
		switch d.roll(3) {
		case 0: // long enough that nothing waits
			c.settle(w)
			c.exactly(w, now, node)
		case 1: // so long that some of it does
			c.now = c.now.Add(grace / 2)
			w.Collect()
		}
	}
	c.settle(w)
	c.exactly(w, now, node)
}

func TestAnyStateIsReachedFromAnyOtherByStepsThatAreAllSafe(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1500) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { walk(t, randomDice(seed)) })
	}
}

func FuzzWalk(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(randomDice(seed).bytes[:512])
	}
	f.Fuzz(func(t *testing.T, throws []byte) { walk(t, &dice{bytes: throws}) })
}

// between returns two states that have something to do with each other.
func between(seed uint64) (from, to desired) {
	d := randomDice(seed)
	for len(from) < 2 || len(to) < 2 {
		from, to = d.state(), d.state()
	}
	return from, to
}

// operations counts what the way between two states takes, collection included.
func operations(t *testing.T, from, to desired) (begin, end int) {
	c := newChecker(t, nil)
	w := c.fresh()
	c.write(w, desired{}, from)
	c.settle(w)
	begin = c.fake.Operations()
	c.write(w, from, to)
	c.settle(w)
	return begin, c.fake.Operations()
}

func TestACrashAfterAnyOperationIsHealedByTheNextProcess(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		from, to := between(seed)
		begin, end := operations(t, from, to)
		for k := begin; k <= end; k++ {
			t.Run(fmt.Sprintf("%d/%d", seed, k-begin), func(t *testing.T) {
				c := newChecker(t, nil)
				w := c.fresh()
				c.write(w, desired{}, from)
				c.settle(w)
				c.crashAt = k
				c.keep(from, to, false)
				w.Write(changes(from, to))
				c.now = c.now.Add(grace)
				w.Collect()

				w = c.restart()
				// What is desired comes first, all at once; only then is it known what is not.
				c.keep(from, to, false)
				if err := w.Write(changes(desired{}, to)).Err(); err != nil {
					t.Fatal(err)
				}
				c.prune(w, to)
				c.settle(w)
				c.exactly(w, to, nil)
			})
		}
	}
}

func TestAMapThatIsFullAtAnyOperationHurtsOneServicePortAndIsHealedLater(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		from, to := between(seed)
		begin, end := operations(t, from, to)
		for k := begin; k < end; k++ {
			t.Run(fmt.Sprintf("%d/%d", seed, k-begin), func(t *testing.T) {
				c := newChecker(t, nil)
				w := c.fresh()
				c.write(w, desired{}, from)
				c.settle(w)
				c.failAt, c.failWith = k, &maps.FullError{Map: maps.MapServices, Size: 1}
				c.keep(from, to, true)
				r := w.Write(changes(from, to))
				c.others(to, r)
				c.mirrored(w)
				if len(r.Failures) > 0 {
					c.write(w, from, to)
				}
				c.now = c.now.Add(grace)
				w.Collect()
				c.settle(w)
				c.exactly(w, to, nil)
			})
		}
	}
}
