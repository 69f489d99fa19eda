// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

// defaultService fills in what the API server would, as far as the conversion reads it.
func defaultService(s *v1.Service) {
	defaultNamespace(&s.Namespace)
	if s.Spec.Type == "" {
		s.Spec.Type = v1.ServiceTypeClusterIP
	}
	for i := range s.Spec.Ports {
		if s.Spec.Ports[i].Protocol == "" {
			s.Spec.Ports[i].Protocol = v1.ProtocolTCP
		}
	}
	switch {
	case len(s.Spec.ClusterIPs) == 0 && s.Spec.ClusterIP != "":
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	case s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) > 0:
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = families(s.Spec.ClusterIPs)
	}
}

// families returns the families of addresses; those that are none are refused later.
func families(addresses []string) []v1.IPFamily {
	var out []v1.IPFamily
	for _, text := range addresses {
		a, err := source.ParseAddr(text)
		if err != nil {
			return nil
		}
		out = append(out, v1.IPFamily(model.FamilyOf(a).String()))
	}
	return out
}

func defaultSlice(s *discovery.EndpointSlice) {
	defaultNamespace(&s.Namespace)
	for i := range s.Ports {
		// The API server makes a missing name the empty name, which is that of a Service's only port.
		if s.Ports[i].Name == nil {
			s.Ports[i].Name = new(string)
		}
	}
}

func defaultNamespace(namespace *string) {
	if *namespace == "" {
		*namespace = v1.NamespaceDefault
	}
}
