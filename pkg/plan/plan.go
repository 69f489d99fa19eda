// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Change is the desired state of one Service, all families and ports; no Ports: none.
type Change struct {
	Service model.ServiceName
	Ports   []model.ServicePort
}

// reserveChunk is how many backend ids are reserved at once: a write for each chunk instead of one for each id.
const reserveChunk = 4096

// errIDs can happen after four thousand million endpoints.
var errIDs = errors.New("backend ids are used up: run shunt cleanup and start the agent again")

// planner collects the operations of one pass, by phase.
type planner struct {
	s *State
	// nextBackend is State.nextBackend as it will be.
	nextBackend uint32
	// newBackends and newRanges count elements that are added.
	newBackends, newRanges int

	names, backends, runs, ranges, frontends, flags, retires []Operation
	// leaving are frontends of changed service ports that these do not want any more.
	leaving  []*DeleteFrontend
	failures []Failure

	// Scratch memory of one port: the ids of its sets.
	cluster, local []uint32
}

// Plan returns the operations that lead from what is programmed to what is desired, and the service ports that
// cannot be. The operations are to be executed in this order before Plan is called again; those not reported with
// Applied count as not done. A service port without frontends is not programmed.
func (s *State) Plan(changes []Change) ([]Operation, []Failure) {
	s.forgetPlanned()
	p := &planner{s: s, nextBackend: s.nextBackend}
	p.allocate(changes)
	for _, c := range changes {
		p.service(c)
	}
	return p.operations(), p.failures
}

// forgetPlanned frees what the latest plan allocated and nobody wrote.
func (s *State) forgetPlanned() {
	for _, r := range s.plannedRuns {
		if p := s.ports[r.service]; p == nil || !p.hasRun(r.run) {
			s.slots.free(r.run)
		}
	}
	for _, id := range s.plannedIDs {
		if s.ports[id] == nil {
			s.ids.release(id)
		}
	}
	s.plannedRuns, s.plannedIDs = s.plannedRuns[:0], s.plannedIDs[:0]
}

// allocate makes room for a first plan of many services, which would otherwise grow the slices many times.
func (p *planner) allocate(changes []Change) {
	ports, backends := 0, 0
	for _, c := range changes {
		ports += len(c.Ports)
		for i := range c.Ports {
			backends += len(c.Ports[i].Backends)
		}
	}
	if len(p.s.ports) > 0 {
		return
	}
	p.names, p.runs, p.frontends = make([]Operation, 0, ports), make([]Operation, 0, ports), make([]Operation, 0, ports)
	p.backends = make([]Operation, 0, backends)
}

func (p *planner) service(c Change) {
	for i := range c.Ports {
		p.port(&c.Ports[i])
	}
	for _, have := range p.s.byService[c.Service] {
		wanted := slices.ContainsFunc(c.Ports, func(w model.ServicePort) bool {
			return w.Name == have.name && len(w.Frontends) > 0
		})
		if !wanted {
			p.remove(have)
		}
	}
}

// port plans one service port, or nothing and a failure.
func (p *planner) port(want *model.ServicePort) {
	if len(want.Frontends) == 0 {
		return
	}
	have := p.s.byName[want.Name]
	mark := *p
	if err := p.change(have, want); err != nil {
		// Only the appended operations are forgotten; the allocations are at the next plan.
		*p = mark
		p.failures = append(p.failures, Failure{want.Name, err})
	}
	if have != nil {
		p.leave(have, want.Frontends)
	}
}

func (p *planner) change(have *port, want *model.ServicePort) error {
	if have == nil {
		id, ok := p.s.ids.allocate()
		if !ok {
			return &FullError{Map: "service_names", Size: p.s.limits.Services}
		}
		p.s.plannedIDs = append(p.s.plannedIDs, id)
		have = &port{id: id}
		p.names = append(p.names, &PutName{id, want.Name})
	} else if _, retired := p.s.garbage[Item{Kind: PortItem, Service: have.id}]; retired {
		p.names = append(p.names, &PutName{have.id, want.Name})
	}
	if err := p.changeBackends(have, want.Backends); err != nil {
		return err
	}
	var chosen [2]Run
	for i, set := range []Set{Cluster, Local} {
		ids := p.cluster
		if set == Local {
			ids = p.local
		}
		if len(ids) == 0 || !uses(want.Frontends, set) {
			continue
		}
		r, err := p.chooseRun(have, set, ids)
		if err != nil {
			return err
		}
		chosen[i] = r
	}
	for _, r := range have.runs {
		if r.Run != chosen[0] && r.Run != chosen[1] {
			p.retires = append(p.retires, &Retire{runItem(have.id, r.Run)})
		}
	}
	if err := p.changeRanges(have, want.SourceRanges); err != nil {
		return err
	}
	p.changeFrontends(have, want, chosen)
	return nil
}

func exceeds(count int, limit uint32) bool { return limit > 0 && uint64(count) > uint64(limit) }

// changeBackends merges the sorted backends that are wanted and those that are there. A backend enters its new sets
// before the frontends switch and leaves its old ones after, so that it is never found in a run outside its sets.
func (p *planner) changeBackends(have *port, want []model.Backend) error {
	if !slices.IsSortedFunc(want, compareWanted) {
		want = slices.SortedFunc(slices.Values(want), compareWanted)
	}
	p.cluster, p.local = p.cluster[:0], p.local[:0]
	there := have.backends
	for i := range want {
		b := Backend{Port: want[i].Port, Sets: setsOf(want[i]), OnNode: want[i].OnNode, Address: want[i].Address}
		if i > 0 && compareWanted(want[i-1], want[i]) == 0 || b.Sets == 0 {
			continue
		}
		for len(there) > 0 && comparePlace(there[0], b) < 0 {
			p.drop(have.id, there[0])
			there = there[1:]
		}
		if len(there) > 0 && comparePlace(there[0], b) == 0 {
			b.ID = there[0].ID
			p.setSets(have.id, there[0], b)
			there = there[1:]
		} else {
			if p.nextBackend == math.MaxUint32 {
				return errIDs
			}
			if p.newBackends++; exceeds(p.s.backends+p.newBackends, p.s.limits.Backends) {
				return &FullError{Map: "backends", Size: p.s.limits.Backends}
			}
			b.ID = p.nextBackend
			p.nextBackend++
			p.backends = append(p.backends, &PutBackend{have.id, b})
		}
		if b.Sets&Cluster != 0 {
			p.cluster = append(p.cluster, b.ID)
		}
		if b.Sets&Local != 0 {
			p.local = append(p.local, b.ID)
		}
	}
	for _, b := range there {
		p.drop(have.id, b)
	}
	return nil
}

func (p *planner) setSets(service uint32, before, after Backend) {
	both := after
	both.Sets |= before.Sets
	if both != before {
		p.backends = append(p.backends, &PutBackend{service, both})
	}
	if both != after {
		p.flags = append(p.flags, &PutBackend{service, after})
	}
}

// drop takes a backend out of its sets. It is deleted when nobody can be reading its run any more.
func (p *planner) drop(service uint32, b Backend) {
	if b.Sets != 0 {
		b.Sets = 0
		p.flags = append(p.flags, &PutBackend{service, b})
	}
}

// chooseRun keeps the run that has these backends already, or fills a new one.
func (p *planner) chooseRun(have *port, set Set, ids []uint32) (Run, error) {
	for _, r := range have.runs {
		if r.set == set && !r.foreign && slices.Equal(r.backends, ids) {
			return r.Run, nil
		}
	}
	r, ok := p.s.slots.allocate(uint32(len(ids)))
	if !ok {
		return Run{}, &FullError{Map: "slots", Size: p.s.limits.Slots}
	}
	p.s.plannedRuns = append(p.s.plannedRuns, plannedRun{have.id, r})
	p.runs = append(p.runs, &PutRun{have.id, set, r, slices.Clone(ids)})
	return r, nil
}

func (p *planner) changeRanges(have *port, want []netip.Prefix) error {
	for _, prefix := range want {
		prefix = prefix.Masked() // as the map has it: 10.1.2.3/8 and 10.0.0.0/8 are one element
		_, retired := p.s.garbage[rangeItem(have.id, prefix)]
		there := slices.Contains(have.ranges, prefix)
		if !there {
			if p.newRanges++; exceeds(p.s.ranges+p.newRanges, p.s.limits.Ranges) {
				return &FullError{Map: "source_ranges", Size: p.s.limits.Ranges}
			}
		}
		if retired || !there {
			p.ranges = append(p.ranges, &PutRange{have.id, prefix})
		}
	}
	for _, prefix := range have.ranges {
		_, retired := p.s.garbage[rangeItem(have.id, prefix)]
		wanted := slices.ContainsFunc(want, func(w netip.Prefix) bool { return w.Masked() == prefix })
		if !retired && !wanted {
			p.retires = append(p.retires, &Retire{rangeItem(have.id, prefix)})
		}
	}
	return nil
}

func (p *planner) changeFrontends(have *port, want *model.ServicePort, runs [2]Run) {
	for i := range want.Frontends {
		w := &want.Frontends[i]
		f := Frontend{
			Service:      have.id,
			Kind:         w.Kind,
			PolicyLocal:  w.PolicyLocal,
			SourceRanges: w.Kind == model.LoadBalancer && len(want.SourceRanges) > 0,
			Internal:     target(w.Internal, runs),
			External:     target(w.External, runs),
			Affinity:     seconds(want.Affinity),
		}
		if f != p.s.frontends[w.FrontendKey] {
			p.frontends = append(p.frontends, &PutFrontend{w.FrontendKey, f})
		}
	}
}

// remove plans the end of a service port.
func (p *planner) remove(have *port) {
	item := Item{Kind: PortItem, Service: have.id}
	if _, retired := p.s.garbage[item]; retired {
		return
	}
	p.leave(have, nil)
	p.retires = append(p.retires, &Retire{item})
}

// leave notes which frontends a service port does not want any more.
func (p *planner) leave(have *port, wanted []model.Frontend) {
	for _, key := range have.frontends {
		if !slices.ContainsFunc(wanted, func(f model.Frontend) bool { return f.FrontendKey == key }) {
			p.leaving = append(p.leaving, &DeleteFrontend{have.id, key})
		}
	}
}

// operations puts the phases in order.
func (p *planner) operations() []Operation {
	var reserve, deletes []Operation
	if p.nextBackend > max(p.s.reserved, p.s.nextBackend) {
		mark := min(uint64(p.nextBackend)+reserveChunk, math.MaxUint32)
		reserve = append(reserve, &ReserveIDs{uint32(mark)})
	}
	if len(p.leaving) > 0 {
		// A frontend that moves to another service port is replaced, never missing.
		moves := make(map[model.FrontendKey]struct{}, len(p.frontends))
		for _, o := range p.frontends {
			moves[o.(*PutFrontend).Key] = struct{}{}
		}
		for _, o := range p.leaving {
			if _, moves := moves[o.Key]; !moves {
				deletes = append(deletes, o)
			}
		}
	}
	addressPuts, addressDeletes := p.s.planAddresses(p.frontends, deletes)
	return slices.Concat(reserve, p.names, p.backends, p.runs, p.ranges, addressPuts, p.frontends,
		deletes, addressDeletes, p.flags, p.retires)
}

func uses(frontends []model.Frontend, set Set) bool {
	return slices.ContainsFunc(frontends, func(f model.Frontend) bool {
		return setOf(f.Internal) == set || setOf(f.External) == set
	})
}

func setOf(t model.Target) Set {
	if t.Local {
		return Local
	}
	return Cluster
}

func target(t model.Target, runs [2]Run) Target {
	r := runs[0]
	if t.Local {
		r = runs[1]
	}
	return Target{Run: r, Set: setOf(t), Drop: t.Drop && r.Count == 0}
}

func setsOf(b model.Backend) Set {
	var s Set
	if b.Cluster {
		s |= Cluster
	}
	if b.Local {
		s |= Local
	}
	return s
}

// seconds rounds up: an affinity of half a second is not none.
func seconds(d time.Duration) uint32 {
	return uint32(min((d+time.Second-1)/time.Second, math.MaxUint32))
}

// comparePlace orders backends as changeBackends merges them.
func comparePlace(a, b Backend) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
}

func compareWanted(a, b model.Backend) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
}
