// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

// state is what all files define together. It turns the new content of some files into the events that lead there.
type state struct {
	files map[string]*file
	// definitions are all definitions of an object, the valid one first.
	definitions map[source.Object][]*object
	cidrs       []netip.Prefix
}

// file is the last good state of one file.
type file struct {
	objects  []*object
	problems []source.Problem
	// reported are the problems that were sent last.
	reported []source.Problem
}

// change is what became of one file.
type change struct {
	name string
	// removed is true when the file is gone.
	removed bool
	outcome
}

func newState() *state {
	return &state{files: map[string]*file{}, definitions: map[source.Object][]*object{}}
}

// apply takes the new content of files and returns the events to send: what exists before what is gone, so that
// nothing that moves is missing in between.
func (s *state) apply(changes []change) []source.Event {
	before := map[source.Object]*object{}
	touchedFiles := map[string]bool{}
	for _, c := range changes {
		touchedFiles[c.name] = true
		s.replace(c, before)
	}
	var sets, deletes []source.Event
	cidrs := false
	for _, id := range ordered(before) {
		defs := s.definitions[id]
		slices.SortFunc(defs, precedence)
		for _, o := range defs {
			touchedFiles[o.file] = true
		}
		was, is := before[id], first(defs)
		if id.Kind == source.KindServiceCIDR {
			cidrs = true
			continue
		}
		switch e := difference(was, is); e.(type) {
		case nil:
		case source.DeleteService, source.DeleteSlice, source.DeleteNode:
			deletes = append(deletes, e)
		default:
			sets = append(sets, e)
		}
	}
	if cidrs {
		sets = append(sets, s.mergeCIDRs()...)
	}
	return slices.Concat(sets, deletes, s.report(touchedFiles))
}

// replace puts a file's new definitions in the place of its old ones, and notes which definition of each object that
// the file names was valid before.
func (s *state) replace(c change, before map[source.Object]*object) {
	old := s.files[c.name]
	if old == nil {
		old = &file{}
	}
	touch := func(id source.Object) {
		if _, done := before[id]; !done {
			before[id] = first(s.definitions[id])
		}
	}
	earlier := make(map[source.Object]*object, len(old.objects))
	for _, o := range old.objects {
		touch(o.id)
		s.forget(o)
		if _, second := earlier[o.id]; !second {
			earlier[o.id] = o
		}
	}
	if c.removed {
		s.files[c.name] = &file{reported: old.reported}
		return
	}
	objects := c.objects
	for i, o := range objects {
		touch(o.id)
		o.order = i
		if same := earlier[o.id]; same != nil && reflect.DeepEqual(same.event, o.event) {
			// Keep the copy that the consumer has.
			o.event = same.event
		}
	}
	if c.broken {
		objects = append(objects, missing(earlier, objects)...)
	}
	for _, o := range objects {
		s.definitions[o.id] = append(s.definitions[o.id], o)
	}
	s.files[c.name] = &file{objects: slices.Clip(objects), problems: c.problems, reported: old.reported}
}

// missing returns what a broken file defined before and defines no more: one of it may be the broken document.
func missing(earlier map[source.Object]*object, objects []*object) []*object {
	left := maps.Clone(earlier)
	for _, o := range objects {
		delete(left, o.id)
	}
	var out []*object
	for _, o := range left {
		kept := *o
		kept.kept = true
		out = append(out, &kept)
	}
	slices.SortFunc(out, precedence)
	return out
}

func (s *state) forget(o *object) {
	defs := slices.DeleteFunc(s.definitions[o.id], func(d *object) bool { return d == o })
	if len(defs) == 0 {
		delete(s.definitions, o.id)
	} else {
		s.definitions[o.id] = defs
	}
}

// precedence orders the definitions of an object: first by file name, then by place in the file. One that is only kept
// because its file is broken gives way to any other.
func precedence(a, b *object) int {
	kept := func(o *object) int {
		if o.kept {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(kept(a), kept(b)), cmp.Compare(a.file, b.file), cmp.Compare(a.order, b.order))
}

func first(defs []*object) *object {
	if len(defs) == 0 {
		return nil
	}
	return defs[0]
}

// ordered returns the touched objects in a fixed order.
func ordered(touched map[source.Object]*object) []source.Object {
	return slices.SortedFunc(maps.Keys(touched), func(a, b source.Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// difference returns the event that leads from one definition of an object to another, nil when nothing changes.
func difference(was, is *object) source.Event {
	switch {
	case is != nil && is.event != nil:
		if was != nil && reflect.DeepEqual(was.event, is.event) {
			is.event = was.event
			return nil
		}
		return is.event
	case was != nil && was.event != nil:
		return gone(was.id)
	}
	return nil
}

// gone returns the event that says that an object does not exist any more.
func gone(id source.Object) source.Event {
	switch id.Kind {
	case source.KindService:
		return source.DeleteService{Name: model.ServiceName{Namespace: id.Namespace, Name: id.Name}}
	case source.KindEndpointSlice:
		return source.DeleteSlice{Name: model.SliceName{Namespace: id.Namespace, Name: id.Name}}
	}
	return source.DeleteNode{Name: id.Name}
}

// mergeCIDRs returns the event with the ranges of all ServiceCIDRs, if they changed.
func (s *state) mergeCIDRs() []source.Event {
	var lists [][]netip.Prefix
	for id, defs := range s.definitions {
		if id.Kind == source.KindServiceCIDR {
			lists = append(lists, defs[0].cidrs)
		}
	}
	merged := source.MergeCIDRs(lists...)
	if slices.Equal(merged, s.cidrs) {
		return nil
	}
	s.cidrs = merged
	return []source.Event{source.SetServiceCIDRs{CIDRs: merged}}
}

// report returns the problems of those touched files whose problems changed.
func (s *state) report(touched map[string]bool) []source.Event {
	var out []source.Event
	for _, name := range slices.Sorted(maps.Keys(touched)) {
		f := s.files[name]
		problems := slices.Clone(f.problems)
		for _, o := range f.objects {
			if valid := s.definitions[o.id][0]; valid != o && !o.kept {
				problems = append(problems, duplicate(o, valid))
			}
		}
		if !slices.Equal(problems, f.reported) {
			f.reported = problems
			out = append(out, source.SetProblems{Origin: name, Problems: problems})
		}
		if f.objects == nil && f.problems == nil {
			delete(s.files, name)
		}
	}
	return out
}

func duplicate(o, valid *object) source.Problem {
	return source.Problem{Object: o.id, Where: o.where(), Reason: source.ReasonDuplicate,
		Message: fmt.Sprintf("it is defined in %s already", valid.where()), Effect: "this definition is ignored"}
}
