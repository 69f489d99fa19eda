// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"fmt"
	"net/netip"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
)

// ReadBack returns the State of maps that an earlier process has written.
func ReadBack(r maps.Reader, l plan.Limits) (*plan.State, error) {
	p, err := read(r)
	if err != nil {
		return nil, fmt.Errorf("read back what is programmed: %w", err)
	}
	var cellsErr error
	p.Cells = func(run plan.Run) []uint32 {
		ids, err := r.Slots(maps.Run(run))
		if err != nil && cellsErr == nil {
			cellsErr = err
		}
		return ids
	}
	s := plan.Restore(l, p)
	if cellsErr != nil {
		return nil, fmt.Errorf("read back what is programmed: %w", cellsErr)
	}
	return s, nil
}

func read(r maps.Reader) (plan.Programmed, error) {
	p := plan.Programmed{
		Names:     map[uint32]model.ServicePortName{},
		Backends:  map[uint32][]plan.Backend{},
		Frontends: map[model.FrontendKey]plan.Frontend{},
		Ranges:    map[uint32][]netip.Prefix{},
		Addresses: map[netip.Addr]plan.AddressFlags{},
	}
	meta, err := r.Meta()
	if err != nil {
		return p, err
	}
	p.NextBackend = meta.NextBackendID
	for e, err := range r.ServiceNames() {
		if err != nil {
			return p, err
		}
		p.Names[e.Key] = PortName(e.Value)
	}
	for b, err := range r.Backends() {
		if err != nil {
			return p, err
		}
		p.Backends[b.ServiceID] = append(p.Backends[b.ServiceID], planBackend(b, p.Names[b.ServiceID].Protocol))
	}
	for e, err := range r.Services() {
		if err != nil {
			return p, err
		}
		p.Frontends[modelKey(e.Key)] = planFrontend(e.Key, e.Value)
	}
	for s, err := range r.SourceRanges() {
		if err != nil {
			return p, err
		}
		if prefix := planPrefix(s); prefix.IsValid() {
			p.Ranges[s.ServiceID] = append(p.Ranges[s.ServiceID], prefix)
		}
	}
	for e, err := range r.Addresses() {
		if err != nil {
			return p, err
		}
		p.Addresses[e.Key.Addr()] = planAddressFlags(e.Value)
	}
	return p, nil
}
