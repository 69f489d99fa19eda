// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// Collect returns the operations that give up what has retired, as far as it has not been revived. The caller has
// waited for the grace period since TakeRetired returned it.
func (s *State) Collect(garbage []Garbage) []Operation {
	var backends, ranges, runs, stats, names []Operation
	for _, g := range garbage {
		if !s.Pending(g) {
			continue
		}
		id := g.Item.Service
		p := s.ports[id]
		switch g.Item.Kind {
		case BackendItem:
			backends = append(backends, &DeleteBackend{id, g.Item.Backend})
		case RangeItem:
			ranges = append(ranges, &DeleteRange{id, g.Item.Prefix})
		case RunItem:
			runs = append(runs, &FreeRun{id, g.Item.Run})
		case PortItem:
			for _, b := range p.backends {
				backends = append(backends, &DeleteBackend{id, b})
			}
			for _, prefix := range p.ranges {
				ranges = append(ranges, &DeleteRange{id, prefix})
			}
			for _, r := range p.runs {
				runs = append(runs, &FreeRun{id, r.Run})
			}
			stats = append(stats, &ResetStats{id})
			names = append(names, &DeleteName{id})
		}
	}
	return slices.Concat(backends, ranges, runs, stats, names)
}

// Pending tells whether something that retired is still to be given up.
func (s *State) Pending(g Garbage) bool {
	return s.garbage[g.Item] == g.sequence
}
