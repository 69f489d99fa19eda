// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"testing"

	"github.com/shunt-lb/shunt/test/lab"
)

// forEach runs a test for each variant of the node; the test goes through protocols and families itself, for a lab costs
// time.
func forEach(t *testing.T, test func(t *testing.T, w *world, each func(func(network string, family int)))) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			w := newWorld(t, v)
			test(t, w, func(run func(network string, family int)) {
				for _, network := range []string{tcp, udp} {
					for _, family := range []int{4, 6} {
						t.Logf("%s, IPv%d", network, family)
						run(network, family)
					}
				}
			})
		})
	}
}

func TestOutsideClientReachesPods(t *testing.T) {
	forEach(t, func(_ *testing.T, w *world, each func(func(string, int))) {
		near := w.node.Pod(lab.PodOptions{Name: "near"}).Process()
		far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
		host := w.node.Process()
		w.attach()
		each(func(network string, family int) {
			client := w.client.Address(family)
			w.expect(w.client, network, w.nodePort(network, family, 30081, near), "near", client)
			w.expect(w.client, network, w.nodePort(network, family, 30082, far), "far", host.Address(family))
			w.expect(w.client, network, w.nodePort(network, family, 30083, host), w.node.Name, client)
		})
	})
}

func TestPodReachesClusterIPs(t *testing.T) {
	forEach(t, func(_ *testing.T, w *world, each func(func(string, int))) {
		pod := w.node.Pod(lab.PodOptions{Name: "client"}).Process()
		near := w.node.Pod(lab.PodOptions{Name: "near"}).Process()
		far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
		host := w.node.Process()
		w.attach()
		each(func(network string, family int) {
			self := pod.Address(family)
			w.expect(pod, network, w.clusterIP(network, family, 81, near), "near", self)
			w.expect(pod, network, w.clusterIP(network, family, 82, far), "far", self)
			w.expect(pod, network, w.clusterIP(network, family, 83, host), w.node.Name, self)
			w.expect(pod, network, w.nodePort(network, family, 30084, far), "far", self)
		})
	})
}

func TestPodReachesItself(t *testing.T) {
	forEach(t, func(_ *testing.T, w *world, each func(func(string, int))) {
		pod := w.node.Pod(lab.PodOptions{Name: "self"}).Process()
		w.attach()
		each(func(network string, family int) {
			dialled := w.clusterIP(network, family, 81, pod)
			socket := pod.Dial(network, dialled)
			defer socket.Close()
			answer := socket.Exchange("me?")
			if !socket.OK() || !answer.OK() || answer.Server != "self" || answer.Peer.Addr().Unmap() == pod.Address(family) {
				w.t.Fatalf("%s %v: %s, %s, %+v\n%s", network, dialled, socket.Errno, answer.Errno, answer.Reply, w.state())
			}
		})
	})
}

func TestServiceWithoutEndpointsRefuses(t *testing.T) {
	forEach(t, func(_ *testing.T, w *world, each func(func(string, int))) {
		pod := w.node.Pod(lab.PodOptions{Name: "client"}).Process()
		w.attach()
		each(func(network string, family int) {
			inside, outside := w.clusterIP(network, family, 81), w.nodePort(network, family, 30081)
			for _, socket := range []*lab.Socket{pod.Dial(network, inside), w.client.Dial(network, outside)} {
				got := socket.Errno
				if network == udp {
					got = socket.Exchange("anybody?").Errno
				}
				if got != "ECONNREFUSED" {
					w.t.Errorf("%s, IPv%d: %q\n%s", network, family, got, w.state())
				}
				socket.Close()
			}
		})
	})
}

func TestLargeDatagramsArriveWhole(t *testing.T) {
	forEach(t, func(_ *testing.T, w *world, _ func(func(string, int))) {
		pod := w.node.Pod(lab.PodOptions{Name: "client"}).Process()
		near := w.node.Pod(lab.PodOptions{Name: "near"}).Process()
		far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
		w.attach()
		for _, family := range []int{4, 6} {
			for i, size := range []int{1472, 1473, 1480, 2000, 4000} {
				text := fmt.Sprintf("%0*d", size, i)
				for _, c := range []struct {
					client  *lab.Process
					socket  *lab.Socket
					command string
				}{
					{pod, pod.Dial(udp, w.clusterIP(udp, family, uint16(100+i), near)), "pod to ClusterIP, here"},
					{pod, pod.Dial(udp, w.clusterIP(udp, family, uint16(200+i), far)), "pod to ClusterIP, elsewhere"},
					{w.client, w.client.Dial(udp, w.nodePort(udp, family, uint16(30100+i), near)), "client to node port, here"},
					{w.client, w.client.Dial(udp, w.nodePort(udp, family, uint16(30200+i), far)), "client to node port, elsewhere"},
				} {
					if answer := c.socket.Exchange(text); !answer.OK() || answer.Text != text {
						w.t.Errorf("IPv%d, %s, %d bytes: %s and %d bytes back\n%s", family, c.command, size, answer.Errno,
							len(answer.Text), w.state())
					}
					c.socket.Close()
				}
			}
		}
	})
}

func TestNodesOwnProcessReachesServicesWithoutTheSocketPath(t *testing.T) {
	forEach(t, func(_ *testing.T, w *world, each func(func(string, int))) {
		near := w.node.Pod(lab.PodOptions{Name: "near"}).Process()
		far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
		w.defaultRoutes()
		w.attach()
		w.nodeClients()
		host := w.node.Process()
		each(func(network string, family int) {
			for i, server := range []*lab.Process{near, far} {
				dialled := w.clusterIP(network, family, uint16(81+i), server)
				socket := host.Dial(network, dialled)
				answer := socket.Exchange("hello")
				if !socket.OK() || !answer.OK() || answer.Server != server.Name {
					w.t.Errorf("%s %v: %s, %s, %+v\n%s", network, dialled, socket.Errno, answer.Errno, answer.Reply, w.state())
				}
				socket.Close()
			}
			socket := host.Dial(network, w.clusterIP(network, family, 90))
			got := socket.Errno
			if network == udp {
				got = socket.Exchange("anybody?").Errno
			}
			if got != "ECONNREFUSED" {
				w.t.Errorf("%s, IPv%d: %q without endpoints\n%s", network, family, got, w.state())
			}
			socket.Close()
		})
	})
}
