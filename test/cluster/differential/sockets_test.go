// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"net/netip"

	"github.com/shunt-lb/shunt/test/cluster/probe"
	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// held is a socket that stays open over the steps of a case, one in each world.
type held struct {
	network, from string
	unconnected   bool
	to            target
	sockets       map[*world.World]*lab.Socket
}

// mapped is the v4-mapped form of an address: it takes an IPv6 socket.
func mapped(to target) target {
	return func(e *env) netip.AddrPort {
		address := to(e)
		return netip.AddrPortFrom(netip.AddrFrom16(address.Addr().As16()), address.Port())
	}
}

// opens opens a socket that the next steps use under its name, and asks who is there.
func opens(name, network, from string, to target, want string) check {
	return open(name, held{network: network, from: from, to: to}, want)
}

// opensUnconnected opens a UDP socket that is not connected.
func opensUnconnected(name, from string, to target, want string) check {
	return open(name, held{network: process.UDP, from: from, to: to, unconnected: true}, want)
}

func open(name string, socket held, want string) check {
	return check{what: "a new " + socket.network + " socket of " + socket.from, kubeProxy: want,
		observe: func(e *env, w *world.World, _ string) string {
			if e.sockets[name] == nil {
				socket.sockets = map[*world.World]*lab.Socket{}
				e.sockets[name] = &socket
			}
			return e.sockets[name].reopen(e, w)
		}}
}

func (h *held) reopen(e *env, w *world.World) string {
	h.close(w)
	client, to := clientOf(w, h.from), h.to(e)
	if !h.unconnected {
		h.sockets[w] = client.Dial(h.network, to)
		if !h.sockets[w].OK() {
			return failed(h.sockets[w].Outcome)
		}
		return h.ask(e, w)
	}
	family := 4
	if !to.Addr().Is4() {
		family = 6
	}
	h.sockets[w] = client.Open(process.SocketRequest{Network: h.network, Family: family})
	return h.ask(e, w)
}

func (h *held) close(w *world.World) {
	if h.sockets[w] != nil {
		h.sockets[w].Close()
	}
	delete(h.sockets, w)
}

// ask asks over the open socket who is there.
func (h *held) ask(e *env, w *world.World) string {
	var to netip.AddrPort
	if h.unconnected {
		to = h.to(e)
	}
	answer := h.sockets[w].ExchangeWith(to, "who")
	if !answer.OK() {
		return failed(answer.Outcome)
	}
	return answer.Server
}

func failed(outcome process.Outcome) string {
	switch outcome.Errno {
	case process.Timeout, "ETIMEDOUT", "EPERM":
		return probe.Dropped
	case "ECONNREFUSED":
		return probe.Refused
	case "ECONNABORTED", "EDESTADDRREQ": // of a socket that was ended: when it is heard of, and after
		return "ended"
	}
	return outcome.Errno
}

// goesOn asks again over a socket that an earlier step has opened.
func goesOn(name, want string) check {
	return check{what: "the open socket", kubeProxy: want,
		observe: func(e *env, w *world.World, _ string) string { return e.sockets[name].ask(e, w) }}
}

// recovers does what a resolver does: it asks over the open socket and, where that has failed, over a new one. It says
// who answered, and by which socket.
func recovers(name, server string) check {
	return check{what: "the open socket, or a new one after an error", kubeProxy: server + " by the same socket",
		observe: func(e *env, w *world.World, _ string) string {
			socket := e.sockets[name]
			answer := socket.ask(e, w)
			switch answer {
			case server:
				return answer + " by the same socket"
			case probe.Dropped:
				return answer
			}
			return socket.reopen(e, w) + " by a new socket"
		}}
}

// staysWith asks many times over one socket and says whether one server answered all.
func staysWith(name string) check {
	return check{what: "40 questions over one socket", kubeProxy: "one server",
		observe: func(e *env, w *world.World, _ string) string {
			socket := e.sockets[name]
			first := socket.ask(e, w)
			for range 39 {
				if next := socket.ask(e, w); next != first {
					return first + " then " + next
				}
			}
			return "one server"
		}}
}
