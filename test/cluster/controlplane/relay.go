// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/shunt-lb/shunt/test/lab"
)

// Relay offers the API server inside another lab, and can be slow: what a bad network makes of it. (A network that is
// cut is better made by the lab, on the relay's device.)
type Relay struct {
	listener net.Listener
	target   *ControlPlane
	delay    atomic.Int64
}

// NewRelay listens on an address of a host of another lab. It ends with Close.
func NewRelay(host *lab.Client, target *ControlPlane) (*Relay, error) {
	r := &Relay{target: target}
	at := netip.AddrPortFrom(host.Address4, apiPort)
	err := host.Do(func() error {
		var err error
		r.listener, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("relay the API server: %w", err)
	}
	go r.accept()
	return r, nil
}

// Address is where the relay listens.
func (r *Relay) Address() netip.AddrPort { return r.listener.Addr().(*net.TCPAddr).AddrPort() }

// SetDelay holds each piece of an answer back for a time.
func (r *Relay) SetDelay(delay time.Duration) { r.delay.Store(int64(delay)) }

// Close ends the listener; connections end with their peers.
func (r *Relay) Close() { r.listener.Close() }

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		go r.serve(client)
	}
}

// serve copies both ways. A target that refuses shows as a connection that is reset.
func (r *Relay) serve(client net.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	server, err := r.target.Dial(ctx, "tcp", r.target.Address().String())
	if err != nil {
		_ = client.(*net.TCPConn).SetLinger(0)
		client.Close()
		return
	}
	go func() {
		_, _ = io.Copy(server, client)
		server.Close()
		client.Close()
	}()
	r.copyDelayed(client, server)
	server.Close()
	client.Close()
}

func (r *Relay) copyDelayed(to io.Writer, from io.Reader) {
	buffer := make([]byte, 64<<10)
	for {
		count, err := from.Read(buffer)
		if delay := time.Duration(r.delay.Load()); delay > 0 {
			time.Sleep(delay)
		}
		if _, writeErr := to.Write(buffer[:count]); err != nil || writeErr != nil {
			return
		}
	}
}

// dialIn connects a socket that lives in the namespace.
func dialIn(ctx context.Context, namespace *lab.Namespace, network, address string) (net.Conn, error) {
	var connection net.Conn
	err := namespace.Do(func() error {
		var err error
		connection, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return connection, err
}
