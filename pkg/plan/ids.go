// SPDX-License-Identifier: Apache-2.0

package plan

import "math/bits"

// idSet gives out service ids: the lowest free one, so that they stay dense (they index arrays). 0 means none.
type idSet struct {
	used  []uint64 // a bit for each id
	limit uint32   // the first id that does not exist
	low   int      // no word of used before this one has a free bit
}

func newIDSet(limit uint32) *idSet {
	return &idSet{used: []uint64{1}, limit: limit}
}

// allocate returns the lowest free id; false when all are taken.
func (s *idSet) allocate() (uint32, bool) {
	for s.low < len(s.used) && s.used[s.low] == ^uint64(0) {
		s.low++
	}
	if s.low == len(s.used) {
		s.used = append(s.used, 0)
	}
	bit := bits.TrailingZeros64(^s.used[s.low])
	id := uint32(64*s.low + bit)
	if id >= s.limit {
		return 0, false
	}
	s.used[s.low] |= 1 << bit
	return id, true
}

// take marks an id as taken.
func (s *idSet) take(id uint32) {
	for len(s.used) <= int(id/64) {
		s.used = append(s.used, 0)
	}
	s.used[id/64] |= 1 << (id % 64)
}

// release makes an id free; 0 never is.
func (s *idSet) release(id uint32) {
	if id == 0 {
		return
	}
	s.used[id/64] &^= 1 << (id % 64)
	s.low = min(s.low, int(id/64))
}
