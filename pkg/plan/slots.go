// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
)

// allocator gives out runs of cells: the smallest free stretch that is large enough, lowest first. Free stretches
// that touch are one. What is free follows from what is taken, so it can be rebuilt from the frontends alone.
type allocator struct {
	capacity uint32
	// The free stretches, in two orders. Sorted slices: there are few stretches, unless the cells are fragmented,
	// and moving some kilobytes costs less than a tree.
	byBase, bySize []Run
}

func newAllocator(capacity uint32) *allocator {
	a := &allocator{capacity: capacity}
	if capacity > 0 {
		a.insert(Run{0, capacity})
	}
	return a
}

// allocate takes count cells; false when no free stretch is large enough.
func (a *allocator) allocate(count uint32) (Run, bool) {
	i, _ := slices.BinarySearchFunc(a.bySize, Run{0, count}, compareSize)
	if i == len(a.bySize) {
		return Run{}, false
	}
	free := a.bySize[i]
	a.remove(free)
	if free.Count > count {
		a.insert(Run{free.Base + count, free.Count - count})
	}
	return Run{free.Base, count}, true
}

// take takes these cells; false, and nothing taken, when one of them is not free.
func (a *allocator) take(r Run) bool {
	i, exact := slices.BinarySearchFunc(a.byBase, r, compareBase)
	if !exact {
		i--
	}
	if i < 0 {
		return false
	}
	free := a.byBase[i]
	if uint64(r.Base)+uint64(r.Count) > uint64(free.Base)+uint64(free.Count) {
		return false
	}
	a.remove(free)
	if r.Base > free.Base {
		a.insert(Run{free.Base, r.Base - free.Base})
	}
	if end, freeEnd := r.Base+r.Count, free.Base+free.Count; end < freeEnd {
		a.insert(Run{end, freeEnd - end})
	}
	return true
}

// free gives cells back that were allocated or taken.
func (a *allocator) free(r Run) {
	i, _ := slices.BinarySearchFunc(a.byBase, r, compareBase)
	if i < len(a.byBase) && r.Base+r.Count == a.byBase[i].Base {
		after := a.byBase[i]
		a.remove(after)
		r.Count += after.Count
	}
	if i > 0 && a.byBase[i-1].Base+a.byBase[i-1].Count == r.Base {
		before := a.byBase[i-1]
		a.remove(before)
		r.Base, r.Count = before.Base, before.Count+r.Count
	}
	a.insert(r)
}

func (a *allocator) insert(r Run) {
	i, _ := slices.BinarySearchFunc(a.byBase, r, compareBase)
	a.byBase = slices.Insert(a.byBase, i, r)
	i, _ = slices.BinarySearchFunc(a.bySize, r, compareSize)
	a.bySize = slices.Insert(a.bySize, i, r)
}

func (a *allocator) remove(r Run) {
	i, _ := slices.BinarySearchFunc(a.byBase, r, compareBase)
	a.byBase = slices.Delete(a.byBase, i, i+1)
	i, _ = slices.BinarySearchFunc(a.bySize, r, compareSize)
	a.bySize = slices.Delete(a.bySize, i, i+1)
}

func compareBase(a, b Run) int { return cmp.Compare(a.Base, b.Base) }

func compareSize(a, b Run) int {
	return cmp.Or(cmp.Compare(a.Count, b.Count), cmp.Compare(a.Base, b.Base))
}
