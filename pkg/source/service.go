// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Labels by which an object says that it is not ours. They count by presence: an empty value excludes too.
const (
	LabelProxyName = "service.kubernetes.io/service-proxy-name"
	LabelHeadless  = v1.IsHeadlessService
)

// Limits of ClientIP session affinity, from the API.
const (
	defaultAffinitySeconds = v1.DefaultClientIPServiceAffinitySeconds
	maxAffinitySeconds     = 86400
)

// Service converts a v1 Service. It returns nil for one that is not to be translated; the problems then tell why,
// where that is not the user's plain wish (a headless Service needs no explanation).
func Service(in *v1.Service) (*model.Service, []Problem) {
	r := &report{object: Object{KindService, in.Namespace, in.Name}}
	if skipService(in, r) {
		return nil, r.problems
	}
	out := &model.Service{
		ServiceName:   ServiceName(in),
		Created:       in.CreationTimestamp.Time,
		ClusterIPs:    clusterIPs(in, r),
		InternalLocal: internalLocal(in),
		ExternalLocal: externalLocal(in),
		Affinity:      affinity(in, r),
		Ports:         servicePorts(in, r),
	}
	if len(out.ClusterIPs) == 0 {
		r.notTranslated("spec.clusterIPs", strings.Join(in.Spec.ClusterIPs, ","),
			"no usable ClusterIP", "the Service is not translated")
		return nil, r.problems
	}
	out.ExternalIPs = externalIPs(in, r)
	out.LoadBalancerIPs = loadBalancerIPs(in, r)
	out.SourceRanges = sourceRanges(in, r)
	out.HealthCheckNodePort = healthCheckNodePort(in, r)
	return out, r.problems
}

// ServiceName returns the name by which the model knows a Service.
func ServiceName(in *v1.Service) model.ServiceName {
	return model.ServiceName{Namespace: intern(in.Namespace), Name: in.Name}
}

// skipService is kube-proxy's rule about Services that are not a proxy's business, together with the label selection
// that an API server does for it.
func skipService(in *v1.Service, r *report) bool {
	if _, found := in.Labels[LabelProxyName]; found {
		return true
	}
	if _, found := in.Labels[LabelHeadless]; found {
		return true
	}
	switch {
	case in.Spec.Type == v1.ServiceTypeExternalName, in.Spec.ClusterIP == v1.ClusterIPNone:
		return true
	case in.Spec.ClusterIP == "":
		r.notTranslated("spec.clusterIP", "",
			"no ClusterIP has been allocated", "the Service is not translated until it has one")
		return true
	}
	return false
}

// clusterIPs returns the ClusterIP of each family, in the object's order. The family decides: an object from before
// dual stack has the one of spec.clusterIP; otherwise the family's index in ipFamilies selects from clusterIPs.
func clusterIPs(in *v1.Service, r *report) []netip.Addr {
	if len(in.Spec.IPFamilies) == 0 {
		if a, ok := r.addr("spec.clusterIP", in.Spec.ClusterIP, checkFrontend); ok {
			return []netip.Addr{a}
		}
		return nil
	}
	var out []netip.Addr
	for i, family := range in.Spec.IPFamilies {
		if i >= len(in.Spec.ClusterIPs) {
			break
		}
		field, value := fmt.Sprintf("spec.clusterIPs[%d]", i), in.Spec.ClusterIPs[i]
		a, ok := r.addr(field, value, checkFrontend)
		if !ok {
			continue
		}
		if string(family) != model.FamilyOf(a).String() {
			r.invalid(field, value, fmt.Errorf("spec.ipFamilies[%d] says %s", i, family))
			continue
		}
		if hasFamily(out, model.FamilyOf(a)) {
			r.invalid(field, value, fmt.Errorf("a Service has one ClusterIP of each family"))
			continue
		}
		out = append(out, a)
	}
	return out
}

func hasFamily(addrs []netip.Addr, family model.Family) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return model.FamilyOf(a) == family })
}

func internalLocal(in *v1.Service) bool {
	policy := in.Spec.InternalTrafficPolicy
	return policy != nil && *policy == v1.ServiceInternalTrafficPolicyLocal
}

// externalLocal tells whether externalTrafficPolicy: Local has a meaning for a Service of this type.
func externalLocal(in *v1.Service) bool {
	if in.Spec.ExternalTrafficPolicy != v1.ServiceExternalTrafficPolicyLocal {
		return false
	}
	switch in.Spec.Type {
	case v1.ServiceTypeLoadBalancer, v1.ServiceTypeNodePort:
		return true
	case v1.ServiceTypeClusterIP, "":
		return len(in.Spec.ExternalIPs) > 0
	}
	return false
}

// affinity returns the timeout of session affinity, 0 for none. The API server fills in the timeout; an object without
// it gets the API's default.
func affinity(in *v1.Service, r *report) time.Duration {
	if in.Spec.SessionAffinity != v1.ServiceAffinityClientIP {
		return 0
	}
	seconds := int32(defaultAffinitySeconds)
	if c := in.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > maxAffinitySeconds {
		r.invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", strconv.Itoa(int(seconds)),
			fmt.Errorf("a timeout is from 1 to %d seconds (the default is %d)", maxAffinitySeconds, defaultAffinitySeconds))
		seconds = defaultAffinitySeconds
	}
	return time.Duration(seconds) * time.Second
}

// externalIPs returns the externalIPs that parse, each once.
func externalIPs(in *v1.Service, r *report) []netip.Addr {
	var out []netip.Addr
	for i, value := range in.Spec.ExternalIPs {
		if a, ok := r.addr(fmt.Sprintf("spec.externalIPs[%d]", i), value, checkFrontend); ok && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// loadBalancerIPs returns the load balancer's addresses whose traffic is to be taken on the node. Those of mode Proxy
// must travel to the load balancer; an ingress may have a host name only.
func loadBalancerIPs(in *v1.Service, r *report) []netip.Addr {
	var out []netip.Addr
	for i, ingress := range in.Status.LoadBalancer.Ingress {
		if ingress.IP == "" || ingress.IPMode != nil && *ingress.IPMode != v1.LoadBalancerIPModeVIP {
			continue
		}
		a, ok := r.addr(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), ingress.IP, checkFrontend)
		if ok && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// sourceRanges returns the ranges that may use the load balancer's addresses. A range that holds every address of its
// family empties the family's list, which means the same: no filter.
func sourceRanges(in *v1.Service, r *report) []netip.Prefix {
	var out []netip.Prefix
	open := map[model.Family]bool{}
	for i, text := range in.Spec.LoadBalancerSourceRanges {
		value := strings.TrimSpace(text)
		p, err := ParsePrefix(value)
		if err != nil {
			r.invalid(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), value, err)
			continue
		}
		if p.Bits() == 0 {
			open[model.FamilyOf(p.Addr())] = true
		}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return slices.DeleteFunc(out, func(p netip.Prefix) bool { return open[model.FamilyOf(p.Addr())] })
}

// healthCheckNodePort returns the port on which a load balancer asks for local endpoints, 0 for a Service that has no
// use for it.
func healthCheckNodePort(in *v1.Service, r *report) uint16 {
	if in.Spec.Type != v1.ServiceTypeLoadBalancer || !externalLocal(in) || in.Spec.HealthCheckNodePort == 0 {
		return 0
	}
	port, _ := r.port("spec.healthCheckNodePort", in.Spec.HealthCheckNodePort)
	return port
}

// servicePorts returns the ports that can be translated; a port is known by its name and protocol.
func servicePorts(in *v1.Service, r *report) []model.Port {
	out := make([]model.Port, 0, len(in.Spec.Ports))
	for i := range in.Spec.Ports {
		p := &in.Spec.Ports[i]
		field := fmt.Sprintf("spec.ports[%d]", i)
		protocol, ok := r.protocol(field+".protocol", &p.Protocol)
		if !ok {
			continue
		}
		number, ok := r.port(field+".port", p.Port)
		if !ok {
			continue
		}
		if slices.ContainsFunc(out, func(o model.Port) bool { return o.Name == p.Name && o.Protocol == protocol }) {
			r.invalid(field+".name", p.Name, fmt.Errorf("an earlier port has the same name and protocol"))
			continue
		}
		port := model.Port{Name: intern(p.Name), Protocol: protocol, Port: number}
		if p.NodePort != 0 {
			port.NodePort, _ = r.port(field+".nodePort", p.NodePort)
		}
		out = append(out, port)
	}
	return out
}

// protocol converts a protocol; one that is not given is TCP, as the API defaults it.
func (r *report) protocol(field string, value *v1.Protocol) (model.Protocol, bool) {
	if value == nil {
		return model.TCP, true
	}
	switch *value {
	case v1.ProtocolTCP, "":
		return model.TCP, true
	case v1.ProtocolUDP:
		return model.UDP, true
	case v1.ProtocolSCTP:
		return model.SCTP, true
	}
	r.invalid(field, string(*value), fmt.Errorf("a protocol is TCP, UDP or SCTP"))
	return 0, false
}
