// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// cells is the allocator's content the slow way: one flag for each cell.
type cells []bool

func (c cells) isFree(r Run) bool {
	return int(r.Base+r.Count) <= len(c) && !slices.Contains(c[r.Base:r.Base+r.Count], true)
}

func (c cells) set(r Run, taken bool) {
	for i := range r.Count {
		c[r.Base+i] = taken
	}
}

// stretches returns the free stretches.
func (c cells) stretches() []Run {
	var all []Run
	for i, taken := range c {
		switch n := len(all); {
		case taken:
		case n > 0 && int(all[n-1].Base+all[n-1].Count) == i:
			all[n-1].Count++
		default:
			all = append(all, Run{uint32(i), 1})
		}
	}
	return all
}

func checkAllocator(t *testing.T, a *allocator, c cells) {
	t.Helper()
	want := c.stretches()
	if !slices.Equal(a.byBase, want) {
		t.Fatalf("free stretches are %v, not %v", a.byBase, want)
	}
	slices.SortFunc(want, compareSize)
	if !slices.Equal(a.bySize, want) {
		t.Fatalf("free stretches by size are %v, not %v", a.bySize, want)
	}
}

func TestRunsAreTheBestFitAndFreeStretchesJoin(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	const capacity = 64
	for range 200 {
		a, c := newAllocator(capacity), make(cells, capacity)
		var taken []Run
		for range 100 {
			r := Run{random.Uint32N(capacity), 1 + random.Uint32N(9)}
			switch random.IntN(3) {
			case 0:
				fits := slices.DeleteFunc(c.stretches(), func(f Run) bool { return f.Count < r.Count })
				got, ok := a.allocate(r.Count)
				if ok != (len(fits) > 0) {
					t.Fatalf("allocate %d of %v: %t", r.Count, c.stretches(), ok)
				}
				if !ok {
					continue
				}
				if best := slices.MinFunc(fits, compareSize); got != (Run{best.Base, r.Count}) {
					t.Fatalf("allocate %d of %v: %v", r.Count, c.stretches(), got)
				}
				r = got
			case 1:
				if ok := a.take(r); ok != c.isFree(r) {
					t.Fatalf("take %v of %v: %t", r, c.stretches(), ok)
				}
				if !c.isFree(r) {
					continue
				}
			default:
				if len(taken) > 0 {
					i := random.IntN(len(taken))
					a.free(taken[i])
					c.set(taken[i], false)
					taken = slices.Delete(taken, i, i+1)
				}
				checkAllocator(t, a, c)
				continue
			}
			c.set(r, true)
			taken = append(taken, r)
			checkAllocator(t, a, c)
		}
	}
}

func TestServiceIDsAreTheLowestFree(t *testing.T) {
	t.Parallel()
	s := newIDSet(200)
	for want := uint32(1); want < 200; want++ {
		if id, ok := s.allocate(); !ok || id != want {
			t.Fatalf("id %d (%t), not %d", id, ok, want)
		}
	}
	if id, ok := s.allocate(); ok {
		t.Fatalf("id %d is beyond the limit", id)
	}
	for _, id := range []uint32{150, 7, 0} {
		s.release(id)
	}
	s.take(8) // is taken already
	for _, want := range []uint32{7, 150} {
		if id, ok := s.allocate(); !ok || id != want {
			t.Fatalf("id %d (%t), not %d", id, ok, want)
		}
	}
	if id, ok := s.allocate(); ok {
		t.Fatalf("id %d: 0 is no id", id)
	}
}
