// SPDX-License-Identifier: Apache-2.0

package prog

import (
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// nodeFlow is a service that a process of the node dials, with no program in its sockets.
func (w *world) nodeFlow(proto uint8, f family, backend endpoint) (node, vip string) {
	w.settings.Flags |= maps.PacketNodeClients
	w.applySettings()
	w.addService(1, port(f.vip, 80), proto, nil, backend)
	w.addAddress(f.vip, maps.AddressClusterIP)
	w.addAddress(f.nodeUp, maps.AddressOnNode)
	device := maps.Device{Flags: maps.DeviceEthernet}
	copy(device.MAC[:], w.up.mac)
	w.put("devices", uint32(w.up.index), device)
	return port(f.nodeUp, 40000), port(f.vip, 80)
}

func TestNodesOwnPacketsAreTranslatedWhereTheyLeave(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		node, vip := w.nodeFlow(proto, f, endpoint{address: port(f.far, 8080)})
		backend := port(f.far, 8080)
		w.expect(w.up, w.egress(w.up, opening(proto, node, vip)), redirect, opening(proto, node, backend))
		w.expectPairs(1)
		// Redirected, it leaves through the same hook and is left alone; so is another's packet to the same address.
		w.expect(w.up, w.egress(w.up, opening(proto, node, backend)), next, opening(proto, node, backend))
		foreign := opening(proto, port(f.client, 40000), vip)
		w.expect(w.up, w.egress(w.up, foreign), next, foreign)
		w.expect(w.up, w.ingress(w.up, answer(proto, backend, node)), next, answer(proto, vip, node))
		w.expect(w.up, w.egress(w.up, more(proto, node, vip)), redirect, more(proto, node, backend))
		w.expectPairs(1)
		w.expectDrops(map[string]uint64{})
	})
}

func TestNodesOwnPacketsToALocalPodAndBack(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		node, vip := w.nodeFlow(proto, f, endpoint{address: port(f.local, 8080), onNode: true})
		backend := port(f.local, 8080)
		got := w.egress(w.up, opening(proto, node, vip))
		w.expectPairs(1)
		seen := node
		for _, e := range w.conntrack() {
			if forwardHalf(e.value) {
				seen = port(e.value.To.Source.Addr().String(), int(e.value.To.SourcePort))
			}
		}
		w.expect(w.up, got, redirect, opening(proto, seen, backend))
		// The answer has to come in where the kernel expects the frontend's address.
		w.expect(w.pod, w.ingress(w.pod, answer(proto, backend, seen)), redirect,
			answer(proto, vip, node).with(func(p *packet) { p.toMAC = w.up.mac }))
		w.expectDrops(map[string]uint64{})
	})
}

func TestNodesOwnPacketsAreRefusedTowardsTheNode(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		node, vip := w.nodeFlow(proto, f, endpoint{address: port(f.far, 8080)})
		w.addService(1, vip, proto, nil)
		p := w.framed(w.up, opening(proto, node, vip))
		p.toMAC, p.fromMAC = gatewayMAC, w.up.mac
		w.noCheckSum = true
		got := w.egress(w.up, p)
		a := refusalOf(p)
		a.toMAC, a.fromMAC = w.up.mac, gatewayMAC
		w.expect(w.up, got, redirect, a)
	})
}

func TestNodesOwnPacketsAreLeftToItsSockets(t *testing.T) {
	forEach(t, func(t *testing.T, w *world, proto uint8, f family) {
		node, vip := w.nodeFlow(proto, f, endpoint{address: port(f.far, 8080)})
		w.settings.Flags &^= maps.PacketNodeClients
		w.applySettings()
		p := opening(proto, node, vip)
		if proto == protoSCTP {
			// No program sees an SCTP socket.
			w.expect(w.up, w.egress(w.up, p), redirect, opening(proto, node, port(f.far, 8080)))
			return
		}
		w.expect(w.up, w.egress(w.up, p), next, p)
		w.expectPairs(0)
	})
}
