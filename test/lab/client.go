// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
)

// ClientOptions may be left empty: clients are client-1, … at 172.20.0.100, fd00:172:20::64 and upwards.
type ClientOptions struct {
	Name     string
	Address4 netip.Addr
	Address6 netip.Addr
	MTU      int
}

// Client is a machine on the wire that is no node: its cgroup is outside of every node's, and it has no route beyond
// the wire until [Namespace.AddRoute] gives it one.
type Client struct {
	*Namespace
	Host
	Device string

	lab    *Lab
	cgroup []string
}

// Client adds an outside client.
func (l *Lab) Client(options ClientOptions) *Client {
	client, err := l.newClient(options)
	if err != nil {
		l.check(fmt.Errorf("add client: %w", err))
	}
	return client
}

func (l *Lab) newClient(options ClientOptions) (*Client, error) {
	namespace, err := l.newNamespace()
	if err != nil {
		return nil, err
	}
	l.clients++
	client := &Client{Namespace: namespace, Device: wireDevice, lab: l, Host: Host{
		Name:     either(options.Name, fmt.Sprintf("client-%d", l.clients)),
		Address4: either(options.Address4, numbered(wirePrefix4, firstClientNumber+l.clients-1)),
		Address6: either(options.Address6, numbered(wirePrefix6, firstClientNumber+l.clients-1)),
	}}
	client.cgroup = []string{"clients", client.Name}
	return client, l.joinWire(namespace, client.Address4, client.Address6, either(options.MTU, defaultMTU))
}

// Process starts a process on the client.
func (c *Client) Process() *Process { return c.lab.newProcess(c.Namespace, c.cgroup, c.Host) }
