// SPDX-License-Identifier: Apache-2.0

package agentlab

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// ServerPort is where the servers of [Serve] listen.
const ServerPort = 8080

// Serve adds a pod that serves on TCP (MPTCP included) and UDP port 8080, both families, under its own name.
func Serve(node *lab.Node, name string) *lab.Process {
	pod := node.Pod(lab.PodOptions{Name: name}).Process()
	Listen(pod, ServerPort)
	return pod
}

// Listen makes a process serve a port as [Serve] says.
func Listen(pod *lab.Process, port uint16) {
	for _, address := range []netip.Addr{pod.Address4, pod.Address6} {
		pod.Listen(process.MPTCP, netip.AddrPortFrom(address, port), pod.Name)
		pod.Listen(process.UDP, netip.AddrPortFrom(address, port), pod.Name)
	}
}

// At is an address and port from text.
func At(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// Reach is the server that answers at the address, or the errno.
func Reach(client *lab.Process, network string, address netip.AddrPort) string {
	socket := client.Dial(network, address)
	defer socket.Close()
	if !socket.OK() {
		return socket.Errno
	}
	answered := socket.Exchange("who")
	if !answered.OK() {
		return answered.Errno
	}
	return answered.Server
}

// AwaitReached waits until a connection from the client ends at one of the servers, or with that errno.
func (w *World) AwaitReached(client *lab.Process, network string, address netip.AddrPort, servers ...string) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("%s %s from %s reaches %v", network, address, client.Name, servers), func() (bool, string) {
		seen := Reach(client, network, address)
		return slices.Contains(servers, seen), seen
	})
}
