// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/shunt-lb/shunt/test/lab/process"
)

// Socket is a socket that a process holds open.
type Socket struct {
	process.Outcome // of the call that opened, bound or connected it
	process         *Process
	network         string
	number          int
}

// Listen starts an echo server named name and says where; port 0 takes a free one. Another outcome than success fails.
func (p *Process) Listen(network string, address netip.AddrPort, name string) netip.AddrPort {
	result := p.TryListen(network, address, name)
	if !result.OK() {
		p.lab.check(fmt.Errorf("listen on %s %s in %s: %s", network, address, p.Name, result.Errno))
	}
	return result.Address
}

// TryListen starts an echo server, or says why the kernel refused.
func (p *Process) TryListen(network string, address netip.AddrPort, name string) process.ListenResult {
	return ask[process.ListenResult](p, "listen",
		process.ListenRequest{Network: network, Address: address, Name: name})
}

// Open opens a socket without connecting it; the outcome is that of bind or listen.
func (p *Process) Open(request process.SocketRequest) *Socket {
	result := ask[process.SocketResult](p, "socket", request)
	return &Socket{Outcome: result.Outcome, process: p, network: request.Network, number: result.Socket}
}

// Dial opens a socket of the address's own family and connects it; a v4-mapped address takes an IPv6 socket.
func (p *Process) Dial(network string, address netip.AddrPort) *Socket {
	socket := p.Open(process.SocketRequest{Network: network, Family: familyOf(address.Addr())})
	if !socket.OK() {
		p.lab.check(fmt.Errorf("open %s socket in %s: %s", network, p.Name, socket.Errno))
	}
	socket.Outcome = socket.Connect(address)
	return socket
}

// Connects makes count connections one after the other, each asked for its server.
func (p *Process) Connects(network string, address netip.AddrPort, count int) process.ConnectsResult {
	return ask[process.ConnectsResult](p, "connects", process.ConnectsRequest{
		Network: network, Address: address, Count: count, Workers: 1, Timeout: usualTimeout,
	})
}

// Series is a series of connections that goes on in the background.
type Series struct {
	process *Process
	loop    process.LoopRequest
}

// StartConnects starts a series of connections on several threads.
func (p *Process) StartConnects(request process.ConnectsRequest) *Series {
	if request.Timeout == 0 {
		request.Timeout = usualTimeout
	}
	return &Series{process: p, loop: ask[process.LoopRequest](p, "start-connects", request)}
}

// Stop ends the series, or waits for its count, and has the counts.
func (s *Series) Stop() process.ConnectsResult {
	return ask[process.ConnectsResult](s.process, "stop-connects", s.loop)
}

// Capture counts the packets of a device.
type Capture struct {
	process *Process
	socket  process.InspectRequest
}

// Capture starts to count the packets that pass a device, or all devices for "", in both directions.
func (p *Process) Capture(device string) *Capture {
	started := ask[process.InspectRequest](p, "start-capture", process.CaptureRequest{Device: device})
	return &Capture{process: p, socket: started}
}

// Stop ends the capture and has the packets by their addresses.
func (c *Capture) Stop() []process.Captured {
	return ask[[]process.Captured](c.process, "stop-capture", c.socket)
}

// Ping sends one ICMP echo request and waits for the answer.
func (p *Process) Ping(address netip.Addr, timeout time.Duration) process.ProbeResult {
	return ask[process.ProbeResult](p, "ping", process.ProbeRequest{Address: address, Timeout: timeout})
}

// ARP asks on the device who has the address.
func (p *Process) ARP(device string, address netip.Addr, timeout time.Duration) process.ProbeResult {
	return ask[process.ProbeResult](p, "arp",
		process.ProbeRequest{Device: device, Address: address, Timeout: timeout})
}

// Connect connects the socket, again if it was connected before.
func (s *Socket) Connect(address netip.AddrPort) process.Outcome {
	return ask[process.Outcome](s.process, "connect",
		process.ConnectRequest{Socket: s.number, Address: address, Timeout: usualTimeout})
}

// Exchanged is the answer of an echo server and how it came.
type Exchanged struct {
	process.Outcome
	process.Reply
	From netip.AddrPort // the source that recvfrom named, UDP only
}

// Exchange sends a text to the peer and waits for the server's answer.
func (s *Socket) Exchange(text string) Exchanged { return s.ExchangeWith(netip.AddrPort{}, text) }

// ExchangeWith is Exchange by sendto.
func (s *Socket) ExchangeWith(to netip.AddrPort, text string) Exchanged {
	if sent := s.Send(to, text+"\n"); !sent.OK() {
		return Exchanged{Outcome: sent}
	}
	received := s.Receive(usualTimeout)
	result := Exchanged{Outcome: received.Outcome, From: received.From}
	if received.EOF {
		result.Errno = "EOF"
	}
	if result.OK() {
		if err := json.Unmarshal([]byte(received.Data), &result.Reply); err != nil {
			s.process.lab.check(fmt.Errorf("decode answer %q: %w", received.Data, err))
		}
	}
	return result
}

// Send sends data as it is, to the peer or, with an address, by sendto.
func (s *Socket) Send(to netip.AddrPort, data string) process.Outcome {
	return ask[process.Outcome](s.process, "send", process.SendRequest{Socket: s.number, Data: data, To: to})
}

// Receive reads a datagram or a line.
func (s *Socket) Receive(timeout time.Duration) process.ReceiveResult {
	return ask[process.ReceiveResult](s.process, "receive",
		process.ReceiveRequest{Socket: s.number, Timeout: timeout})
}

// Inspect tells what the application sees of the socket and what the kernel has.
func (s *Socket) Inspect() process.InspectResult {
	return ask[process.InspectResult](s.process, "inspect", process.InspectRequest{Socket: s.number})
}

// Close closes the socket.
func (s *Socket) Close() {
	ask[process.Outcome](s.process, "close", process.InspectRequest{Socket: s.number})
}

func familyOf(address netip.Addr) int {
	if address.Is4() {
		return 4
	}
	return 6
}
