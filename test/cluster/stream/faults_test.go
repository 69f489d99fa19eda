// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shunt-lb/shunt/test/cluster/programmed"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// fault is something that goes wrong with the API server, and the end of it. Changes are made whenever they can be.
type fault struct {
	name   string
	happen func(t *testing.T, s *suite)
}

var faults = []fault{
	{"stopped for a minute", stopped},
	{"restarted, its watch cache cold", restarted},
	{"cut off for a minute", cutOff},
	{"cut off until the resource version has expired", expired},
	{"slow to answer", slow},
	{"the agent starts while it is stopped", agentStartsAlone},
}

// TestServicesOutliveTheAPIServer proves that no connection fails while the API server is gone, stuck or lying, open
// ones go on, and that afterwards the kernel is as if nothing had been.
func TestServicesOutliveTheAPIServer(t *testing.T) {
	s := newSuite(t)
	must(t, s.MakeNamespace(t.Context(), namespace))
	steady := s.makeService(t, "steady", func(service *corev1.Service) { service.Spec.Selector = nil })
	s.writeSlice(t, "steady", "local-1", "remote-1")
	s.settle(t)
	open := []*lab.Socket{s.hold(t, s.subject.Client, steady), s.hold(t, s.subject.Host, steady)}
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			stop := s.traffic(t, steady)
			fault.happen(t, s)
			s.compare(t)
			stop()
			for _, socket := range open {
				if answer := socket.Exchange("still there?"); !answer.OK() {
					t.Errorf("a connection that was open before the fault: %s", answer.Errno)
				}
			}
		})
	}
}

// hold opens a connection to a Service.
func (s *suite) hold(t *testing.T, client *lab.Process, service *corev1.Service) *lab.Socket {
	t.Helper()
	socket := client.Dial(process.TCP, netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIP), 80))
	if !socket.OK() {
		t.Fatalf("connect from %s: %s", client.Name, socket.Errno)
	}
	return socket
}

// outage is how long a fault lasts.
func outage() time.Duration {
	if testing.Short() {
		return 4 * time.Second
	}
	return time.Minute
}

// last lets the fault last, and proves that the agent lives and leaves the kernel alone.
func (s *suite) last(t *testing.T) {
	t.Helper()
	before, err := programmed.Read(s.subject.Maps())
	must(t, err)
	select {
	case <-s.subject.Proxy().Done():
		t.Fatalf("the agent has ended: %v", s.subject.Proxy().Wait())
	case <-time.After(outage()):
	}
	after, err := programmed.Read(s.subject.Maps())
	must(t, err)
	if difference := before.InForce().Difference(after.InForce()); difference != "" {
		t.Errorf("the agent has changed the kernel without the API server:\n%s", difference)
	}
}

func (s *suite) churnNow(t *testing.T, count int) {
	t.Helper()
	_, err := s.churn(t.Context(), fmt.Sprintf("churn-%d", time.Now().UnixNano()), count, 0, time.Time{})
	must(t, err)
}

func (s *suite) startAPIServer(t *testing.T) {
	t.Helper()
	must(t, s.Control.StartAPIServer())
	must(t, s.Control.AwaitReady())
}

func stopped(t *testing.T, s *suite) {
	s.churnNow(t, 40)
	s.settle(t)
	s.Control.StopAPIServer()
	s.last(t)
	s.startAPIServer(t)
	s.churnNow(t, 40)
}

func restarted(t *testing.T, s *suite) {
	s.churnNow(t, 40)
	s.Control.StopAPIServer()
	s.startAPIServer(t)
	s.churnNow(t, 40)
}

// cut takes the API server's host off the network, and brings it back.
func (s *suite) cut(t *testing.T) (heal func()) {
	t.Helper()
	host := s.subject.API
	device, err := host.Netlink().LinkByName(host.Device)
	must(t, err)
	must(t, host.Netlink().LinkSetDown(device))
	return func() {
		t.Helper()
		must(t, host.Netlink().LinkSetUp(device))
	}
}

func cutOff(t *testing.T, s *suite) {
	s.settle(t)
	heal := s.cut(t)
	s.churnNow(t, 60)
	s.last(t)
	s.churnNow(t, 60)
	heal()
}

func expired(t *testing.T, s *suite) {
	s.settle(t)
	heal := s.cut(t)
	s.churnNow(t, 120)
	must(t, s.Control.Compact(t.Context()))
	s.Control.StopAPIServer()
	s.startAPIServer(t)
	s.churnNow(t, 20)
	heal()
}

func slow(t *testing.T, s *suite) {
	const delay = 300 * time.Millisecond // for each piece of an answer
	s.subject.Relay.SetDelay(delay)
	defer s.subject.Relay.SetDelay(0)
	s.churnNow(t, 60)
	s.subject.StopProxy()
	s.startAgent(t, s.subject)
	s.churnNow(t, 60)
	s.settle(t)
}

// agentStartsAlone starts an agent that finds its own kernel, older than the objects, and nobody to ask.
func agentStartsAlone(t *testing.T, s *suite) {
	s.settle(t)
	s.subject.StopProxy()
	s.churnNow(t, 60)
	s.Control.StopAPIServer()
	s.startAgent(t, s.subject)
	s.last(t)
	s.startAPIServer(t)
}
