// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

// name is an object's name within its kind.
type name struct{ namespace, name string }

// store is the far end of a reflector: it passes on what it is given and keeps names only. The reflector calls it from
// one goroutine.
type store struct {
	ctx      context.Context
	resource *resource
	// send delivers an event; gone returns the event for an object that is no more.
	send func(source.Event)
	gone func(name) source.Event
	// listed is called after each complete list.
	listed func()
	known  map[name]struct{}
}

var _ cache.TransformingStore = (*store)(nil)

// Transformer makes the reflector convert the objects of a streamed list as they come.
func (s *store) Transformer() cache.TransformFunc { return s.resource.transform }

// Add implements cache.ReflectorStore.
func (s *store) Add(o any) error {
	converted, err := s.resource.transform(o)
	if err != nil {
		return err
	}
	i, ok := converted.(*item)
	if !ok {
		return fmt.Errorf("store %s: it is a %T", s.resource.name, converted)
	}
	n := i.name
	if !isGone(i.event) {
		s.known[n] = struct{}{}
	} else {
		delete(s.known, n)
	}
	s.send(i.event)
	return nil
}

// Update implements cache.ReflectorStore.
func (s *store) Update(o any) error { return s.Add(o) }

// Delete implements cache.ReflectorStore.
func (s *store) Delete(o any) error {
	m, err := meta.Accessor(o)
	if err != nil {
		return fmt.Errorf("delete one of %s: %w", s.resource.name, err)
	}
	n := name{m.GetNamespace(), m.GetName()}
	delete(s.known, n)
	s.send(s.gone(n))
	return nil
}

// Replace implements cache.ReflectorStore: the list is all there is. What exists is sent before what has gone.
func (s *store) Replace(list []any, _ string) error {
	before := s.known
	s.known = make(map[name]struct{}, len(list))
	for _, o := range list {
		if err := s.Add(o); err != nil {
			return err
		}
	}
	for n := range before {
		if _, exists := s.known[n]; !exists {
			s.send(s.gone(n))
		}
	}
	if s.ctx.Err() == nil {
		s.listed()
	}
	return nil
}

// Resync implements cache.ReflectorStore; there is nothing to resync from.
func (s *store) Resync() error { return nil }

// nameOf returns the name of an object. It shares its memory with the model's where it can.
func nameOf(e source.Event, m metav1.Object) name {
	switch e := e.(type) {
	case source.SetService:
		return name{e.Service.Namespace, e.Service.Name}
	case source.SetSlice:
		return name{e.Slice.Namespace, e.Slice.Name}
	}
	return name{m.GetNamespace(), m.GetName()}
}

// isGone tells whether an object became an event that says that there is none.
func isGone(e source.Event) bool {
	switch e.(type) {
	case source.DeleteService, source.DeleteSlice:
		return true
	}
	return false
}

func goneService(n name) source.Event {
	return source.DeleteService{Name: model.ServiceName{Namespace: n.namespace, Name: n.name}}
}

func goneSlice(n name) source.Event {
	return source.DeleteSlice{Name: model.SliceName{Namespace: n.namespace, Name: n.name}}
}

func goneNode(n name) source.Event { return source.DeleteNode{Name: n.name} }

// distinct passes an event on only when it differs from the last one. A Node's status is written every few minutes
// with nothing in it that matters here.
func distinct(send func(source.Event)) func(source.Event) {
	var last source.Event
	return func(e source.Event) {
		if !reflect.DeepEqual(e, last) {
			last = e
			send(e)
		}
	}
}

// reportNode adds what a user must know: that no Node has this node's name.
func reportNode(send func(source.Event)) func(source.Event) {
	missing := false
	return func(e source.Event) {
		send(e)
		switch e := e.(type) {
		case source.DeleteNode:
			missing = true
			send(source.SetProblems{Origin: originNode, Problems: []source.Problem{{
				Object: source.Object{Kind: source.KindNode, Name: e.Name}, Reason: source.ReasonNodeNotFound,
				Message: "no Node of this name exists, and no endpoint counts as this node's own; if the node has " +
					"another name in the API, set --hostname-override or NODE_NAME",
				Effect: "everything else goes on"}}})
		case source.SetNode:
			if missing {
				missing = false
				send(source.SetProblems{Origin: originNode})
			}
		}
	}
}

// originNode is the origin of the problem that the Node does not exist.
const originNode = "node"

// cidrPart is what one ServiceCIDR contributes; no ranges and no problems mean that it is gone.
type cidrPart struct {
	source.SetServiceCIDRs
	name string
}

func goneCIDR(n name) source.Event { return cidrPart{name: n.name} }

// merge turns the parts into events with the ranges of all ServiceCIDRs.
func merge(send func(source.Event)) func(source.Event) {
	parts := map[string]source.SetServiceCIDRs{}
	return func(e source.Event) {
		part, ok := e.(cidrPart)
		if !ok {
			return
		}
		parts[part.name] = part.SetServiceCIDRs
		if part.CIDRs == nil && part.Problems == nil {
			delete(parts, part.name)
		}
		var all source.SetServiceCIDRs
		for _, n := range slices.Sorted(maps.Keys(parts)) {
			all.CIDRs = append(all.CIDRs, parts[n].CIDRs...)
			all.Problems = append(all.Problems, parts[n].Problems...)
		}
		all.CIDRs = source.MergeCIDRs(all.CIDRs)
		send(all)
	}
}
