// SPDX-License-Identifier: Apache-2.0

// Package usercases runs small inputs behind public reports about Service translators through the real agent: Services
// as manifests, real sockets in pods and on the node. Each test names the cases that it is about; docs/semantics.md has
// the list.
package usercases

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const (
	tcp = process.TCP
	udp = process.UDP

	refused = "ECONNREFUSED"
)

func TestMain(m *testing.M) {
	agentlab.Parallel(4) // the tests wait more than they work
	agentlab.Main(m, socketOperations(), apiOperations())
}

// dual is a Service of both families: ClusterIPs 10.96.0.N and fd00:10:96::N, further fields of its spec, and ports.
func dual(name string, number int, fields, ports string) string {
	if fields != "" {
		fields += ", "
	}
	return agentlab.Service(name, fmt.Sprintf("{%sclusterIP: 10.96.0.%d, clusterIPs: [10.96.0.%d, 'fd00:10:96::%x'], "+
		"ipFamilies: [IPv4, IPv6], ports: %s}", fields, number, number, number, ports))
}

// dualSlices are the slices of both families with the same pods.
func dualSlices(service, ports, conditions string, pods ...*lab.Process) []string {
	four := agentlab.Having(conditions, pods...)
	six := agentlab.Having(conditions, pods...)
	for i, pod := range pods {
		six[i].Address = pod.Address6
	}
	return []string{
		agentlab.Slice(service, service+"-4", ports, four...), agentlab.Slice(service, service+"-6", ports, six...),
	}
}

const (
	isReady     = "{ready: true}"
	isUnready   = "{ready: false, serving: false}"
	isLeaving   = "{ready: false, serving: true, terminating: true}"
	hasNoServer = "{ready: false, serving: false, terminating: true}"

	bothPorts   = "[{name: u, port: 80, protocol: UDP}, {name: t, port: 80, protocol: TCP}]"
	bothTargets = "[{name: u, port: 8080, protocol: UDP}, {name: t, port: 8080, protocol: TCP}]"
)

// both is a Service of both families and protocols on port 80, with pods in one condition.
func both(name string, number int, fields, conditions string, pods ...*lab.Process) []string {
	return append([]string{dual(name, number, fields, bothPorts)}, dualSlices(name, bothTargets, conditions, pods...)...)
}

// forms are the ways to name a ClusterIP of dual: IPv4, IPv6, and IPv4 on an IPv6 socket.
func forms(number int, port uint16) []netip.AddrPort {
	return []netip.AddrPort{
		agentlab.At(fmt.Sprintf("10.96.0.%d:%d", number, port)),
		agentlab.At(fmt.Sprintf("[fd00:10:96::%x]:%d", number, port)),
		agentlab.At(fmt.Sprintf("[::ffff:10.96.0.%d]:%d", number, port)),
	}
}

// familyOf is the family of the socket that dials an address.
func familyOf(address netip.AddrPort) int {
	if address.Addr().Is4() {
		return 4
	}
	return 6
}

// clients are who dials: a pod and a process of the node.
func clients(w *agentlab.World) []*lab.Process {
	return []*lab.Process{w.Node.Pod(lab.PodOptions{Name: "client"}).Process(), w.Node.Process()}
}

// others are the names of pods without one of them.
func others(pods []*lab.Process, name string) []*lab.Process {
	var rest []*lab.Process
	for _, pod := range pods {
		if pod.Name != name {
			rest = append(rest, pod)
		}
	}
	return rest
}

// named finds a pod.
func named(pods []*lab.Process, name string) *lab.Process {
	for _, pod := range pods {
		if pod.Name == name {
			return pod
		}
	}
	return nil
}

// onNode sets the node of endpoints.
func onNode(node *lab.Node, endpoints []agentlab.Endpoint) []agentlab.Endpoint {
	for i := range endpoints {
		endpoints[i].Node = node.Name
	}
	return endpoints
}

// expectReached dials once and wants the server, or the errno.
func expectReached(t *testing.T, client *lab.Process, network string, address netip.AddrPort, want string) {
	t.Helper()
	if got := agentlab.Reach(client, network, address); got != want {
		t.Errorf("%s %s from %s: %s, want %s", network, address, client.Name, got, want)
	}
}

// expectOnly dials many times and wants one server alone.
func expectOnly(t *testing.T, client *lab.Process, network string, address netip.AddrPort, want string) {
	t.Helper()
	const count = 20
	if result := client.Connects(network, address, count); result.Servers[want] != count {
		t.Errorf("%s %s from %s: %v %v, want %d times %s",
			network, address, client.Name, result.Servers, result.Errnos, count, want)
	}
}

// packets counts what a capture saw that satisfies a condition.
func packets(captured []process.Captured, wanted func(process.Captured) bool) int {
	total := 0
	for _, c := range captured {
		if wanted(c) {
			total += c.Packets
		}
	}
	return total
}

// toPods tells whether a packet goes to one of the pods.
func toPods(pods ...*lab.Process) func(process.Captured) bool {
	return func(c process.Captured) bool {
		for _, pod := range pods {
			if c.Destination == pod.Address4 || c.Destination == pod.Address6 {
				return true
			}
		}
		return false
	}
}

// within logs how long something took and fails when that is much more than a report allows: each thing here has a
// slower way to happen in the end, by a rescan or a retry. On a machine that has more to do than it can, it only logs.
func within(t *testing.T, what string, limit time.Duration, since time.Time) {
	t.Helper()
	const slack = 4 * time.Second
	took := time.Since(since)
	t.Logf("%s after %s", what, took.Round(time.Millisecond))
	if took > limit+slack && !busy() {
		t.Errorf("%s took %s, want %s", what, took, limit)
	}
}

// busy tells whether more than twice as many threads want to run as there are processors.
func busy() bool {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return false
	}
	var load float64
	_, err = fmt.Sscan(string(content), &load)
	return err == nil && load > 2*float64(runtime.NumCPU())
}

// list joins lines for a message.
func list(lines []string) string { return strings.Join(lines, "\n\t") }
