// SPDX-License-Identifier: Apache-2.0

package differential

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

// What a case changes of the usual Service, for (*env).service and update.
type change = func(*corev1.Service)

func ofType(kind corev1.ServiceType) change {
	return func(s *corev1.Service) { s.Spec.Type = kind }
}

func withPorts(ports ...corev1.ServicePort) change {
	return func(s *corev1.Service) { s.Spec.Ports = ports }
}

// onUDP is the usual port on UDP.
func onUDP(s *corev1.Service) {
	s.Spec.Ports = []corev1.ServicePort{port("", corev1.ProtocolUDP, 80, world.Port)}
}

// onBoth is the usual port on TCP and on UDP.
func onBoth(s *corev1.Service) {
	s.Spec.Ports = []corev1.ServicePort{
		port("stream", corev1.ProtocolTCP, 80, world.Port), port("datagram", corev1.ProtocolUDP, 80, world.Port),
	}
}

func externalIPs(addresses ...string) change {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = addresses }
}

// ingress makes a Service of type LoadBalancer with an ingress address.
func ingress(address string, mode corev1.LoadBalancerIPMode) change {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: address, IPMode: &mode})
	}
}

func sourceRanges(ranges ...string) change {
	return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = ranges }
}

func internalLocal(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = as(corev1.ServiceInternalTrafficPolicyLocal)
}

func externalLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func affinity(seconds int32) change {
	return func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds},
		}
	}
}

func noAffinity(s *corev1.Service) {
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
}

func families(policy corev1.IPFamilyPolicy, families ...corev1.IPFamily) change {
	return func(s *corev1.Service) { s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &policy, families }
}

func only(family corev1.IPFamily) change { return families(corev1.IPFamilyPolicySingleStack, family) }

// handwritten has no selector: the case writes the slices.
func handwritten(s *corev1.Service) { s.Spec.Selector = nil }

func distribution(name string) change {
	return func(s *corev1.Service) { s.Spec.TrafficDistribution = &name }
}

func slicePort(name string, protocol corev1.Protocol, number *int32) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) {
		s.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: number}}
	}
}

const (
	vip   = corev1.LoadBalancerIPModeVIP
	proxy = corev1.LoadBalancerIPModeProxy

	node4, node6 = "172.20.0.10", "fd00:172:20::a"
)

// What is everywhere: see docs/differences.md.
const (
	podSourceKept = "pod-source-kept"
	hairpinSource = "hairpin-source"
)

// kept is a check of a pod that dials an external frontend: kube-proxy shows the servers the node, shunt the pod.
func kept(servers string, dial func(from string, to target, want string) check, from string, to target) check {
	return dial(from, to, servers+" as node").except(podSourceKept, servers+" as own")
}
