// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/netip"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

// bootstrapName is the name of the Service of the API servers, and of its slice.
const bootstrapName = "kubernetes"

// Bootstrap makes the Service default/kubernetes work before the API server has been heard: its ClusterIP, which must
// be known from elsewhere (a pod's environment has it), leads to those API servers that are given by address. What the
// API server says about it later takes its place. It returns false when no address of the right family is known.
func (s *Source) Bootstrap(clusterIP netip.Addr, port uint16) bool {
	clusterIP = clusterIP.Unmap()
	slice := &model.EndpointSlice{
		SliceName: model.SliceName{Namespace: "default", Name: bootstrapName},
		Service:   model.ServiceName{Namespace: "default", Name: bootstrapName},
		Family:    model.FamilyOf(clusterIP),
	}
	for _, server := range s.client.addresses() {
		if model.FamilyOf(server.Addr()) != slice.Family || server.Addr() == clusterIP || server.Addr().IsLoopback() {
			continue
		}
		if len(slice.Ports) == 0 {
			slice.Ports = []model.SlicePort{{Name: "https", Protocol: model.TCP, Port: server.Port()}}
		}
		if slice.Ports[0].Port == server.Port() {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Address: server.Addr(), Ready: true, Serving: true})
		}
	}
	if len(slice.Endpoints) == 0 {
		return false
	}
	s.first = []source.Event{
		source.SetService{Service: &model.Service{
			ServiceName: slice.Service, ClusterIPs: []netip.Addr{clusterIP},
			Ports: []model.Port{{Name: "https", Protocol: model.TCP, Port: port}},
		}},
		source.SetSlice{Slice: slice},
	}
	return true
}

// expect notes an object that was sent before the first list, so that the list can say that it is gone.
func (s *store) expect(e source.Event) {
	switch e := e.(type) {
	case source.SetService:
		if s.resource.name == "services" {
			s.known[name{e.Service.Namespace, e.Service.Name}] = struct{}{}
		}
	case source.SetSlice:
		if s.resource.name == "endpointslices" {
			s.known[name{e.Slice.Namespace, e.Slice.Name}] = struct{}{}
		}
	}
}
