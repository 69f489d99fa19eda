// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"fmt"
	"iter"
	"slices"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/plan"
)

// audits are the steps of Audit: one map each, so that none keeps the owner from a change for long.
var audits = [...]func(*plan.State, maps.Reader) (string, error){
	auditServices, auditSlots, auditBackends, auditNames, auditRanges, auditAddresses, auditMeta,
}

// Audit compares one map with the mirror, the next one at each call, and returns in words the first difference:
// something else than this process has written to the map. It then has the mirror read back what is there, and the
// caller writes all that is desired and calls Prune, as after a start.
func (w *Writer) Audit(r maps.Reader) (difference string, err error) {
	step := w.audited % len(audits)
	difference, err = audits[step](w.state, r)
	if err != nil {
		return "", fmt.Errorf("audit maps: %w", err)
	}
	w.audited++
	if difference == "" {
		return "", nil
	}
	state, err := ReadBack(r, LimitsOf(w.maps))
	if err != nil {
		return "", fmt.Errorf("audit maps: %w", err)
	}
	state.Inherit(w.state)
	w.state, w.waiting = state, nil
	w.schedule(state.TakeRetired())
	return difference, nil
}

// compare goes through a map. Its elements are right when each is in the mirror and there are as many.
func compare[T any](name string, all iter.Seq2[T, error], mirrored int, right func(T) bool) (string, error) {
	n := 0
	for e, err := range all {
		if err != nil {
			return "", err
		}
		if !right(e) {
			return fmt.Sprintf("map %s: element %v was not written like this", name, e), nil
		}
		n++
	}
	if n != mirrored {
		return fmt.Sprintf("map %s: %d elements, %d were written", name, n, mirrored), nil
	}
	return "", nil
}

func auditServices(s *plan.State, r maps.Reader) (string, error) {
	return compare(maps.MapServices, r.Services(), s.Count().Frontends, func(e maps.Entry[maps.Frontend, maps.Service]) bool {
		f, there := s.Frontend(modelKey(e.Key))
		return there && service(e.Key, f) == e.Value
	})
}

func auditSlots(s *plan.State, r maps.Reader) (difference string, err error) {
	s.Runs(func(service uint32, run plan.Run, backends []uint32) bool {
		var cells []uint32
		cells, err = r.Slots(maps.Run(run))
		if err == nil && !slices.Equal(cells, backends) {
			difference = fmt.Sprintf("map slots: run %s of service %d was not written like this", run, service)
		}
		return err == nil && difference == ""
	})
	return difference, err
}

func auditBackends(s *plan.State, r maps.Reader) (string, error) {
	return compare(maps.MapBackends, r.Backends(), s.Count().Backends, func(b maps.Backend) bool {
		name, _ := s.Name(b.ServiceID)
		mirrored := planBackend(b, name.Protocol)
		return s.HasBackend(b.ServiceID, mirrored) && b == backend(b.ServiceID, name.Protocol, mirrored)
	})
}

func auditNames(s *plan.State, r maps.Reader) (string, error) {
	return compare(maps.MapServiceNames, r.ServiceNames(), s.Count().Names, func(e maps.Entry[uint32, maps.ServiceName]) bool {
		name, there := s.Name(e.Key)
		return there && serviceName(name) == e.Value
	})
}

func auditRanges(s *plan.State, r maps.Reader) (string, error) {
	return compare(maps.MapSourceRanges, r.SourceRanges(), s.Count().Ranges, func(e maps.SourceRange) bool {
		return s.HasRange(e.ServiceID, planPrefix(e))
	})
}

func auditAddresses(s *plan.State, r maps.Reader) (string, error) {
	return compare(maps.MapAddresses, r.Addresses(), s.Count().Addresses,
		func(e maps.Entry[maps.Address, maps.AddressFlags]) bool {
			return e.Value != 0 && addressFlags(s.Address(e.Key.Addr())) == e.Value
		})
}

func auditMeta(s *plan.State, r maps.Reader) (string, error) {
	meta, err := r.Meta()
	if want := (maps.Meta{LayoutVersion: maps.LayoutVersion, NextBackendID: s.Reserved()}); err == nil && meta != want {
		return fmt.Sprintf("map meta: %+v, %+v was written", meta, want), nil
	}
	return "", err
}
