// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

// findings collects what the API server would refuse beyond what the conversion reports by itself (addresses, port
// numbers, protocols).
type findings []source.Problem

func (f *findings) add(field, value, format string, args ...any) {
	*f = append(*f, source.Problem{Field: field, Value: value, Message: fmt.Sprintf(format, args...)})
}

// check adds what one of the API's own rules says about a value.
func (f *findings) check(field, value string, rule func(string) []string) {
	if value == "" {
		f.add(field, "", "required")
		return
	}
	if wrong := rule(value); len(wrong) > 0 {
		f.add(field, value, "%s", wrong[0])
	}
}

// oneOf adds a finding unless value is one of the words.
func oneOf[T ~string](f *findings, field string, value T, words ...T) {
	if slices.Contains(words, value) {
		return
	}
	var list []string
	for _, w := range words {
		if w != "" {
			list = append(list, string(w))
		}
	}
	f.add(field, string(value), "it must be one of %s", strings.Join(list, ", "))
}

func (f *findings) meta(m *metav1.ObjectMeta, namespaced bool, name func(string) []string) {
	f.check("metadata.name", m.Name, name)
	if namespaced {
		f.check("metadata.namespace", m.Namespace, validation.IsDNS1123Label)
	} else if m.Namespace != "" {
		f.add("metadata.namespace", m.Namespace, "an object of this kind has no namespace")
	}
	for _, key := range slices.Sorted(maps.Keys(m.Labels)) {
		value := m.Labels[key]
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			f.add("metadata.labels", key, "%s", wrong[0])
		}
		if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
			f.add("metadata.labels["+key+"]", value, "%s", wrong[0])
		}
	}
}

func validateService(in *v1.Service) []source.Problem {
	var f findings
	f.meta(&in.ObjectMeta, true, validation.IsDNS1123Label)
	s := &in.Spec
	oneOf(&f, "spec.type", s.Type,
		v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName)
	oneOf(&f, "spec.sessionAffinity", s.SessionAffinity, v1.ServiceAffinityNone, v1.ServiceAffinityClientIP, "")
	oneOf(&f, "spec.externalTrafficPolicy", s.ExternalTrafficPolicy,
		v1.ServiceExternalTrafficPolicyCluster, v1.ServiceExternalTrafficPolicyLocal, "")
	if s.InternalTrafficPolicy != nil {
		oneOf(&f, "spec.internalTrafficPolicy", *s.InternalTrafficPolicy,
			v1.ServiceInternalTrafficPolicyCluster, v1.ServiceInternalTrafficPolicyLocal)
	}
	for i, ingress := range in.Status.LoadBalancer.Ingress {
		if ingress.IPMode != nil {
			oneOf(&f, fmt.Sprintf("status.loadBalancer.ingress[%d].ipMode", i), *ingress.IPMode,
				v1.LoadBalancerIPModeVIP, v1.LoadBalancerIPModeProxy)
		}
	}
	f.clusterIPs(s)
	f.servicePorts(s)
	return f
}

// clusterIPs checks that the fields about the ClusterIPs agree with each other.
func (f *findings) clusterIPs(s *v1.ServiceSpec) {
	if s.Type == v1.ServiceTypeExternalName {
		return
	}
	if len(s.ClusterIPs) > 2 {
		f.add("spec.clusterIPs", strings.Join(s.ClusterIPs, ","), "a Service has at most two ClusterIPs")
	}
	if len(s.ClusterIPs) > 0 && s.ClusterIPs[0] != s.ClusterIP {
		f.add("spec.clusterIPs[0]", s.ClusterIPs[0], "it must be the same as spec.clusterIP %q", s.ClusterIP)
	}
	for i, family := range s.IPFamilies {
		field := fmt.Sprintf("spec.ipFamilies[%d]", i)
		oneOf(f, field, family, v1.IPv4Protocol, v1.IPv6Protocol)
		if slices.Contains(s.IPFamilies[:i], family) {
			f.add(field, string(family), "it is there twice")
		}
	}
	for i, text := range s.ClusterIPs {
		field := fmt.Sprintf("spec.clusterIPs[%d]", i)
		if _, err := source.ParseAddr(text); err != nil && i > 0 && len(s.IPFamilies) == 0 {
			// With it no family could be told, and the conversion read spec.clusterIP alone.
			f.add(field, text, "%s", err)
		} else if len(s.IPFamilies) > 0 && i >= len(s.IPFamilies) {
			f.add(field, text, "spec.ipFamilies has no family for it")
		}
	}
}

func (f *findings) servicePorts(s *v1.ServiceSpec) {
	if len(s.Ports) == 0 && s.Type != v1.ServiceTypeExternalName && s.ClusterIP != v1.ClusterIPNone {
		f.add("spec.ports", "", "required: a Service has at least one port")
	}
	type number struct {
		protocol v1.Protocol
		port     int32
	}
	names, ports, nodePorts := map[string]bool{}, map[number]bool{}, map[number]bool{}
	for i := range s.Ports {
		p := &s.Ports[i]
		field := fmt.Sprintf("spec.ports[%d]", i)
		if p.Name != "" || len(s.Ports) > 1 {
			f.check(field+".name", p.Name, validation.IsDNS1123Label)
		}
		if p.Name != "" && names[p.Name] {
			f.add(field+".name", p.Name, "an earlier port has the same name")
		}
		if ports[number{p.Protocol, p.Port}] {
			f.add(field+".port", strconv.Itoa(int(p.Port)), "an earlier port has the same number and protocol")
		}
		if p.NodePort != 0 && nodePorts[number{p.Protocol, p.NodePort}] {
			f.add(field+".nodePort", strconv.Itoa(int(p.NodePort)), "an earlier port has the same node port and protocol")
		}
		f.targetPort(field+".targetPort", p.TargetPort)
		names[p.Name], ports[number{p.Protocol, p.Port}], nodePorts[number{p.Protocol, p.NodePort}] = true, true, true
	}
}

func (f *findings) targetPort(field string, p intstr.IntOrString) {
	switch {
	case p == intstr.IntOrString{}:
	case p.Type == intstr.String:
		f.check(field, p.StrVal, validation.IsValidPortName)
	case p.IntVal < 1 || p.IntVal > 65535:
		f.add(field, p.String(), "a port is a number from 1 to 65535")
	}
}

// maxAddresses is the API's limit to the addresses of one endpoint.
const maxAddresses = 100

func validateSlice(in *discovery.EndpointSlice) []source.Problem {
	var f findings
	f.meta(&in.ObjectMeta, true, validation.IsDNS1123Subdomain)
	oneOf(&f, "addressType", in.AddressType,
		discovery.AddressTypeIPv4, discovery.AddressTypeIPv6, discovery.AddressTypeFQDN)
	for i := range in.Endpoints {
		f.endpoint(&in.Endpoints[i], fmt.Sprintf("endpoints[%d]", i), in.AddressType)
	}
	names := map[string]bool{}
	for i := range in.Ports {
		p := &in.Ports[i]
		field := fmt.Sprintf("ports[%d]", i)
		if *p.Name != "" {
			f.check(field+".name", *p.Name, validation.IsDNS1123Label)
		}
		if names[*p.Name] {
			f.add(field+".name", *p.Name, "an earlier port has the same name")
		}
		names[*p.Name] = true
		if p.Port != nil && *p.Port == 0 {
			f.add(field+".port", "0", "a port is a number from 1 to 65535")
		}
	}
	return f
}

// endpoint checks what the conversion does not read: that there is an address, and those after the first.
func (f *findings) endpoint(e *discovery.Endpoint, field string, kind discovery.AddressType) {
	if n := len(e.Addresses); n == 0 || n > maxAddresses {
		f.add(field+".addresses", "", "an endpoint has 1 to %d addresses", maxAddresses)
		return
	}
	if e.NodeName != nil {
		f.check(field+".nodeName", *e.NodeName, validation.IsDNS1123Subdomain)
	}
	if kind == discovery.AddressTypeFQDN {
		return
	}
	for i, text := range e.Addresses[1:] {
		a, err := source.ParseAddr(text)
		if err != nil {
			f.add(fmt.Sprintf("%s.addresses[%d]", field, i+1), text, "%s", err)
		} else if model.FamilyOf(a).String() != string(kind) {
			f.add(fmt.Sprintf("%s.addresses[%d]", field, i+1), text, "it is not of the slice's addressType %s", kind)
		}
	}
}

func validateNode(in *v1.Node) []source.Problem {
	var f findings
	f.meta(&in.ObjectMeta, false, validation.IsDNS1123Subdomain)
	return f
}

func validateCIDR(in *networking.ServiceCIDR) []source.Problem {
	var f findings
	f.meta(&in.ObjectMeta, false, validation.IsDNS1123Subdomain)
	if n := len(in.Spec.CIDRs); n < 1 || n > 2 {
		f.add("spec.cidrs", strings.Join(in.Spec.CIDRs, ","), "a ServiceCIDR has one or two ranges")
	}
	return f
}
