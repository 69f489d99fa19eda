// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shunt-lb/shunt/pkg/source"
)

// object is one object of one document, converted.
type object struct {
	id source.Object
	// event is what is sent when this is the object's valid definition; nil for another node's Node.
	event source.Event
	// cidrs are a ServiceCIDR's, which is sent together with all others.
	cidrs []netip.Prefix

	file         string
	number, line int
	// order is the object's place among those of its file.
	order int
	// kept is true when its file no longer defines the object but has a broken document, which it may be.
	kept bool
}

// where tells a user where the object is defined.
func (o *object) where() string {
	return fmt.Sprintf("%s: document %d (line %d)", o.file, o.number, o.line)
}

// place writes the place into the problems of the object's event.
func (o *object) place(where string) {
	var problems []source.Problem
	switch e := o.event.(type) {
	case source.SetService:
		problems = e.Problems
	case source.DeleteService:
		problems = e.Problems
	case source.SetSlice:
		problems = e.Problems
	case source.DeleteSlice:
		problems = e.Problems
	case source.SetNode:
		problems = e.Problems
	}
	for i := range problems {
		problems[i].Where = where
	}
}

// reader decodes one object. Problems mean that the API server would refuse it.
type reader func(d decoder, data []byte) (*object, []source.Problem)

// kinds are the objects that are read. There is no other version of them that an API server of this decade serves.
var kinds = map[metav1.TypeMeta]reader{
	{APIVersion: "v1", Kind: source.KindService}:                        readService,
	{APIVersion: "v1", Kind: source.KindNode}:                           readNode,
	{APIVersion: "discovery.k8s.io/v1", Kind: source.KindEndpointSlice}: readSlice,
	{APIVersion: "networking.k8s.io/v1", Kind: source.KindServiceCIDR}:  readCIDR,
}

func readService(_ decoder, data []byte) (*object, []source.Problem) {
	var in v1.Service
	problems := strict(data, &in)
	defaultService(&in)
	id := source.Object{Kind: source.KindService, Namespace: in.Namespace, Name: in.Name}
	if len(problems) > 0 {
		return nil, named(id, problems)
	}
	out, found := source.Service(&in)
	refused, found := separate(found)
	if refused = append(validateService(&in), refused...); len(refused) > 0 {
		return nil, named(id, refused)
	}
	o := &object{id: id, event: source.DeleteService{Name: source.ServiceName(&in), Problems: found}}
	if out != nil {
		o.event = source.SetService{Service: out, UID: string(in.UID), Problems: found}
	}
	return o, nil
}

func readSlice(_ decoder, data []byte) (*object, []source.Problem) {
	var in discovery.EndpointSlice
	problems := strict(data, &in)
	defaultSlice(&in)
	id := source.Object{Kind: source.KindEndpointSlice, Namespace: in.Namespace, Name: in.Name}
	if len(problems) > 0 {
		return nil, named(id, problems)
	}
	out, found := source.Slice(&in)
	refused, found := separate(found)
	if refused = append(validateSlice(&in), refused...); len(refused) > 0 {
		return nil, named(id, refused)
	}
	found = append(found, ownerless(id, &in)...)
	o := &object{id: id, event: source.DeleteSlice{Name: source.SliceName(&in), Problems: found}}
	if out != nil {
		o.event = source.SetSlice{Slice: out, UID: string(in.UID), Triggered: source.Triggered(&in), Problems: found}
	}
	return o, nil
}

// ownerless reports a slice that names no Service: in a file written by hand it is an oversight.
func ownerless(id source.Object, in *discovery.EndpointSlice) []source.Problem {
	if in.Labels[discovery.LabelServiceName] != "" {
		return nil
	}
	return []source.Problem{{Object: id, Field: "metadata.labels[" + discovery.LabelServiceName + "]",
		Reason: source.ReasonNotTranslated, Message: "missing: the label names the Service whose endpoints these are",
		Effect: "no Service uses the slice"}}
}

func readNode(d decoder, data []byte) (*object, []source.Problem) {
	var in v1.Node
	problems := strict(data, &in)
	id := source.Object{Kind: source.KindNode, Name: in.Name}
	if len(problems) > 0 {
		return nil, named(id, problems)
	}
	out, found := source.NodeOf(&in)
	refused, found := separate(found)
	if refused = append(validateNode(&in), refused...); len(refused) > 0 {
		return nil, named(id, refused)
	}
	o := &object{id: id}
	if in.Name == d.node {
		o.event = source.SetNode{Node: out, Problems: found}
	}
	return o, nil
}

func readCIDR(_ decoder, data []byte) (*object, []source.Problem) {
	var in networking.ServiceCIDR
	problems := strict(data, &in)
	id := source.Object{Kind: source.KindServiceCIDR, Name: in.Name}
	if len(problems) > 0 {
		return nil, named(id, problems)
	}
	cidrs, refused := source.ServiceCIDRs(&in)
	if refused = append(validateCIDR(&in), refused...); len(refused) > 0 {
		return nil, named(id, refused)
	}
	return &object{id: id, cidrs: cidrs}, nil
}

func named(id source.Object, problems []source.Problem) []source.Problem {
	for i := range problems {
		problems[i].Object = id
	}
	return problems
}

// separate divides what the conversion found into what the API server would have refused and what it lets pass. A
// source range that cannot be read is left out, as kube-proxy does with the ranges of old objects.
func separate(found []source.Problem) (refused, passed []source.Problem) {
	for _, p := range found {
		if p.Reason == source.ReasonInvalidField && !strings.HasPrefix(p.Field, "spec.loadBalancerSourceRanges") {
			refused = append(refused, p)
		} else {
			passed = append(passed, p)
		}
	}
	return refused, passed
}
