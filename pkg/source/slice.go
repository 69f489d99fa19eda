// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Slice converts a discovery/v1 EndpointSlice. It returns nil for one that no Service of ours can use: of a headless
// Service, without an owner, or with host names instead of addresses.
func Slice(in *discovery.EndpointSlice) (*model.EndpointSlice, []Problem) {
	r := &report{object: Object{KindEndpointSlice, in.Namespace, in.Name}}
	owner := in.Labels[discovery.LabelServiceName]
	_, headless := in.Labels[LabelHeadless]
	if headless || owner == "" {
		return nil, nil
	}
	family, ok := sliceFamily(in, r)
	if !ok {
		return nil, r.problems
	}
	name := SliceName(in)
	out := &model.EndpointSlice{
		SliceName: name,
		Service:   model.ServiceName{Namespace: name.Namespace, Name: intern(owner)},
		Family:    family,
		Ports:     slicePorts(in, r),
		Endpoints: make([]model.Endpoint, 0, len(in.Endpoints)),
	}
	for i := range in.Endpoints {
		if e, ok := endpoint(&in.Endpoints[i], fmt.Sprintf("endpoints[%d]", i), family, r); ok {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	return out, r.problems
}

// SliceName returns the name by which the model knows an EndpointSlice.
func SliceName(in *discovery.EndpointSlice) model.SliceName {
	return model.SliceName{Namespace: intern(in.Namespace), Name: in.Name}
}

// Triggered returns when the change happened that led to this state of the slice, zero when it does not say.
func Triggered(in *discovery.EndpointSlice) time.Time {
	t, err := time.Parse(time.RFC3339Nano, in.Annotations[v1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return t
}

func sliceFamily(in *discovery.EndpointSlice, r *report) (model.Family, bool) {
	switch in.AddressType {
	case discovery.AddressTypeIPv4:
		return model.IPv4, true
	case discovery.AddressTypeIPv6:
		return model.IPv6, true
	}
	r.notTranslated("addressType", string(in.AddressType),
		"only IPv4 and IPv6 endpoints can be translated to", "the slice is left out")
	return 0, false
}

// slicePorts returns the ports that have a name and a number. The API documents a port without number as "all ports";
// kube-proxy does not implement it, nor does shunt: it is left out, and so are those without a name.
func slicePorts(in *discovery.EndpointSlice, r *report) []model.SlicePort {
	out := make([]model.SlicePort, 0, len(in.Ports))
	for i := range in.Ports {
		p := &in.Ports[i]
		if p.Name == nil || p.Port == nil || *p.Port == 0 {
			continue
		}
		field := fmt.Sprintf("ports[%d]", i)
		protocol, ok := r.protocol(field+".protocol", p.Protocol)
		if !ok {
			continue
		}
		if number, ok := r.port(field+".port", *p.Port); ok {
			out = append(out, model.SlicePort{Name: intern(*p.Name), Protocol: protocol, Port: number})
		}
	}
	return out
}

// endpoint converts one endpoint. Only its first address counts: consumers of the API must treat the addresses of one
// endpoint as interchangeable, and kube-proxy uses the first.
func endpoint(in *discovery.Endpoint, field string, family model.Family, r *report) (model.Endpoint, bool) {
	if len(in.Addresses) == 0 {
		return model.Endpoint{}, false
	}
	field += ".addresses[0]"
	a, ok := r.addr(field, in.Addresses[0], checkEndpoint)
	if !ok {
		return model.Endpoint{}, false
	}
	if model.FamilyOf(a) != family {
		r.invalid(field, in.Addresses[0], fmt.Errorf("it is not of the slice's addressType %s", family))
		return model.Endpoint{}, false
	}
	out := model.Endpoint{
		Address:     a,
		Ready:       isTrue(in.Conditions.Ready, true),
		Serving:     isTrue(in.Conditions.Serving, true),
		Terminating: isTrue(in.Conditions.Terminating, false),
	}
	if in.NodeName != nil {
		out.NodeName = intern(*in.NodeName)
	}
	if in.Hints != nil {
		for _, z := range in.Hints.ForZones {
			out.ForZones = append(out.ForZones, intern(z.Name))
		}
		for _, n := range in.Hints.ForNodes {
			out.ForNodes = append(out.ForNodes, intern(n.Name))
		}
	}
	return out, true
}

func isTrue(condition *bool, missing bool) bool {
	if condition == nil {
		return missing
	}
	return *condition
}
