// SPDX-License-Identifier: Apache-2.0

package packetpath

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

func TestFlowsOutliveTheAgent(t *testing.T) {
	for _, l := range layouts {
		if l.layout == lab.Bridged {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, l.layout)
			pod := w.Node.Pod(lab.PodOptions{Name: "pod"}).Process()
			w.service("near", 1, "", w.near)
			w.service("far", 2, "", w.far)
			w.start(l.flags...)
			leaver := w.Node.Pod(lab.PodOptions{Name: "leaver"})
			w.awaitAttached()
			flows := w.openFlows(pod)
			programs := w.programIDs()

			w.Agent.Signal(syscall.SIGKILL)
			w.Agent.Wait()
			w.goOn(t, flows, "without the agent")
			closeAll(w.openFlows(pod)) // new ones work as well
			w.removeDevice(leaver.Device)

			w.start(l.flags...)
			w.Eventually("the new agent's programs have replaced the old one's", func() (bool, string) {
				for id := range w.programIDs() {
					if programs[id] {
						return false, "an old program is attached"
					}
				}
				return true, ""
			})
			w.goOn(t, flows, "with another agent")
			w.Eventually("nothing is left of the pod that went meanwhile", func() (bool, string) {
				have, want := w.devicesInMap(), len(w.attached())
				return have == want, fmt.Sprintf("%d elements for %d devices", have, want)
			})

			w.Agent.Signal(syscall.SIGTERM)
			w.Must(w.Agent.Wait())
			w.goOn(t, flows, "after the agent has ended")
			if output := w.Shunt("cleanup"); output == "" {
				t.Error("cleanup says nothing")
			}
			if left := w.attached(); len(left) > 0 {
				t.Errorf("cleanup has left programs on %v", left)
			}
		})
	}
}

// openFlows opens connections of all kinds from outside and from a pod.
func (w *world) openFlows(pod *lab.Process) []*lab.Socket {
	w.T.Helper()
	var flows []*lab.Socket
	for _, s := range w.sides() {
		for _, network := range networks {
			for _, way := range []struct {
				client *lab.Process
				to     netip.AddrPort
			}{
				{w.client, s.frontends(1)["node port"]}, {w.client, s.frontends(2)["external address"]},
				{pod, s.clusterIP(1)}, {pod, s.clusterIP(2)},
			} {
				flow := way.client.Dial(network, way.to)
				if answer := flow.Exchange("first"); !flow.OK() || !answer.OK() {
					w.T.Fatalf("open %s to %s: %s %s", network, way.to, flow.Errno, answer.Errno)
				}
				flows = append(flows, flow)
			}
		}
	}
	return flows
}

func (w *world) goOn(t *testing.T, flows []*lab.Socket, when string) {
	t.Helper()
	for i, flow := range flows {
		if answer := flow.Exchange("again"); !answer.OK() {
			t.Errorf("flow %d %s: %s", i, when, answer.Errno)
		}
	}
}

func closeAll(flows []*lab.Socket) {
	for _, flow := range flows {
		flow.Close()
	}
}

func TestPacketPathIsTakenOffWhenItIsOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.Routed)
	w.service("near", 1, "", w.near)
	w.start("--tc-attach=clsact")
	w.stop()
	w.start("--tc-attach=tcx")
	w.awaitModes(attach.TCX)
	w.expect(t, w.client, process.TCP, w.sides()[0].frontends(1)["node port"], "near", w.client.Address4)
	w.stop()
	w.start("--tc-attach=clsact")
	w.awaitModes(attach.TCClsact)
	w.stop()
	w.StartAgent("--packet-path=false")
	if left := w.attached(); len(left) > 0 {
		t.Errorf("programs are left on %v", left)
	}
	if got := agentlab.Reach(w.client, process.TCP, w.sides()[0].frontends(1)["node port"]); got != "ECONNREFUSED" {
		t.Errorf("with the packet path off: %s, want ECONNREFUSED", got)
	}
}

// awaitModes waits until programs are attached in one way and not in the other.
func (w *world) awaitModes(want attach.TCMode) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("programs are attached by %s alone", want), func() (bool, string) {
		modes := map[attach.TCMode]int{}
		for _, a := range w.attachments() {
			modes[a.Mode]++
		}
		return len(modes) == 1 && modes[want] > 0, fmt.Sprint(modes)
	})
}

func (w *world) stop() {
	w.T.Helper()
	w.Agent.Signal(syscall.SIGTERM)
	w.Must(w.Agent.Wait())
}
