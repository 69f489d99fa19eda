// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

const (
	namespace    = "bench"
	endpoints    = 5 // of each Service
	mostServices = 12000
	loaders      = 16

	// Of the server that stands for all endpoints, and of its double.
	serverPort = 9080
	doublePort = 9081
	serverName = "server"
	doubleName = "double"

	probed = "probed" // the Service that is changed and dialled
)

// endpointRange has an address of its own for each endpoint; one process of the far node answers for all of them.
var endpointRange = netip.MustParsePrefix("10.128.0.0/15")

func endpointAddress(service, endpoint int) string {
	number := service*endpoints + endpoint + 256
	return netip.AddrFrom4([4]byte{10, byte(128 + number>>16), byte(number >> 8), byte(number)}).String()
}

// serviceAddress is chosen, so that any one can be dialled without a look at the API server.
func serviceAddress(service int) netip.Addr {
	number := service + 1024
	return netip.AddrFrom4([4]byte{10, 96, byte(number >> 8), byte(number)})
}

func name(service int) string { return fmt.Sprintf("service-%05d", service) }

// load brings the API server to a number of Services.
func (b *bench) load(ctx context.Context, size int) error {
	err := each(b.loaded, size, func(i int) error { return b.makeService(ctx, name(i), serviceAddress(i), i) })
	b.loaded = max(size, b.loaded)
	return err
}

// restore leads the first Services back to the server that all have at the start.
func (b *bench) restore(ctx context.Context, count int) error {
	return each(0, count, func(i int) error { return b.change(ctx, name(i), i, serverPort) })
}

// each does something for all numbers of a range, several at once.
func each(from, to int, do func(int) error) error {
	work := make(chan int)
	failed := make(chan error, loaders)
	var workers sync.WaitGroup
	for range loaders {
		workers.Go(func() {
			for i := range work {
				if err := do(i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	err := feed(work, failed, from, to)
	workers.Wait()
	select {
	case late := <-failed:
		return errors.Join(err, late)
	default:
		return err
	}
}

// feed hands out numbers until the first failure.
func feed(work chan<- int, failed <-chan error, from, to int) error {
	defer close(work)
	for i := from; i < to; i++ {
		select {
		case work <- i:
		case err := <-failed:
			return err
		}
	}
	return nil
}

func (b *bench) makeProbed(ctx context.Context) error {
	if err := b.cluster.MakeNamespace(ctx, namespace); err != nil {
		return err
	}
	return b.makeService(ctx, probed, serviceAddress(mostServices), mostServices)
}

func (b *bench) makeService(ctx context.Context, name string, address netip.Addr, number int) error {
	single := corev1.IPFamilyPolicySingleStack
	_, err := b.cluster.API.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: address.String(), IPFamilyPolicy: &single, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make Service: %w", err)
	}
	_, err = b.cluster.API.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice(name, number, serverPort), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make slice: %w", err)
	}
	return nil
}

func slice(name string, number int, port int32) *discoveryv1.EndpointSlice {
	var addresses []string
	for i := range endpoints {
		addresses = append(addresses, endpointAddress(number, i))
	}
	made := world.Slice(name, addresses, port)
	made.GenerateName, made.Name = "", name
	far := world.Remote
	for i := range made.Endpoints {
		made.Endpoints[i].NodeName = &far
	}
	return made
}

// change moves all endpoints of a Service to another port.
func (b *bench) change(ctx context.Context, name string, number int, port int32) error {
	_, err := b.cluster.API.DiscoveryV1().EndpointSlices(namespace).Update(ctx, slice(name, number, port), metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("change slice: %w", err)
	}
	return nil
}
