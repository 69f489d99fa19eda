// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const namespace = "stream"

// TestKernelFollowsTheWatchStream runs one story after the other on one agent, and compares after each.
func TestKernelFollowsTheWatchStream(t *testing.T) {
	s := newSuite(t)
	must(t, s.MakeNamespace(t.Context(), namespace))
	for _, story := range []struct {
		name string
		tell func(t *testing.T, s *suite)
	}{
		{"a rolling update", rollingUpdate},
		{"to zero and back", toZeroAndBack},
		{"types and ports change", typesAndPorts},
		{"deleted and made again with the same address", madeAgain},
		{"endpoints move between slices", movingEndpoints},
		{"the agent is killed and comes back", killedAgent},
		{"a storm of changes", storm},
	} {
		t.Run(story.name, func(t *testing.T) {
			story.tell(t, s)
			s.compare(t)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// settle waits until the agent has seen everything, the end of the marker included.
func (s *suite) settle(t *testing.T) {
	t.Helper()
	_, err := s.Settle(t.Context(), s.subject)
	must(t, err)
	withoutMarker(t, s.subject)
}

func (s *suite) makeService(t *testing.T, name string, change ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	dual := corev1.IPFamilyPolicyRequireDualStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name}, IPFamilyPolicy: &dual,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(world.Port)}},
		},
	}
	for _, c := range change {
		c(service)
	}
	created, err := s.API.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{})
	must(t, err)
	return created
}

func (s *suite) update(t *testing.T, name string, change func(*corev1.Service)) *corev1.Service {
	t.Helper()
	service, err := s.API.CoreV1().Services(namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	change(service)
	service, err = s.API.CoreV1().Services(namespace).Update(t.Context(), service, metav1.UpdateOptions{})
	must(t, err)
	return service
}

// slices waits until the controller has written the slices of the Service's pods.
func (s *suite) slices(t *testing.T, service *corev1.Service) {
	t.Helper()
	must(t, s.AwaitSlices(t.Context(), service))
}

func (s *suite) end(t *testing.T, app, server string) {
	t.Helper()
	must(t, s.API.CoreV1().Pods(namespace).Delete(t.Context(), world.PodName(app, server), *metav1.NewDeleteOptions(0)))
}

// traffic connects to a Service all the time, until the returned function is called: then no connection may have
// failed.
func (s *suite) traffic(t *testing.T, service *corev1.Service) (stop func()) {
	t.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIP), uint16(service.Spec.Ports[0].Port))
	series := make([]*lab.Series, 0, 2)
	for _, client := range []*lab.Process{s.subject.Client, s.subject.Host} {
		series = append(series, client.StartConnects(process.ConnectsRequest{Network: process.TCP, Address: to, Workers: 1}))
	}
	return func() {
		t.Helper()
		for _, one := range series {
			result := one.Stop()
			if result.Failed() > 0 || result.Total() == 0 {
				t.Errorf("connections during the changes: %v, failed: %v", result.Servers, result.Errnos)
			}
		}
	}
}

// rollingUpdate replaces pod after pod: the next is ready before the last one terminates.
func rollingUpdate(t *testing.T, s *suite) {
	ctx := t.Context()
	service := s.makeService(t, "rolling")
	must(t, s.MakePod(ctx, namespace, "rolling", "local-1"))
	s.slices(t, service)
	s.settle(t)
	stop := s.traffic(t, service)
	order := []string{"local-1", "remote-1", "local-2", "remote-2", "local-1"}
	for i, next := range order[1:] {
		last := order[i]
		must(t, s.MakePod(ctx, namespace, "rolling", next))
		s.slices(t, service)
		must(t, s.API.CoreV1().Pods(namespace).Delete(ctx, world.PodName("rolling", last), metav1.DeleteOptions{}))
		s.slices(t, service)
		s.end(t, "rolling", last)
		s.slices(t, service)
	}
	s.settle(t)
	stop()
}

func toZeroAndBack(t *testing.T, s *suite) {
	service := s.makeService(t, "zero", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeNodePort })
	for range 3 {
		for _, server := range []string{"local-1", "local-2", "remote-1"} {
			must(t, s.MakePod(t.Context(), namespace, "zero", server))
		}
		s.slices(t, service)
		for _, server := range []string{"local-1", "local-2", "remote-1"} {
			s.end(t, "zero", server)
		}
		s.slices(t, service)
	}
	s.compare(t)
	must(t, s.MakePod(t.Context(), namespace, "zero", "remote-2"))
	s.slices(t, service)
}

func typesAndPorts(t *testing.T, s *suite) {
	service := s.makeService(t, "types")
	must(t, s.MakePod(t.Context(), namespace, "types", "local-1"))
	must(t, s.MakePod(t.Context(), namespace, "types", "remote-1"))
	s.slices(t, service)
	local := corev1.ServiceInternalTrafficPolicyLocal
	for _, change := range []func(*corev1.Service){
		func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort },
		func(s *corev1.Service) { s.Spec.Ports[0].Port = 8000 },
		func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.LoadBalancerSourceRanges = []string{"10.244.0.0/16"}
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		},
		func(s *corev1.Service) {
			s.Spec.Ports[0].Name = "first"
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
				Name: "second", Port: 81, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(world.OtherPort),
			})
		},
		func(s *corev1.Service) { s.Spec.Ports[0].Name, s.Spec.Ports[1].Name = "second", "first" },
		func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local },
		func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1", "2001:db8::1"} },
		func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
		func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeClusterIP, nil
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].NodePort = 0
			}
			s.Spec.HealthCheckNodePort = 0
		},
		func(s *corev1.Service) { s.Spec.ExternalIPs, s.Spec.ExternalTrafficPolicy = nil, "" },
		func(s *corev1.Service) {
			single := corev1.IPFamilyPolicySingleStack
			s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &single, s.Spec.IPFamilies[:1]
			s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1]
		},
	} {
		service = s.update(t, "types", change)
		s.slices(t, service)
		s.compare(t)
	}
}

// madeAgain deletes a Service and makes it again with its name and address, and then another with its address alone.
func madeAgain(t *testing.T, s *suite) {
	first := s.makeService(t, "again")
	for i := range 10 {
		name, last := "again", "again"
		if i%2 == 1 {
			name = "another"
		} else if i > 0 {
			last = "another"
		}
		if i%2 == 1 {
			last = "again"
		}
		must(t, s.API.CoreV1().Services(namespace).Delete(t.Context(), last, metav1.DeleteOptions{}))
		s.makeService(t, name, func(service *corev1.Service) {
			service.Spec.ClusterIP, service.Spec.ClusterIPs = first.Spec.ClusterIP, first.Spec.ClusterIPs
			service.Spec.Selector = map[string]string{"app": "again"}
			service.Spec.Ports[0].Port = int32(80 + i)
		})
	}
	must(t, s.MakePod(t.Context(), namespace, "again", "remote-1"))
}

// movingEndpoints moves endpoints from slice to slice: into the next before out of the last, and the other way round.
func movingEndpoints(t *testing.T, s *suite) {
	service := s.makeService(t, "moving", func(service *corev1.Service) { service.Spec.Selector = nil })
	stays := s.writeSlice(t, "moving", "remote-2")
	from, to := s.writeSlice(t, "moving", "local-1", "remote-1"), s.writeSlice(t, "moving")
	s.settle(t)
	stop := s.traffic(t, service)
	for i := range 20 {
		s.setEndpoints(t, to, "local-1", "remote-1")
		s.setEndpoints(t, from)
		from, to = to, from
		if i%4 == 3 { // through a moment without
			s.setEndpoints(t, from)
			s.setEndpoints(t, to, "local-1")
			s.setEndpoints(t, to, "local-1", "remote-1")
			from, to = to, from
		}
	}
	s.setEndpoints(t, stays)
	s.settle(t)
	stop()
}

func (s *suite) writeSlice(t *testing.T, service string, servers ...string) string {
	t.Helper()
	slice := world.Slice(service, []string{"192.0.2.1"}, world.Port)
	slice.Endpoints = endpointsOf(servers)
	created, err := s.API.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), slice, metav1.CreateOptions{})
	must(t, err)
	return created.Name
}

func (s *suite) setEndpoints(t *testing.T, slice string, servers ...string) {
	t.Helper()
	api := s.API.DiscoveryV1().EndpointSlices(namespace)
	object, err := api.Get(t.Context(), slice, metav1.GetOptions{})
	must(t, err)
	object.Endpoints = endpointsOf(servers)
	_, err = api.Update(t.Context(), object, metav1.UpdateOptions{})
	must(t, err)
}

func endpointsOf(servers []string) []discoveryv1.Endpoint {
	endpoints := []discoveryv1.Endpoint{}
	for _, server := range servers {
		node := world.NodeOf(server)
		endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{world.Address4(server)}, NodeName: &node})
	}
	return endpoints
}

// killedAgent kills the agent amidst changes; what it finds when it comes back is half of something.
func killedAgent(t *testing.T, s *suite) {
	steady := s.makeService(t, "steady", func(service *corev1.Service) { service.Spec.Selector = nil })
	s.writeSlice(t, "steady", "local-1", "remote-1")
	s.settle(t)
	stop := s.traffic(t, steady)
	for round := range 4 {
		changes := make(chan error, 1)
		go func() {
			_, err := s.churn(context.WithoutCancel(t.Context()), fmt.Sprintf("killed-%d", round), 60, 0, time.Time{})
			changes <- err
		}()
		s.subject.StopProxy()
		s.startAgent(t, s.subject)
		must(t, <-changes)
	}
	s.settle(t)
	stop()
}
