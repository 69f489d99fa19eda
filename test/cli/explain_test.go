// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// What explain says and what the kernel does, for the same dial from the same process.
func TestExplainSaysWhatASocketMeets(t *testing.T) {
	w := newWorld(t)
	clients := programmed(w)
	targets := []string{
		"10.96.0.1:80", "10.96.0.1:81", "[fd00:96::1]:80", "[fd00:96::1]:81", // translated, undefined port
		"10.96.0.2:80", "10.96.0.3:80", // nothing usable, excluded by policy
		"10.96.0.4:80", "10.96.0.4:81", // on the node's own device
		"192.0.2.1:80", "192.0.2.2:80", // source ranges for the pod, for the node
		"NODE4:30080", "NODE4:30081", "[NODE6]:30080",
		"127.0.0.1:30080", "127.0.0.2:30080", "[::1]:30080", "0.0.0.0:30080", "127.0.0.1:30081",
		"10.96.0.5:80", // a run whose backends are gone
	}
	for _, client := range clients {
		for _, target := range targets {
			target := w.resolve(target)
			t.Run(client.Name+" "+target, func(t *testing.T) { w.compare(t, client, target) })
		}
	}
	// The node has no route there, and fails at once; a pod's packet would be waited for.
	for _, target := range []string{"192.0.2.1:81", "203.0.113.1:80"} {
		t.Run("node "+target, func(t *testing.T) { w.compare(t, clients[0], target) })
	}
}

func TestExplainKnowsHowTheProgramsWereLoaded(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*loader.Options)
		target string
	}{
		{"host only", func(o *loader.Options) { o.HostOnly = true }, "10.96.0.1:80"},
		{"no node ports on loopback", func(o *loader.Options) { o.LoopbackNodePorts = false }, "127.0.0.1:30080"},
		{"kernel memory is not read", func(o *loader.Options) { o.Without.ReadKernel = true }, "192.0.2.1:80"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.change)
			for _, client := range programmed(w) {
				w.compare(t, client, tc.target)
			}
		})
	}
}

// programmed fills the maps and returns the clients: a process of the node and one of a pod.
func programmed(w *world) []*lab.Process {
	w.t.Helper()
	host, pod := w.node.Process(), w.node.Pod(lab.PodOptions{Name: "client"}).Process()
	server := w.node.Pod(lab.PodOptions{Name: "server"}).Process()
	host.Name = "node"
	listen := func(a netip.Addr) netip.AddrPort {
		return server.Listen(process.TCP, netip.AddrPortFrom(a, 0), "server")
	}
	four := w.run(1, maps.BackendCluster, listen(server.Address4))
	six := w.run(2, maps.BackendCluster, listen(server.Address6))
	ip := func(s string, run maps.Run, kind maps.ServiceKind, id uint32, flags maps.ServiceFlags) {
		w.service(addrPort(s), model.TCP, maps.Service{ServiceID: id, Kind: kind, Internal: run, External: run, Flags: flags})
	}
	ip("10.96.0.1:80", four, maps.KindClusterIP, 1, 0)
	ip("[fd00:96::1]:80", six, maps.KindClusterIP, 2, 0)
	ip("0.0.0.0:30080", four, maps.KindNodePort, 1, 0)
	ip("[::]:30080", six, maps.KindNodePort, 2, 0)
	ip("10.96.0.2:80", maps.Run{}, maps.KindClusterIP, 3, 0)
	ip("10.96.0.3:80", maps.Run{}, maps.KindClusterIP, 3, maps.ServiceInternalLocal|maps.ServiceInternalDrop)
	ip("192.0.2.1:80", four, maps.KindLoadBalancer, 1, maps.ServiceSourceRanges)
	ip("192.0.2.2:80", w.run(4, maps.BackendCluster, listen(server.Address4)), maps.KindLoadBalancer, 4,
		maps.ServiceSourceRanges)
	ip("10.96.0.5:80", maps.Run{Base: 200, Count: 2}, maps.KindClusterIP, 3, 0)
	w.must(w.PutSlots(200, []uint32{60, 61}))
	for id, client := range map[uint32]netip.Addr{1: pod.Address4, 4: w.node.Address4} {
		w.wrote(w.PutSourceRanges([]maps.SourceRange{
			{PrefixBits: 32 + 128, ServiceID: id, Address: maps.AddressOf(client)},
		}))
	}
	for _, a := range []string{"10.96.0.1", "fd00:96::1", "10.96.0.2", "10.96.0.3", "10.96.0.5"} {
		w.address(a, maps.AddressClusterIP)
	}
	w.address("10.96.0.4", maps.AddressClusterIP|maps.AddressOnNode)
	w.address("192.0.2.1", maps.AddressService)
	w.address("192.0.2.2", maps.AddressService)
	w.address(w.node.Address4.String(), maps.AddressOnNode|maps.AddressNodePorts)
	w.address(w.node.Address6.String(), maps.AddressOnNode|maps.AddressNodePorts)
	return []*lab.Process{host, pod}
}

// resolve puts the node's addresses in a target.
func (w *world) resolve(target string) string {
	for name, a := range map[string]netip.Addr{"NODE4": w.node.Address4, "[NODE6]": w.node.Address6} {
		if len(target) > len(name) && target[:len(name)] == name {
			port := addrPort("0.0.0.0" + target[len(name):]).Port()
			return netip.AddrPortFrom(a, port).String()
		}
	}
	return target
}

// compare asks explain, dials, and compares: the errno, where the kernel went, and whether a refusal was counted.
func (w *world) compare(t *testing.T, client *lab.Process, target string) {
	t.Helper()
	answer := w.explain(t, target, fmt.Sprintf("pid:%d", client.PID()))
	refusedBefore := w.refusals(t)
	socket := client.Dial(process.TCP, addrPort(target))
	defer socket.Close()
	counted := w.refusals(t) - refusedBefore
	switch answer.Verdict {
	case explain.Translated:
		if !socket.OK() {
			t.Fatalf("connect: %s; explained: %+v", socket.Errno, answer.Steps)
		}
		if !isOneOf(answer, socket.Inspect().KernelRemote) {
			t.Errorf("the kernel dialled %s, explained: %+v", socket.Inspect().KernelRemote, answer.Backends)
		}
	case explain.Refused:
		if socket.Errno != "ECONNREFUSED" || counted != 1 {
			t.Errorf("errno %q, %d refusals counted; explained: %+v", socket.Errno, counted, answer.Steps)
		}
	case explain.Dropped:
		if socket.Errno != "ETIMEDOUT" || counted != 1 {
			t.Errorf("errno %q, %d refusals counted; explained: %+v", socket.Errno, counted, answer.Steps)
		}
	case explain.Untouched:
		if socket.OK() || counted != 0 {
			t.Errorf("connect: %q, %d refusals counted; explained: %+v", socket.Errno, counted, answer.Steps)
		}
	default:
		t.Errorf("verdict %q", answer.Verdict)
	}
}

func isOneOf(answer explain.Answer, remote netip.AddrPort) bool {
	for _, b := range answer.Backends {
		if b.Address == remote.Addr().Unmap() && b.Port == remote.Port() {
			return true
		}
	}
	return false
}

// refusals counts what the programs refused: the reasons of bpf/reason.h up to REASON_UNSETTLED.
func (w *world) refusals(t *testing.T) uint64 {
	t.Helper()
	drops, err := w.Drops()
	if err != nil {
		t.Fatal(err)
	}
	const unsettled = 4
	var n uint64
	for _, count := range drops[:unsettled+1] {
		n += count
	}
	return n
}

func (w *world) explain(t *testing.T, target, from string) explain.Answer {
	t.Helper()
	stdout, stderr, status := w.shunt("explain", target, "--from", from, "-o", "json")
	var answers []explain.Answer
	if err := json.Unmarshal([]byte(stdout), &answers); err != nil || status != 0 || len(answers) != 1 {
		t.Fatalf("status %d, %v, %s", status, err, stderr)
	}
	return answers[0]
}

func TestExplainTellsWhichBackendAffinityHolds(t *testing.T) {
	w := newWorld(t)
	host, pod := w.node.Process(), w.node.Pod(lab.PodOptions{Name: "client"}).Process()
	server := w.node.Pod(lab.PodOptions{Name: "server"}).Process()
	var backends []netip.AddrPort
	for range 8 {
		backends = append(backends, server.Listen(process.TCP, netip.AddrPortFrom(server.Address4, 0), "server"))
	}
	w.service(addrPort("10.96.0.1:80"), model.TCP, maps.Service{
		ServiceID: 1, Kind: maps.KindClusterIP, AffinityTimeout: 600, Internal: w.run(1, maps.BackendCluster, backends...),
	})
	for _, client := range []*lab.Process{host, pod} {
		from := fmt.Sprintf("pid:%d", client.PID())
		if a := w.explain(t, "10.96.0.1:80", from).Affinity; a == nil || a.State != explain.AffinityNone {
			t.Errorf("before the first connection: %+v", a)
		}
		socket := client.Dial(process.TCP, addrPort("10.96.0.1:80"))
		if !socket.OK() {
			t.Fatal(socket.Errno)
		}
		defer socket.Close()
		a := w.explain(t, "10.96.0.1:80", from).Affinity
		if a == nil || a.State != explain.AffinityInForce || *a.Backend != socket.Inspect().KernelRemote {
			t.Errorf("connected to %s, explained: %+v", socket.Inspect().KernelRemote, a)
		}
	}
	stdout, _, status := w.shunt("affinity", "-o", "json")
	var rows []struct {
		Node          bool
		ClientAddress netip.Addr
		State         explain.AffinityState
	}
	if err := json.Unmarshal([]byte(stdout), &rows); err != nil || status != 0 || len(rows) != 2 {
		t.Fatalf("status %d, %v:\n%s", status, err, stdout)
	}
	if !rows[0].Node || rows[1].ClientAddress != pod.Address4 {
		t.Errorf("clients: %+v", rows)
	}
}
