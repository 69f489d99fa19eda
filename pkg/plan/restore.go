// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Programmed is the content of the maps, as it was found.
type Programmed struct {
	Names     map[uint32]model.ServicePortName
	Backends  map[uint32][]Backend // by service id
	Frontends map[model.FrontendKey]Frontend
	// Cells returns the content of a run.
	Cells     func(Run) []uint32
	Ranges    map[uint32][]netip.Prefix // by service id
	Addresses map[netip.Addr]AddressFlags
	// NextBackend is the mark that was programmed.
	NextBackend uint32
}

// Restore returns the State of maps that another process has written, and perhaps left in the middle of a plan. Ids
// are kept. What belongs to no frontend is given up when a Change or Prune says so, with the grace period.
func Restore(l Limits, m Programmed) *State {
	s := New(l)
	s.synced = false
	s.reserved, s.nextBackend = m.NextBackend, max(m.NextBackend, 1)
	for _, id := range slices.Sorted(maps.Keys(m.Names)) {
		s.restorePort(id, m.Names[id])
	}
	for key, f := range m.Frontends {
		s.restoreFrontend(key, f, m.Cells)
	}
	for id, backends := range m.Backends {
		p := s.restoredPort(id)
		p.backends = slices.SortedFunc(slices.Values(backends), compareBackends)
		s.backends += len(backends)
		for _, b := range p.backends {
			s.nextBackend = max(s.nextBackend, b.ID+1)
			if b.Sets == 0 {
				s.retire(backendItem(id, b))
			}
		}
	}
	for id, ranges := range m.Ranges {
		s.restoredPort(id).ranges = ranges
		s.ranges += len(ranges)
	}
	for key, flags := range m.Addresses {
		a := s.addresses[key]
		a.flags = flags
		s.setAddress(key, a)
	}
	s.orphans, s.retired = s.retired, nil
	return s
}

// restorePort adds a port. A second one of the same name cannot be told from the first, and has none.
func (s *State) restorePort(id uint32, name model.ServicePortName) {
	if s.byName[name] != nil {
		name = model.ServicePortName{}
	}
	s.addPort(&port{id: id, name: name})
	if name != (model.ServicePortName{}) {
		s.byName[name] = s.ports[id]
	}
}

// restoredPort returns the port of an id, which is one without name if nothing named it.
func (s *State) restoredPort(id uint32) *port {
	if s.ports[id] == nil {
		s.restorePort(id, model.ServicePortName{})
	}
	return s.ports[id]
}

func (s *State) restoreFrontend(key model.FrontendKey, f Frontend, cells func(Run) []uint32) {
	p := s.restoredPort(f.Service)
	s.frontends[key] = f
	p.frontends = append(p.frontends, key)
	s.countFrontend(key, f.Kind, 1)
	for _, t := range []Target{f.Internal, f.External} {
		if t.Run.Count == 0 || slices.ContainsFunc(p.runs, func(r run) bool { return r.Run == t.Run && r.set == t.Set }) {
			continue
		}
		r := run{Run: t.Run, set: t.Set}
		if s.slots.take(t.Run) {
			r.backends = cells(t.Run)
		} else {
			r.foreign = true
		}
		p.runs = append(p.runs, r)
	}
}

// Prune says that the desired state is known in full: each Service that keep does not report is absent from it. It
// returns the changes that remove these, to be planned, and lets what retired in an earlier process be collected.
func (s *State) Prune(keep func(model.ServiceName) bool) []Change {
	s.synced = true
	s.retired = append(s.retired, s.orphans...)
	s.orphans = nil
	var changes []Change
	for name := range s.byService {
		if !keep(name) { // ports without a name are under the zero name, which no Service has
			changes = append(changes, Change{Service: name})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return a.Service.Compare(b.Service) })
	return changes
}
