// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

// env is the namespace of one case, and what the case has made in it.
type env struct {
	*suite
	t         *testing.T
	namespace string
	services  map[string]*corev1.Service
	sockets   map[string]*held
	// What a step leaves to the next ones.
	remembered map[string]netip.AddrPort
	names      map[string]string
}

var cases atomic.Int64

func (s *suite) newEnv(t *testing.T) *env {
	number := cases.Add(1)
	e := &env{
		suite: s, t: t, namespace: fmt.Sprintf("case-%d", number),
		services: map[string]*corev1.Service{}, sockets: map[string]*held{},
		remembered: map[string]netip.AddrPort{}, names: map[string]string{},
	}
	if err := s.MakeNamespace(t.Context(), e.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.removeAll)
	return e
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) removeAll() {
	ctx := context.Background()
	for name := range e.services {
		_ = e.API.CoreV1().Services(e.namespace).Delete(ctx, name, metav1.DeleteOptions{})
	}
	now := metav1.NewDeleteOptions(0)
	_ = e.API.CoreV1().Pods(e.namespace).DeleteCollection(ctx, *now, metav1.ListOptions{})
	_ = e.API.DiscoveryV1().EndpointSlices(e.namespace).DeleteCollection(ctx, *now, metav1.ListOptions{})
}

// settle waits for the slice controller and for both proxies.
func (e *env) settle() {
	e.t.Helper()
	for _, service := range e.services {
		e.must(e.AwaitSlices(e.t.Context(), service))
	}
	_, err := e.Settle(e.t.Context(), e.worlds()...)
	e.must(err)
}

// service makes a Service of both families with TCP port 80 to 8080, of the pods labelled with its name.
func (e *env) service(name string, change ...func(*corev1.Service)) {
	e.t.Helper()
	dual := corev1.IPFamilyPolicyRequireDualStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name}, IPFamilyPolicy: &dual,
			Ports: []corev1.ServicePort{port("", corev1.ProtocolTCP, 80, world.Port)},
		},
	}
	for _, c := range change {
		c(service)
	}
	status := service.Status
	created, err := e.API.CoreV1().Services(e.namespace).Create(e.t.Context(), service, metav1.CreateOptions{})
	e.must(err)
	if len(status.LoadBalancer.Ingress) > 0 {
		created.Status = status
		created, err = e.API.CoreV1().Services(e.namespace).UpdateStatus(e.t.Context(), created, metav1.UpdateOptions{})
		e.must(err)
	}
	e.services[name] = created
}

func port(name string, protocol corev1.Protocol, number, to int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: protocol, Port: number, TargetPort: intstr.FromInt32(to)}
}

// update changes a Service.
func (e *env) update(name string, change func(*corev1.Service)) {
	e.t.Helper()
	service, err := e.API.CoreV1().Services(e.namespace).Get(e.t.Context(), name, metav1.GetOptions{})
	e.must(err)
	change(service)
	status := service.Status
	service, err = e.API.CoreV1().Services(e.namespace).Update(e.t.Context(), service, metav1.UpdateOptions{})
	e.must(err)
	service.Status = status
	service, err = e.API.CoreV1().Services(e.namespace).UpdateStatus(e.t.Context(), service, metav1.UpdateOptions{})
	e.must(err)
	e.services[name] = service
}

// remove deletes a Service.
func (e *env) remove(name string) {
	e.t.Helper()
	e.must(e.API.CoreV1().Services(e.namespace).Delete(e.t.Context(), name, metav1.DeleteOptions{}))
	delete(e.services, name)
}

// pods makes a ready Pod for each server.
func (e *env) pods(app string, servers ...string) {
	e.t.Helper()
	for _, server := range servers {
		e.must(e.MakePod(e.t.Context(), e.namespace, app, server))
	}
}

// ready sets a Pod's readiness.
func (e *env) ready(app, server string, ready bool) {
	e.t.Helper()
	e.must(e.SetReady(e.t.Context(), e.namespace, app, server, ready))
}

// terminate asks a Pod to end; as no kubelet obeys, it goes on serving.
func (e *env) terminate(app, server string) {
	e.t.Helper()
	e.must(e.API.CoreV1().Pods(e.namespace).Delete(e.t.Context(), world.PodName(app, server), metav1.DeleteOptions{}))
}

// end removes a Pod's object at once.
func (e *env) end(app, server string) {
	e.t.Helper()
	e.must(e.API.CoreV1().Pods(e.namespace).Delete(e.t.Context(), world.PodName(app, server), *metav1.NewDeleteOptions(0)))
}

// endpoint is one of a slice that a test writes by hand.
func endpoint(server string, change ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	node := world.NodeOf(server)
	made := discoveryv1.Endpoint{Addresses: []string{world.Address4(server)}, NodeName: &node}
	for _, c := range change {
		c(&made)
	}
	return made
}

func conditions(ready, serving, terminating *bool) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}
	}
}

func zoneHints(zones ...string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = orNew(e.Hints)
		for _, zone := range zones {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: zone})
		}
	}
}

func nodeHints(nodes ...string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = orNew(e.Hints)
		for _, node := range nodes {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: node})
		}
	}
}

func orNew(hints *discoveryv1.EndpointHints) *discoveryv1.EndpointHints {
	if hints == nil {
		return &discoveryv1.EndpointHints{}
	}
	return hints
}

// slice writes an IPv4 slice by hand, on one unnamed TCP port.
func (e *env) slice(service string, endpoints ...discoveryv1.Endpoint) string {
	e.t.Helper()
	return e.sliceWith(service, func(*discoveryv1.EndpointSlice) {}, endpoints...)
}

func (e *env) sliceWith(service string, change func(*discoveryv1.EndpointSlice), endpoints ...discoveryv1.Endpoint) string {
	e.t.Helper()
	slice := world.Slice(service, []string{"192.0.2.1"}, world.Port)
	slice.Endpoints = endpoints
	change(slice)
	created, err := e.API.DiscoveryV1().EndpointSlices(e.namespace).Create(e.t.Context(), slice, metav1.CreateOptions{})
	e.must(err)
	return created.Name
}

// updateSlice changes a slice by the name that slice returned.
func (e *env) updateSlice(name string, change func(*discoveryv1.EndpointSlice)) {
	e.t.Helper()
	api := e.API.DiscoveryV1().EndpointSlices(e.namespace)
	slice, err := api.Get(e.t.Context(), name, metav1.GetOptions{})
	e.must(err)
	change(slice)
	_, err = api.Update(e.t.Context(), slice, metav1.UpdateOptions{})
	e.must(err)
}

// removeSlice deletes a slice by the name that slice returned.
func (e *env) removeSlice(name string) {
	e.t.Helper()
	e.must(e.API.DiscoveryV1().EndpointSlices(e.namespace).Delete(e.t.Context(), name, metav1.DeleteOptions{}))
}

// clusterIP is a port of a Service's address of a family, 4 or 6.
func clusterIP(service string, family int, port uint16) target {
	return func(e *env) netip.AddrPort {
		for _, text := range e.services[service].Spec.ClusterIPs {
			if address := netip.MustParseAddr(text); address.Is4() == (family == 4) {
				return netip.AddrPortFrom(address, port)
			}
		}
		e.t.Fatalf("Service %s has no IPv%d address", service, family)
		return netip.AddrPort{}
	}
}

// nodePort is the node port of a Service's port on an address.
func nodePort(service, address string, port int32) target {
	return func(e *env) netip.AddrPort {
		for _, p := range e.services[service].Spec.Ports {
			if p.Port == port && p.NodePort != 0 {
				return netip.AddrPortFrom(netip.MustParseAddr(address), uint16(p.NodePort))
			}
		}
		e.t.Fatalf("Service %s has no node port for %d", service, port)
		return netip.AddrPort{}
	}
}

// at is a literal address.
func at(address string) target {
	return func(*env) netip.AddrPort { return netip.MustParseAddrPort(address) }
}

func as[T any](value T) *T { return &value }
