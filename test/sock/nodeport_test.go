// SPDX-License-Identifier: Apache-2.0

package sock

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const nodePort = 30080

// nodePorts programs one Service with a node port in both families, and TCP and UDP.
func nodePorts(w *world, server *lab.Process) {
	w.t.Helper()
	for _, network := range []string{tcp, udp} {
		for _, unspecified := range []string{"0.0.0.0:30080", "[::]:30080"} {
			s := w.serve(network, unspecified, server)
			s.kind = maps.KindNodePort
			w.program(s)
		}
	}
	w.address(w.node.Address4.String(), maps.AddressNodePorts|maps.AddressOnNode)
	w.address(w.node.Address6.String(), maps.AddressNodePorts|maps.AddressOnNode)
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func TestNodePortsServeTheNodesAddressesToNodeAndPods(t *testing.T) {
	w := newWorld(t)
	nodePorts(w, w.pod("server"))
	for _, client := range []*lab.Process{w.node.Process(), w.pod("client")} {
		for _, network := range []string{tcp, udp} {
			for _, to := range []netip.AddrPort{at(w.node.Address4, nodePort), at(w.node.Address6, nodePort),
				mapped(at(w.node.Address4, nodePort))} {
				socket := client.Dial(network, to)
				if reply := socket.Exchange("x"); reply.Server != "server" {
					t.Errorf("%s %s from %s: %+v", network, to, client.Name, reply)
				}
				if peer := socket.Inspect().Peer; peer != to {
					t.Errorf("%s %s from %s: getpeername says %s", network, to, client.Name, peer)
				}
			}
		}
		// Another port of the node, and a node port of another protocol number, belong to the node.
		expectErrno(t, "a port of no service", client.Dial(tcp, at(w.node.Address4, nodePort+1)).Outcome, "ECONNREFUSED")
		if n := w.drops(reasonUndefinedPort); n != 0 {
			t.Errorf("a port of the node was refused by shunt")
		}
	}
}

func TestLoopbackServesNodePortsToTheNodeAlone(t *testing.T) {
	loopbacks := []string{"127.0.0.1:30080", "127.1.2.3:30080", "0.0.0.0:30080", "[::1]:30080", "[::]:30080",
		"[::ffff:127.0.0.1]:30080"}
	// As the kernel does, getpeername says loopback for the unspecified address.
	shown := map[string]string{"0.0.0.0:30080": "127.0.0.1:30080", "[::]:30080": "[::1]:30080"}
	w := newWorld(t)
	nodePorts(w, w.pod("server"))
	node, pod := w.node.Process(), w.pod("client")
	for _, to := range loopbacks {
		for _, network := range []string{tcp, udp} {
			socket := node.Dial(network, addrPort(to))
			if reply := socket.Exchange("x"); reply.Server != "server" {
				t.Errorf("%s %s from the node: %+v", network, to, reply)
			}
			if peer := socket.Inspect().Peer; peer != addrPort(cmp.Or(shown[to], to)) {
				t.Errorf("%s %s from the node: getpeername says %s", network, to, peer)
			}
		}
		expectErrno(t, to+" in a pod without listener", pod.Dial(tcp, addrPort(to)).Outcome, "ECONNREFUSED")
	}
	pod.Listen(tcp, addrPort("127.0.0.1:30080"), "own")
	if reply := pod.Dial(tcp, addrPort("127.0.0.1:30080")).Exchange("x"); reply.Server != "own" {
		t.Errorf("loopback in a pod: %+v", reply)
	}

	w.load(func(o *loader.Options) { o.LoopbackNodePorts = false })
	for _, to := range loopbacks {
		expectErrno(t, to+" with the switch off", node.Dial(tcp, addrPort(to)).Outcome, "ECONNREFUSED")
	}
}

func TestABindToANodePortIsReportedAndByChoiceRefused(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		w := newWorld(t, func(o *loader.Options) { o.RefuseBind = refuse })
		nodePorts(w, w.pod("server"))
		node, pod := w.node.Process(), w.pod("client")
		events, err := ringbuf.NewReader(w.datapath.Maps["trace"])
		w.must(err)
		t.Cleanup(func() { events.Close() })
		want, reason := "", reasonBindConflict
		if refuse {
			want, reason = "EADDRINUSE", reasonBindRefused
		}
		conflicts := []string{"0.0.0.0:30080", "[::]:30080", "127.0.0.1:30080", "[::1]:30080",
			at(w.node.Address4, nodePort).String(), at(w.node.Address6, nodePort).String()}
		for i, address := range conflicts {
			for j, network := range []string{tcp, udp} {
				socket := bind(node, network, address)
				expectErrno(t, network+" bind to "+address, socket.Outcome, want)
				if socket.OK() {
					socket.Close()
				}
				if n := w.drops(reason); n != uint64(2*i+j+1) {
					t.Errorf("%s bind to %s: counted %d", network, address, n)
				}
				expectBindEvent(t, events, network, addrPort(address), node.PID(), refuse)
			}
		}
		for _, p := range []*lab.Process{node, pod} {
			for _, address := range []string{"0.0.0.0:30081", "0.0.0.0:0"} {
				expectErrno(t, "bind to "+address, bind(p, tcp, address).Outcome, "")
			}
		}
		expectErrno(t, "bind in a pod", bind(pod, tcp, "0.0.0.0:30080").Outcome, "")
		events.SetDeadline(time.Unix(1, 0))
		if record, err := events.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one event more: %v %v", record, err)
		}
	}
}

func bind(p *lab.Process, network, address string) *lab.Socket {
	to := addrPort(address)
	return p.Open(process.SocketRequest{Network: network, Family: family(to.Addr()), Bind: to})
}

func expectBindEvent(t *testing.T, events *ringbuf.Reader, network string, address netip.AddrPort, pid int, refused bool) {
	t.Helper()
	events.SetDeadline(time.Now().Add(5 * time.Second))
	record, err := events.Read()
	if err != nil {
		t.Fatalf("bind to %s: no event: %v", address, err)
	}
	var event maps.TraceEvent
	if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &event); err != nil {
		t.Fatalf("decode event: %v", err)
	}
	want := maps.Frontend{Address: maps.AddressOf(address.Addr()), Port: address.Port(), Protocol: protocolOf(network)}
	if event.Frontend != want || int(event.PID) != pid || event.Kind != maps.EventBindConflict ||
		(event.Refused == 1) != refused || event.ServiceID == 0 || event.Command[0] == 0 {
		t.Errorf("bind to %s by %d: event %+v", address, pid, event)
	}
}
