// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

const (
	stormRate    = 500 // changes a second
	stormWorkers = 8
)

// storm changes objects 500 times a second for a minute.
func storm(t *testing.T, s *suite) {
	duration := time.Minute
	if testing.Short() {
		duration = 4 * time.Second
	}
	steady := s.makeService(t, "calm", func(service *corev1.Service) { service.Spec.Selector = nil })
	s.writeSlice(t, "calm", "local-2", "remote-2")
	s.settle(t)
	stop := s.traffic(t, steady)
	var workers sync.WaitGroup
	var made atomic.Int64
	each := int(duration.Seconds()) * stormRate / stormWorkers
	begin := time.Now()
	for worker := range stormWorkers {
		workers.Go(func() {
			count, err := s.churn(t.Context(), fmt.Sprintf("storm-%d", worker), each, stormRate/stormWorkers, begin.Add(duration))
			if err != nil {
				t.Error(err)
			}
			made.Add(int64(count))
		})
	}
	workers.Wait()
	// An API server on a machine that has other work may take fewer.
	t.Logf("%d changes, %.0f a second", made.Load(), float64(made.Load())/time.Since(begin).Seconds())
	late, err := s.Settle(t.Context(), s.subject)
	must(t, err)
	t.Logf("in force %s after the last", late.Round(time.Millisecond))
	stop()
}

// churn makes changes to a few Services and slices of its own, at most rate a second (0: as fast as it can), always the
// same for the same name, until it has made count or, where one is given, the deadline has come.
func (s *suite) churn(ctx context.Context, name string, count, rate int, deadline time.Time) (made int, err error) {
	c := &churner{suite: s, name: name, services: map[int]*corev1.Service{}}
	for _, letter := range name {
		c.seed = c.seed*31 + uint64(letter)
	}
	c.random = rand.New(rand.NewPCG(c.seed, 1))
	begin := time.Now()
	for i := range count {
		if !deadline.IsZero() && time.Now().After(deadline) {
			return i, nil
		}
		if err := c.change(ctx); err != nil {
			return i, fmt.Errorf("change %d of %s: %w", i, name, err)
		}
		if rate > 0 {
			time.Sleep(time.Until(begin.Add(time.Duration(i+1) * time.Second / time.Duration(rate))))
		}
	}
	return count, nil
}

type churner struct {
	*suite
	name     string
	seed     uint64
	random   *rand.Rand
	services map[int]*corev1.Service
}

const churned = 6 // Services of one churner

// change makes one random change: mostly of endpoints, as in a cluster.
func (c *churner) change(ctx context.Context) error {
	number := c.random.IntN(churned)
	name := fmt.Sprintf("%s-%d", c.name, number)
	service := c.services[number]
	switch {
	case service == nil:
		return c.make(ctx, number, name)
	case c.random.IntN(20) == 0:
		delete(c.services, number)
		err := c.API.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return c.API.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	case c.random.IntN(6) == 0:
		return c.alter(ctx, number, service)
	}
	return c.scale(ctx, name)
}

func (c *churner) make(ctx context.Context, number int, name string) error {
	service, err := c.API.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(world.Port)}}},
	}, metav1.CreateOptions{})
	c.services[number] = service
	return err
}

// alter changes a Service: its type, its port, a policy or its affinity.
func (c *churner) alter(ctx context.Context, number int, service *corev1.Service) error {
	service = service.DeepCopy()
	switch c.random.IntN(4) {
	case 0:
		service.Spec.Ports[0].Port = int32(80 + c.random.IntN(10))
	case 1:
		policy := corev1.ServiceInternalTrafficPolicyCluster
		if *service.Spec.InternalTrafficPolicy == policy {
			policy = corev1.ServiceInternalTrafficPolicyLocal
		}
		service.Spec.InternalTrafficPolicy = &policy
	case 2:
		service.Spec.ExternalIPs = nil
		if c.random.IntN(2) == 0 {
			service.Spec.ExternalIPs = []string{fmt.Sprintf("198.51.100.%d", (c.seed+uint64(number))%250+1)}
		}
	case 3:
		if service.Spec.SessionAffinity == corev1.ServiceAffinityNone {
			service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		} else {
			service.Spec.SessionAffinity, service.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
		}
	}
	updated, err := c.API.CoreV1().Services(namespace).Update(ctx, service, metav1.UpdateOptions{})
	if err == nil {
		c.services[number] = updated
	}
	return err
}

// scale writes the slice of a Service anew, with other endpoints.
func (c *churner) scale(ctx context.Context, name string) error {
	slice := world.Slice(name, []string{"192.0.2.1"}, world.Port)
	slice.GenerateName, slice.Name = "", name
	slice.Endpoints = endpointsOf(nil)
	for _, server := range world.ServerNames {
		if c.random.IntN(2) == 0 {
			slice.Endpoints = append(slice.Endpoints, endpointsOf([]string{server})...)
		}
	}
	api := c.API.DiscoveryV1().EndpointSlices(namespace)
	_, err := api.Update(ctx, slice, metav1.UpdateOptions{}) // without a version: whatever is there
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, slice, metav1.CreateOptions{})
	}
	return err
}
