// SPDX-License-Identifier: Apache-2.0

// Package probe is what the tests' clients do: many connections to one address, each from a socket of its own, and who
// answered, as whom the client was seen, and what the kernel said otherwise.
package probe

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const operation = "probe"

// Dropped and Refused are how a connection fails, whichever errno it has: a packet that is dropped shows as the
// client's own patience ending, as ETIMEDOUT, or, for a datagram of the node itself, as EPERM from netfilter.
const (
	Dropped = "dropped"
	Refused = "refused"
)

// Request is a series of connections. For UDP each is a datagram and its answer.
type Request struct {
	Network     string         `json:"network"`
	To          netip.AddrPort `json:"to"`
	Count       int            `json:"count"`
	Timeout     time.Duration  `json:"timeout"`
	Unconnected bool           `json:"unconnected"` // UDP by sendto
}

// Result counts the connections.
type Result struct {
	Servers  map[string]int     `json:"servers"`
	Sources  map[netip.Addr]int `json:"sources"`  // of the client, as the servers saw it
	Failures map[string]int     `json:"failures"` // Dropped, Refused or the errno
	Strange  []string           `json:"strange"`  // what should never be: a peer or a reply's source that is not the address dialled
}

// Operations add the probe to the processes of a lab.
func Operations() process.Operations { return process.Operations{operation: process.Typed(run)} }

// Run runs the series in a process of the lab.
func Run(p *lab.Process, request Request) (Result, error) {
	var result Result
	err := p.Call(operation, request, &result)
	return result, err
}

func run(in Request) (Result, error) {
	result := Result{Servers: map[string]int{}, Sources: map[netip.Addr]int{}, Failures: map[string]int{}}
	const parallel = 16
	var mutex sync.Mutex
	var workers sync.WaitGroup
	left := make(chan struct{}, in.Count)
	for range in.Count {
		left <- struct{}{}
	}
	close(left)
	for range min(parallel, in.Count) {
		workers.Go(func() {
			for range left {
				reply, strange, err := once(in)
				mutex.Lock()
				result.count(reply, strange, err)
				mutex.Unlock()
			}
		})
	}
	workers.Wait()
	return result, nil
}

func (r *Result) count(reply process.Reply, strange string, err error) {
	if strange != "" {
		r.Strange = append(r.Strange, strange)
	}
	if err != nil {
		r.Failures[failure(err)]++
		return
	}
	r.Servers[reply.Server]++
	r.Sources[reply.Peer.Addr()]++
}

func failure(err error) string {
	var errno unix.Errno
	var timeout net.Error
	switch {
	case errors.Is(err, unix.EPERM), errors.As(err, &timeout) && timeout.Timeout(): // ETIMEDOUT is one as well
		return Dropped
	case errors.Is(err, unix.ECONNREFUSED):
		return Refused
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// Ask makes one TCP connection from this process and says who answered.
func Ask(address netip.AddrPort, timeout time.Duration) (string, error) {
	reply, _, err := once(Request{Network: process.TCP, To: address, Timeout: timeout})
	return reply.Server, err
}

func once(in Request) (process.Reply, string, error) {
	if in.Network == process.UDP && in.Unconnected {
		return byDatagram(in)
	}
	dialer := net.Dialer{Timeout: in.Timeout}
	connection, err := dialer.Dial(in.Network, in.To.String())
	if err != nil {
		return process.Reply{}, "", err
	}
	defer connection.Close()
	var strange string
	if peer := connection.RemoteAddr().String(); peer != in.To.String() {
		strange = "the peer of a connection to " + in.To.String() + " is " + peer
	}
	if stream, ok := connection.(*net.TCPConn); ok {
		_ = stream.SetLinger(0) // no TIME_WAIT in a namespace where ports are few
	}
	_ = connection.SetDeadline(time.Now().Add(in.Timeout))
	_, err = connection.Write([]byte("who\n"))
	// Netfilter lets a datagram of the node itself fail with EPERM, and with what it answers in the next call.
	if rejected := in.Network == process.UDP && errors.Is(err, unix.EPERM); err != nil && !rejected {
		return process.Reply{}, strange, err
	}
	line, err := readAnswer(in.Network, connection)
	if err != nil {
		return process.Reply{}, strange, err
	}
	var reply process.Reply
	if err := json.Unmarshal(line, &reply); err != nil {
		return process.Reply{}, strange, fmt.Errorf("decode answer: %w", err)
	}
	return reply, strange, nil
}

func readAnswer(network string, connection net.Conn) ([]byte, error) {
	if network != process.UDP {
		return bufio.NewReader(connection).ReadBytes('\n')
	}
	buffer := make([]byte, 4096)
	count, err := connection.Read(buffer)
	return buffer[:count], err
}

func byDatagram(in Request) (process.Reply, string, error) {
	socket, err := net.ListenUDP(udpNetwork(in.To.Addr()), nil)
	if err != nil {
		return process.Reply{}, "", err
	}
	defer socket.Close()
	_ = socket.SetDeadline(time.Now().Add(in.Timeout))
	if _, err := socket.WriteToUDPAddrPort([]byte("who\n"), in.To); err != nil {
		return process.Reply{}, "", err
	}
	buffer := make([]byte, 4096)
	count, from, err := socket.ReadFromUDPAddrPort(buffer)
	if err != nil {
		return process.Reply{}, "", err
	}
	var strange string
	if from != in.To {
		strange = "the answer of " + in.To.String() + " came from " + from.String()
	}
	var reply process.Reply
	if err := json.Unmarshal(buffer[:count], &reply); err != nil {
		return process.Reply{}, strange, fmt.Errorf("decode answer: %w", err)
	}
	return reply, strange, nil
}

func udpNetwork(address netip.Addr) string {
	if address.Is4() {
		return "udp4"
	}
	return "udp6"
}
