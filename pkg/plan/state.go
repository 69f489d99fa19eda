// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"slices"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Limits are the sizes of the maps that the planner allocates in.
type Limits struct {
	// Slots is the number of cells.
	Slots uint32
	// Services is the size of the array that service ids index.
	Services uint32
	// Backends and Ranges are the sizes of the maps backends and source_ranges; 0: whatever is needed. A service port
	// for which there is no room is not begun: what it wrote before it failed would take the room from others.
	Backends, Ranges uint32
}

// State is the mirror of what is programmed, and what is free to be used for new elements.
type State struct {
	limits    Limits
	ports     map[uint32]*port
	byName    map[model.ServicePortName]*port
	byService map[model.ServiceName][]*port
	frontends map[model.FrontendKey]Frontend
	addresses map[netip.Addr]address
	// unsettled has the addresses whose flags are not those that follow from the frontends on them.
	unsettled map[netip.Addr]struct{}

	slots *allocator
	ids   *idSet
	// backends and ranges count the elements of all ports.
	backends, ranges int
	// nextBackend was never given; reserved is the mark that is programmed.
	nextBackend, reserved uint32

	// planned is what the latest plan has allocated. What was not applied is free again.
	plannedRuns []plannedRun
	plannedIDs  []uint32

	garbage  map[Item]uint64
	sequence uint64
	retired  []Garbage
	// orphans retired before this process began. They wait for Prune.
	orphans []Garbage
	// synced: what no change names may be removed.
	synced bool
}

// port is what is programmed for one service port.
type port struct {
	id uint32
	// name is zero for a port whose name was not there when the maps were read back.
	name     model.ServicePortName
	backends []Backend // sorted
	// runs are those that frontends use or may use. A run that has retired is garbage and no port's.
	runs   []run
	ranges []netip.Prefix
	// frontends are the keys in State.frontends that point here.
	frontends []model.FrontendKey
}

type run struct {
	Run
	set      Set
	backends []uint32
	// foreign: cells that another run has too, so they are not this one's to keep or to give back.
	foreign bool
}

type address struct {
	flags AddressFlags
	// How many frontends on it give it each flag.
	clusterIPs, services int
}

type plannedRun struct {
	service uint32
	run     Run
}

// New returns the State of empty maps.
func New(l Limits) *State {
	return &State{
		limits:      l,
		ports:       map[uint32]*port{},
		byName:      map[model.ServicePortName]*port{},
		byService:   map[model.ServiceName][]*port{},
		frontends:   map[model.FrontendKey]Frontend{},
		addresses:   map[netip.Addr]address{},
		unsettled:   map[netip.Addr]struct{}{},
		slots:       newAllocator(l.Slots),
		ids:         newIDSet(l.Services),
		nextBackend: 1,
		garbage:     map[Item]uint64{},
		synced:      true,
	}
}

// Name returns the name of a service id.
func (s *State) Name(service uint32) (model.ServicePortName, bool) {
	p := s.ports[service]
	if p == nil {
		return model.ServicePortName{}, false
	}
	return p.name, true
}

// ServiceID returns the id of a service port that is programmed.
func (s *State) ServiceID(name model.ServicePortName) (uint32, bool) {
	p := s.byName[name]
	if p == nil {
		return 0, false
	}
	return p.id, true
}

// Frontend returns what is programmed for a frontend.
func (s *State) Frontend(key model.FrontendKey) (Frontend, bool) {
	f, ok := s.frontends[key]
	return f, ok
}

// FreeSlots returns how many cells are in no run.
func (s *State) FreeSlots() uint32 {
	n := uint32(0)
	for _, r := range s.slots.byBase {
		n += r.Count
	}
	return n
}

// NeededFlags returns the flags that an address must have as long as the frontends on it are programmed.
func (s *State) NeededFlags(a netip.Addr) AddressFlags { return s.addresses[a].wanted() }

// Reserved returns the mark below which backend ids may be given.
func (s *State) Reserved() uint32 { return s.reserved }

// Applied notes that an operation has been done.
func (s *State) Applied(o Operation) { o.apply(s) }

// TakeRetired returns what has retired since the last call. It is to be passed to Collect after the grace period.
func (s *State) TakeRetired() []Garbage {
	retired := s.retired
	s.retired = nil
	return retired
}

func (o *ReserveIDs) apply(s *State) { s.reserved = o.Next }

func (o *PutName) apply(s *State) {
	if s.ports[o.Service] == nil {
		s.addPort(&port{id: o.Service, name: o.Name})
		s.byName[o.Name] = s.ports[o.Service]
	}
	delete(s.garbage, Item{Kind: PortItem, Service: o.Service})
}

func (s *State) addPort(p *port) {
	s.ports[p.id] = p
	s.byService[p.name.ServiceName] = append(s.byService[p.name.ServiceName], p)
	s.ids.take(p.id)
}

func (o *PutBackend) apply(s *State) {
	p := s.ports[o.Service]
	i, found := slices.BinarySearchFunc(p.backends, o.Backend, compareBackends)
	if found {
		p.backends[i] = o.Backend
	} else {
		p.backends = slices.Insert(p.backends, i, o.Backend)
		s.backends++
		s.nextBackend = max(s.nextBackend, o.Backend.ID+1)
	}
	item := backendItem(o.Service, o.Backend)
	if o.Backend.Sets != 0 {
		delete(s.garbage, item)
	} else {
		s.retire(item)
	}
}

func (o *PutRun) apply(s *State) {
	p := s.ports[o.Service]
	p.runs = append(p.runs, run{Run: o.Run, set: o.Set, backends: o.Backends})
}

func (o *PutRange) apply(s *State) {
	p := s.ports[o.Service]
	if !slices.Contains(p.ranges, o.Prefix) {
		p.ranges = append(p.ranges, o.Prefix)
		s.ranges++
	}
	delete(s.garbage, rangeItem(o.Service, o.Prefix))
}

func (o *PutAddress) apply(s *State) {
	a := s.addresses[o.Address]
	a.flags = o.Flags
	s.setAddress(o.Address, a)
}

func (o *DeleteAddress) apply(s *State) {
	a := s.addresses[o.Address]
	a.flags = 0
	s.setAddress(o.Address, a)
}

// setAddress keeps unsettled, and forgets an address of which nothing is known.
func (s *State) setAddress(key netip.Addr, a address) {
	if a.flags&^fromNode == a.wanted() {
		delete(s.unsettled, key)
	} else {
		s.unsettled[key] = struct{}{}
	}
	if a == (address{}) {
		delete(s.addresses, key)
	} else {
		s.addresses[key] = a
	}
}

// wanted is the flags that follow from the frontends.
func (a address) wanted() AddressFlags {
	var f AddressFlags
	if a.clusterIPs > 0 {
		f |= ClusterIP
	}
	if a.services > 0 {
		f |= Service
	}
	return f
}

// count notes n more frontends of a kind.
func (a *address) count(k model.Kind, n int) {
	switch flagOf(k) {
	case ClusterIP:
		a.clusterIPs += n
	case Service:
		a.services += n
	}
}

func (s *State) countFrontend(key model.FrontendKey, k model.Kind, n int) {
	if flagOf(k) != 0 {
		a := s.addresses[key.Address]
		a.count(k, n)
		s.setAddress(key.Address, a)
	}
}

func (o *PutFrontend) apply(s *State) {
	before, replaces := s.frontends[o.Key]
	s.frontends[o.Key] = o.Frontend
	if !replaces || before.Kind != o.Frontend.Kind {
		s.countFrontend(o.Key, o.Frontend.Kind, 1)
		if replaces {
			s.countFrontend(o.Key, before.Kind, -1)
		}
	}
	if replaces && before.Service == o.Frontend.Service {
		return
	}
	if replaces {
		s.ports[before.Service].dropFrontend(o.Key)
	}
	p := s.ports[o.Frontend.Service]
	p.frontends = append(p.frontends, o.Key)
}

func (o *DeleteFrontend) apply(s *State) {
	before, ok := s.frontends[o.Key]
	if !ok {
		return
	}
	delete(s.frontends, o.Key)
	s.countFrontend(o.Key, before.Kind, -1)
	s.ports[before.Service].dropFrontend(o.Key)
}

func (p *port) dropFrontend(key model.FrontendKey) {
	if i := slices.Index(p.frontends, key); i >= 0 {
		p.frontends = slices.Delete(p.frontends, i, i+1)
	}
}

func (o *Retire) apply(s *State) {
	if o.Item.Kind != RunItem {
		s.retire(o.Item)
		return
	}
	if foreign := s.ports[o.Item.Service].dropRun(o.Item.Run); !foreign {
		s.retire(o.Item)
	}
}

// retire begins an item's grace period, unless it has begun.
func (s *State) retire(i Item) {
	if _, already := s.garbage[i]; already {
		return
	}
	s.sequence++
	s.garbage[i] = s.sequence
	s.retired = append(s.retired, Garbage{i, s.sequence})
}

func (p *port) hasRun(r Run) bool {
	return slices.ContainsFunc(p.runs, func(have run) bool { return have.Run == r })
}

// dropRun forgets a run, and tells whether its cells are another one's.
func (p *port) dropRun(r Run) (foreign bool) {
	i := slices.IndexFunc(p.runs, func(have run) bool { return have.Run == r })
	if i < 0 {
		return true
	}
	foreign = p.runs[i].foreign
	p.runs = slices.Delete(p.runs, i, i+1)
	return foreign
}

func (o *DeleteBackend) apply(s *State) {
	p := s.ports[o.Service]
	if i, found := slices.BinarySearchFunc(p.backends, o.Backend, compareBackends); found {
		p.backends = slices.Delete(p.backends, i, i+1)
		s.backends--
	}
	delete(s.garbage, backendItem(o.Service, o.Backend))
}

func (o *DeleteRange) apply(s *State) {
	p := s.ports[o.Service]
	if i := slices.Index(p.ranges, o.Prefix); i >= 0 {
		p.ranges = slices.Delete(p.ranges, i, i+1)
		s.ranges--
	}
	delete(s.garbage, rangeItem(o.Service, o.Prefix))
}

func (o *FreeRun) apply(s *State) {
	item := runItem(o.Service, o.Run)
	if _, retired := s.garbage[item]; retired {
		delete(s.garbage, item)
		s.slots.free(o.Run)
		return
	}
	// With the whole port.
	if foreign := s.ports[o.Service].dropRun(o.Run); !foreign {
		s.slots.free(o.Run)
	}
}

func (*ResetStats) apply(*State) {}

func (o *DeleteName) apply(s *State) {
	p := s.ports[o.Service]
	delete(s.ports, o.Service)
	if s.byName[p.name] == p {
		delete(s.byName, p.name)
	}
	left := slices.DeleteFunc(s.byService[p.name.ServiceName], func(other *port) bool { return other == p })
	if len(left) == 0 {
		delete(s.byService, p.name.ServiceName)
	} else {
		s.byService[p.name.ServiceName] = left
	}
	s.ids.release(o.Service)
	delete(s.garbage, Item{Kind: PortItem, Service: o.Service})
}

func runItem(service uint32, r Run) Item { return Item{Kind: RunItem, Service: service, Run: r} }

func rangeItem(service uint32, p netip.Prefix) Item {
	return Item{Kind: RangeItem, Service: service, Prefix: p}
}
