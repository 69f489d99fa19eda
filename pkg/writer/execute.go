// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"fmt"
	"net/netip"
	"reflect"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
)

// execution is the course of one list of operations.
type execution struct {
	*Writer
	result Result
	// failed has the service ports, by id, that are to be left alone.
	failed map[uint32]struct{}
	// addresses has those that could not be written.
	addresses map[netip.Addr]*addressFailure
	// reserve is why no further backend ids may be given.
	reserve error
	// names of service ports that the mirror does not know yet.
	names map[uint32]model.ServicePortName
}

type addressFailure struct {
	err error
	// reported: as the failure of a service port.
	reported bool
}

func (w *Writer) execute(ops []plan.Operation) Result {
	e := &execution{Writer: w, failed: map[uint32]struct{}{}, addresses: map[netip.Addr]*addressFailure{},
		names: map[uint32]model.ServicePortName{}}
	for len(ops) > 0 {
		n := stretch(ops)
		e.batch(ops[:n])
		ops = ops[n:]
	}
	for _, f := range e.addresses {
		if !f.reported {
			e.result.Failures = append(e.result.Failures, Failure{Err: f.err})
		}
	}
	return e.result
}

// stretch returns how many operations from the first on are of one kind.
func stretch(ops []plan.Operation) int {
	kind, n := reflect.TypeOf(ops[0]), 1
	for n < len(ops) && n < maxBatch && reflect.TypeOf(ops[n]) == kind {
		n++
	}
	return n
}

// batch executes operations of one kind. After a failure the rest is looked at again: the failed service port may
// have more operations in it.
func (e *execution) batch(ops []plan.Operation) {
	for len(ops) > 0 {
		ready := e.ready(ops)
		n, err := e.write(ready)
		for _, o := range ready[:n] {
			e.state.Applied(o)
		}
		e.result.Operations += n
		if err == nil {
			return
		}
		e.fail(ready[n], err)
		ops = ready[n+1:]
	}
}

// ready returns the operations that may be done, ops itself when that is all of them.
func (e *execution) ready(ops []plan.Operation) []plan.Operation {
	if len(e.failed) == 0 && len(e.addresses) == 0 && e.reserve == nil {
		return ops
	}
	var ready, instead []plan.Operation
	for _, o := range ops {
		if e.allowed(o) {
			ready = append(ready, o)
		} else if d := e.foreign(o); d != nil {
			instead = append(instead, d)
		}
	}
	if len(instead) > 0 {
		e.batch(instead)
	}
	return ready
}

// allowed tells whether an operation may be done after what has failed; it notes failures that follow from that.
func (e *execution) allowed(o plan.Operation) bool {
	switch o := o.(type) {
	case *plan.DeleteFrontend:
		return true // whatever else has failed: nobody wants it any more
	case *plan.PutAddress:
		// A flag that a plan takes away stays when the frontend that gave it could not be deleted.
		return e.state.NeededFlags(o.Address)&^o.Flags == 0
	case *plan.DeleteAddress:
		return e.state.NeededFlags(o.Address) == 0
	case *plan.PutBackend:
		if e.reserve != nil && o.Backend.ID >= e.state.Reserved() {
			e.fail(o, e.reserve)
		}
	case *plan.PutFrontend:
		if f := e.addresses[o.Key.Address]; f != nil {
			f.reported = true
			e.fail(o, f.err)
		}
	}
	_, failed := e.failed[o.Owner()]
	return !failed
}

// foreign returns the deletion that takes the place of a skipped switch from another service port: the former owner
// has lost the frontend, and its backends would be foreign ones.
func (e *execution) foreign(o plan.Operation) plan.Operation {
	put, ok := o.(*plan.PutFrontend)
	if !ok {
		return nil
	}
	if f, there := e.state.Frontend(put.Key); there && f.Service != put.Frontend.Service {
		return &plan.DeleteFrontend{Service: f.Service, Key: put.Key}
	}
	return nil
}

// fail notes that an operation's service port has failed; its first failure is the one that is reported.
func (e *execution) fail(o plan.Operation, err error) {
	switch o := o.(type) {
	case *plan.ReserveIDs:
		e.reserve = fmt.Errorf("reserve backend ids: %w", err)
		return
	case *plan.PutAddress:
		e.addresses[o.Address] = &addressFailure{err: err}
		return
	case *plan.PutName:
		e.names[o.Service] = o.Name
	}
	id := o.Owner()
	if id == 0 {
		e.result.Failures = append(e.result.Failures, Failure{Err: err})
		return
	}
	if _, already := e.failed[id]; already {
		return
	}
	e.failed[id] = struct{}{}
	name, known := e.state.Name(id)
	if !known {
		name = e.names[id]
	}
	e.result.Failures = append(e.result.Failures, Failure{name, err})
	if put, ok := o.(*plan.PutFrontend); ok {
		if d := e.foreign(put); d != nil {
			e.batch([]plan.Operation{d})
		}
	}
}

// write does operations of one kind, up to the first that fails.
func (e *execution) write(ops []plan.Operation) (int, error) {
	if len(ops) == 0 {
		return 0, nil
	}
	switch ops[0].(type) {
	case *plan.Retire, *plan.FreeRun:
		return len(ops), nil // the mirror's alone
	case *plan.ReserveIDs:
		return each(ops, func(o *plan.ReserveIDs) error {
			return e.maps.PutMeta(maps.Meta{LayoutVersion: maps.LayoutVersion, NextBackendID: o.Next})
		})
	case *plan.PutRun:
		return each(ops, func(o *plan.PutRun) error { return e.maps.PutSlots(o.Run.Base, o.Backends) })
	}
	return e.buffers.write(e.maps, e.state, ops)
}

func each[O plan.Operation](ops []plan.Operation, do func(O) error) (int, error) {
	for i, o := range ops {
		if err := do(o.(O)); err != nil {
			return i, err
		}
	}
	return len(ops), nil
}
