// SPDX-License-Identifier: Apache-2.0

// Package process is what runs inside the lab's pods: a process that opens sockets when it is told to, over JSON lines
// on its standard input and output, and says exactly what the kernel answered. It uses the system calls themselves,
// so that an errno, a getpeername or a reply's source is the kernel's and not a library's.
//
// The lab starts it (see package lab); it ends with its input.
package process

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Networks.
const (
	TCP   = "tcp"
	UDP   = "udp"
	MPTCP = "mptcp"
)

// Request is one line to the process. Requests run beside each other; responses carry the number of theirs.
type Request struct {
	Number    uint64          `json:"number"`
	Operation string          `json:"operation"`
	Body      json.RawMessage `json:"body"`
}

// Response is one line from the process.
type Response struct {
	Number uint64          `json:"number"`
	Error  string          `json:"error,omitempty"` // the request could not be carried out at all
	Body   json.RawMessage `json:"body,omitempty"`
}

// Outcome is what a system call answered. Errno is empty for success, else the kernel's name for it (ECONNREFUSED);
// "timeout" is not the kernel's: the time given to the request was over.
type Outcome struct {
	Errno    string        `json:"errno,omitempty"`
	Duration time.Duration `json:"duration"`
}

// Timeout is the Errno of an Outcome for which the request's time was over.
const Timeout = "timeout"

// OK says that the call succeeded.
func (o Outcome) OK() bool { return o.Errno == "" }

// ListenRequest starts an echo server: it answers each line (each datagram) with a Reply that carries its name.
type ListenRequest struct {
	Network string         `json:"network"`
	Address netip.AddrPort `json:"address"`
	Name    string         `json:"name"`
}

// ListenResult has the socket, to be closed, and the address with the port that was taken.
type ListenResult struct {
	Outcome
	Socket  int            `json:"socket"`
	Address netip.AddrPort `json:"address"`
}

// Reply is what an echo server answers.
type Reply struct {
	Server string         `json:"server"`
	Peer   netip.AddrPort `json:"peer"`  // the client as the server saw it
	Local  netip.AddrPort `json:"local"` // the server's own address on this connection; the listening one for UDP
	Text   string         `json:"text"`
}

// SocketRequest opens a socket. Family is 4 or 6; the zero Bind binds nothing.
type SocketRequest struct {
	Network  string         `json:"network"`
	Family   int            `json:"family"`
	OnlyIPv6 bool           `json:"onlyIPv6,omitempty"`
	Bind     netip.AddrPort `json:"bind,omitzero"`
	Listen   bool           `json:"listen,omitempty"`
}

// SocketResult has the errno of bind, or of listen.
type SocketResult struct {
	Outcome
	Socket int `json:"socket"`
}

// ConnectRequest connects a socket. A v4-mapped address keeps its form on a family 6 socket.
type ConnectRequest struct {
	Socket  int            `json:"socket"`
	Address netip.AddrPort `json:"address"`
	Timeout time.Duration  `json:"timeout"`
}

// SendRequest writes to a connected socket, or to an address with sendto.
type SendRequest struct {
	Socket int            `json:"socket"`
	Data   string         `json:"data"`
	To     netip.AddrPort `json:"to,omitzero"`
}

// ReceiveRequest reads once; for TCP a whole line.
type ReceiveRequest struct {
	Socket  int           `json:"socket"`
	Timeout time.Duration `json:"timeout"`
}

// ReceiveResult has what arrived and, for UDP, the source that recvfrom named. EOF: the peer closed.
type ReceiveResult struct {
	Outcome
	Data string         `json:"data"`
	From netip.AddrPort `json:"from,omitzero"`
	EOF  bool           `json:"eof,omitempty"`
}

// InspectRequest names a socket.
type InspectRequest struct {
	Socket int `json:"socket"`
}

// InspectResult is a socket from both sides: what the application is told and what the kernel's table has.
type InspectResult struct {
	Local        netip.AddrPort `json:"local,omitzero"`
	Peer         netip.AddrPort `json:"peer,omitzero"` // getpeername
	PeerErrno    string         `json:"peerErrno,omitempty"`
	KernelLocal  netip.AddrPort `json:"kernelLocal,omitzero"`  // /proc/net
	KernelRemote netip.AddrPort `json:"kernelRemote,omitzero"` // /proc/net: where packets go
}

// ConnectsRequest makes connections one after the other on each of Workers threads, asks each for its server and
// closes it. Count 0 goes on until StopConnects.
type ConnectsRequest struct {
	Network string         `json:"network"`
	Address netip.AddrPort `json:"address"`
	Count   int            `json:"count"`
	Workers int            `json:"workers"`
	Timeout time.Duration  `json:"timeout"` // per connection
	Pause   time.Duration  `json:"pause"`   // after each, to leave the machine to others
	Silent  bool           `json:"silent,omitempty"`
}

// ConnectsResult counts connections by server and by errno. With Silent no server is asked and all count under "".
type ConnectsResult struct {
	Servers map[string]int `json:"servers"`
	Errnos  map[string]int `json:"errnos"`
	Slowest time.Duration  `json:"slowest"`
}

// Total counts the connections that succeeded.
func (r ConnectsResult) Total() int {
	total := 0
	for _, count := range r.Servers {
		total += count
	}
	return total
}

// Failed counts the connections that did not.
func (r ConnectsResult) Failed() int {
	total := 0
	for _, count := range r.Errnos {
		total += count
	}
	return total
}

// ProbeRequest asks the network itself: ARP on a device, or an ICMP echo.
type ProbeRequest struct {
	Device  string        `json:"device,omitempty"`
	Address netip.Addr    `json:"address"`
	Timeout time.Duration `json:"timeout"`
}

// ProbeResult says who answered, if anybody.
type ProbeResult struct {
	Answered bool   `json:"answered"`
	By       string `json:"by,omitempty"`    // hardware address, or the address of the echo reply
	Errno    string `json:"errno,omitempty"` // what sending, or an ICMP error, gave
}
