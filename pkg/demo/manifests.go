// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const namespace = "default"

// service is one Service of the demo with the one port it has.
type service struct {
	name       string
	addresses  []netip.Addr // ClusterIPs, none: headless
	port       uint16
	targetPort uint16
	protocol   corev1.Protocol
	affinity   bool
	nodePort   uint16     // 0: none
	external   netip.Addr // an external IP, or none
	balancer   netip.Addr // a load balancer's address, or none
}

// endpoint is one entry of an EndpointSlice.
type endpoint struct {
	pod      *server
	notReady bool
}

// frontend is the first ClusterIP with the port.
func (s *service) frontend() netip.AddrPort { return netip.AddrPortFrom(s.addresses[0], s.port) }

// nodePortAt is the node port on one of a node's addresses.
func (s *service) nodePortAt(address netip.Addr) netip.AddrPort {
	return netip.AddrPortFrom(address, s.nodePort)
}

// frontends is how many addresses with a port the service has in the kernel.
func (s *service) frontends() int {
	count := len(s.addresses)
	if s.nodePort != 0 {
		count *= 2 // a node port in each family
	}
	for _, address := range []netip.Addr{s.external, s.balancer} {
		if address.IsValid() {
			count++
		}
	}
	return count
}

func (s *service) manifest() *corev1.Service {
	object := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: s.name, Namespace: namespace},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": s.name},
			Ports: []corev1.ServicePort{{
				Name: "main", Port: int32(s.port), TargetPort: intstr.FromInt32(int32(s.targetPort)), Protocol: s.protocol,
			}},
		},
	}
	spec := &object.Spec
	if len(s.addresses) == 0 {
		spec.ClusterIP, spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	}
	for _, address := range s.addresses {
		spec.ClusterIPs = append(spec.ClusterIPs, address.String())
		spec.ClusterIP = spec.ClusterIPs[0]
		spec.IPFamilies = append(spec.IPFamilies, family(address))
	}
	if s.affinity {
		timeout := int32(10800)
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout},
		}
	}
	s.publishOutside(object)
	return object
}

// publishOutside adds what clients outside the cluster dial.
func (s *service) publishOutside(object *corev1.Service) {
	spec := &object.Spec
	if s.nodePort != 0 {
		spec.Type, spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(s.nodePort)
	}
	if s.external.IsValid() {
		spec.ExternalIPs = []string{s.external.String()}
	}
	if s.balancer.IsValid() {
		spec.Type = corev1.ServiceTypeLoadBalancer
		object.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: s.balancer.String()}}
	}
}

// slice is the EndpointSlice of one family.
func (s *service) slice(of corev1.IPFamily, endpoints []endpoint) *discoveryv1.EndpointSlice {
	name, port := "main", int32(s.targetPort)
	object := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Name: s.name + "-" + strings.ToLower(string(of)), Namespace: namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.name},
		},
		AddressType: discoveryv1.AddressType(of),
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &s.protocol}},
		Endpoints:   []discoveryv1.Endpoint{},
	}
	for _, e := range endpoints {
		address := e.pod.Address4
		if of == corev1.IPv6Protocol {
			address = e.pod.Address6
		}
		ready, node := !e.notReady, e.pod.node
		object.Endpoints = append(object.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			NodeName:   &node,
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: e.pod.Name},
		})
	}
	return object
}

func family(address netip.Addr) corev1.IPFamily {
	if address.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// publish writes the Service and its EndpointSlices, one file each.
func (w *world) publish(s *service, endpoints ...endpoint) error {
	if err := w.write("service-"+s.name, s.manifest()); err != nil {
		return err
	}
	families := map[corev1.IPFamily]bool{}
	for _, address := range s.addresses {
		families[family(address)] = true
	}
	if len(families) == 0 {
		families[corev1.IPv4Protocol] = true
	}
	for of := range families {
		slice := s.slice(of, endpoints)
		if err := w.write("endpointslice-"+slice.Name, slice); err != nil {
			return err
		}
	}
	return nil
}

// write replaces a file at once, as a careful editor does.
func (w *world) write(name string, object any) error {
	content, err := yaml.Marshal(object)
	if err != nil {
		return fmt.Errorf("write manifest %s: %w", name, err)
	}
	path := filepath.Join(w.manifests, name+".yaml")
	temporary := filepath.Join(w.manifests, "."+name+".new")
	if err := os.WriteFile(temporary, content, 0o644); err != nil {
		return fmt.Errorf("write manifest %s: %w", name, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("write manifest %s: %w", name, err)
	}
	return nil
}
