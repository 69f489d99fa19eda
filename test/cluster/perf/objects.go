// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	testedNode = "node-1"
	namespace  = "bench"
	serverPort = 8080
	dialedPort = 80

	podRange4     = "10.244.0.0/16"
	podRange6     = "fd00:10:244::/48"
	serviceRange4 = "10.96.0.0/16"
	serviceRange6 = "fd00:10:96::/112"
)

// service is a Service with one backend, or with two for which nobody stands.
type service struct {
	name     string
	address4 netip.Addr
	address6 netip.Addr
	nodePort uint16 // 0: none
	backends []backend
}

// backend is an endpoint, by its two addresses and the node that it is on.
type backend struct {
	address4, address6 netip.Addr
	node               string
}

// The Services that are dialled: one with the backend on the node under test, one with the backend on the other.
var (
	toLocal = service{
		name: "to-local", address4: netip.MustParseAddr("10.96.0.10"), address6: netip.MustParseAddr("fd00:10:96::a"),
		nodePort: 30001,
	}
	toRemote = service{
		name: "to-remote", address4: netip.MustParseAddr("10.96.0.11"), address6: netip.MustParseAddr("fd00:10:96::b"),
		nodePort: 30002,
	}
)

// filler is the i-th of the Services that nobody dials.
func filler(i int) service {
	number := i + 0x1000
	high, low := byte(number>>8), byte(number)
	return service{
		name:     fmt.Sprintf("filler-%05d", i),
		address4: netip.AddrFrom4([4]byte{10, 96, high, low}),
		address6: netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", number)),
		backends: []backend{absent(0, number), absent(1, number)},
	}
}

func absent(network, number int) backend {
	return backend{
		address4: netip.AddrFrom4([4]byte{10, 244, 128 | byte(network)<<6 | byte(number>>8)&63, byte(number)}),
		address6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244:f%d::%x", network, number)),
		node:     fmt.Sprintf("node-%d", 100+network),
	}
}

// objects are what the API server has.
type objects struct {
	services []corev1.Service
	slices   []discoveryv1.EndpointSlice
	nodes    []corev1.Node
	ranges   []networkingv1.ServiceCIDR
}

// newObjects are count Services, the two that are dialled among them; the last is a filler that local serves, so that it
// can be told when all are programmed.
func newObjects(node corev1.Node, count int, local, remote backend) objects {
	first, second := toLocal, toRemote
	first.backends, second.backends = []backend{local}, []backend{remote}
	all := []service{first, second}
	for i := range count - len(all) {
		all = append(all, filler(i))
	}
	all[len(all)-1].backends = []backend{local}
	o := objects{nodes: []corev1.Node{node}, ranges: []networkingv1.ServiceCIDR{{
		ObjectMeta: meta("kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{serviceRange4, serviceRange6}},
	}}}
	for _, s := range all {
		o.services = append(o.services, s.object())
		o.slices = append(o.slices, s.slice(corev1.IPv4Protocol), s.slice(corev1.IPv6Protocol))
	}
	return o
}

// lastFiller is the last of count Services.
func lastFiller(count int) service { return filler(count - 3) }

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1"}
}

func (s service) object() corev1.Service {
	policy := corev1.IPFamilyPolicyRequireDualStack
	addresses := []string{s.address4.String(), s.address6.String()}
	object := corev1.Service{ObjectMeta: meta(s.name), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: addresses[0], ClusterIPs: addresses,
		IPFamilyPolicy: &policy, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		SessionAffinity: corev1.ServiceAffinityNone,
	}}
	object.Namespace = namespace
	for _, protocol := range s.protocols() {
		object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{
			Name: portName(protocol), Protocol: protocol, Port: dialedPort, NodePort: int32(s.nodePort),
		})
	}
	internal := corev1.ServiceInternalTrafficPolicyCluster
	object.Spec.InternalTrafficPolicy = &internal
	if s.nodePort != 0 {
		object.Spec.Type = corev1.ServiceTypeNodePort
		object.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	return object
}

func (s service) protocols() []corev1.Protocol {
	if s.nodePort == 0 {
		return []corev1.Protocol{corev1.ProtocolTCP}
	}
	return []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}
}

func portName(protocol corev1.Protocol) string { return "port-" + string(protocol) }

func (s service) slice(family corev1.IPFamily) discoveryv1.EndpointSlice {
	slice := discoveryv1.EndpointSlice{
		ObjectMeta:  meta(fmt.Sprintf("%s-%s", s.name, family)),
		AddressType: discoveryv1.AddressType(family),
	}
	slice.Namespace = namespace
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: s.name, discoveryv1.LabelManagedBy: "bench"}
	for _, protocol := range s.protocols() {
		name, port := portName(protocol), int32(serverPort)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &protocol})
	}
	ready := true
	for _, b := range s.backends {
		address := b.address4
		if family == corev1.IPv6Protocol {
			address = b.address6
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: &b.node,
		})
	}
	return slice
}
