// SPDX-License-Identifier: Apache-2.0

// Package world puts a cluster's nodes and pods into labs, as often as there are proxies to compare: each world has
// the same nodes, pods and addresses, and its own network, so that the same objects of one API server and the same
// connections can be compared literally.
//
//	control lab      etcd, kube-apiserver, kube-controller-manager
//	      │ relay of each world
//	world  ──────┬── api 172.20.0.5     the API server's address here
//	             ├── router 172.20.0.6  where the default routes lead: it forwards nothing
//	             ├── node-1             under test: the proxy runs here; local-1, local-2, client; host-1
//	             ├── node-2             remote-1, remote-2; host-2; no proxy
//	             └── outside            a client of no node, whose packets to Services are routed to node-1
package world

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"

	"github.com/shunt-lb/shunt/test/cluster/controlplane"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// Names of the nodes and servers. Each server listens on Port and OtherPort, TCP and UDP, and answers with its name,
// on OtherPort with OtherName of it.
const (
	Tested = "node-1"
	Remote = "node-2"

	Port      = 8080
	OtherPort = 8081

	// Where tests take external IPs and load balancers' addresses from.
	ExternalRange4 = "192.0.2.0/24"
	ExternalRange6 = "2001:db8::/32"

	// Outside4 and Outside6 are the addresses of the client outside.
	Outside4 = "172.20.0.100"
	Outside6 = "fd00:172:20::64"

	gateway6 = "fd00:172:20::6"
	gateway4 = "172.20.0.6"
)

// ServerNames are all servers: the pods, and the nodes' own processes.
var ServerNames = []string{"local-1", "local-2", "remote-1", "remote-2", "host-1", "host-2"}

// OtherName is what a server calls itself on OtherPort.
func OtherName(server string) string { return server + ":other" }

// World is one copy of the cluster's nodes and pods.
type World struct {
	Name    string
	Lab     *lab.Lab
	Node    *lab.Node // under test
	Far     *lab.Node // the other one
	Relay   *controlplane.Relay
	API     *lab.Client // the host of the relay
	Servers map[string]*lab.Process
	Client  *lab.Process // a pod of the tested node that serves nothing
	Host    *lab.Process // a process of the tested node
	Outside *lab.Process // of the client outside

	proxy *lab.Program
}

// New makes a world and its way to the API server.
func New(l *lab.Lab, name string, control *controlplane.ControlPlane) (*World, error) {
	w := &World{Name: name, Lab: l, Servers: map[string]*lab.Process{}}
	w.Node = l.Node(lab.NodeOptions{Name: Tested})
	remote := l.Node(lab.NodeOptions{Name: Remote})
	w.Far = remote
	w.API = l.Client(lab.ClientOptions{Name: "api", Address4: netip.MustParseAddr(controlplane.GatewayAddress)})
	l.Client(lab.ClientOptions{
		Name: "router", Address4: netip.MustParseAddr(gateway4), Address6: netip.MustParseAddr(gateway6),
	})
	outside := l.Client(lab.ClientOptions{
		Name: "outside", Address4: netip.MustParseAddr(Outside4), Address6: netip.MustParseAddr(Outside6),
	})
	w.Outside = outside.Process()
	if err := routeToServices(outside, w.Node); err != nil {
		return nil, err
	}
	for _, node := range []*lab.Node{w.Node, remote} {
		if err := prepareNode(node); err != nil {
			return nil, err
		}
	}
	w.Client = w.Node.Pod(lab.PodOptions{Name: "client"}).Process()
	w.Host = w.Node.Process()
	w.serve("local-1", w.Node.Pod(lab.PodOptions{Name: "local-1"}).Process(), netip.IPv6Unspecified())
	w.serve("local-2", w.Node.Pod(lab.PodOptions{Name: "local-2"}).Process(), netip.IPv6Unspecified())
	w.serve("remote-1", remote.Pod(lab.PodOptions{Name: "remote-1"}).Process(), netip.IPv6Unspecified())
	w.serve("remote-2", remote.Pod(lab.PodOptions{Name: "remote-2"}).Process(), netip.IPv6Unspecified())
	// A node has several addresses, and a datagram's answer must come from the one that was asked.
	w.serve("host-1", w.Node.Process(), w.Node.Address4, w.Node.Address6)
	w.serve("host-2", remote.Process(), remote.Address4, remote.Address6)
	var err error
	w.Relay, err = controlplane.NewRelay(w.API, control)
	return w, err
}

// prepareNode gives the node default routes, as nodes have them, and lets it send an ICMP error for each packet that is
// refused: the kernel's limit of one a second for a peer would show as silence.
func prepareNode(node *lab.Node) error {
	for _, setting := range []string{"ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"} {
		if err := node.Set(setting, "0"); err != nil {
			return err
		}
	}
	for prefix, gateway := range map[string]string{"0.0.0.0/0": gateway4, "::/0": gateway6} {
		if err := node.AddRoute(netip.MustParsePrefix(prefix), "eth0", netip.MustParseAddr(gateway)); err != nil {
			return err
		}
	}
	return nil
}

// routeToServices leads a client's packets to Services to the tested node, as a router that balances load does.
func routeToServices(client *lab.Client, node *lab.Node) error {
	for _, prefix := range []string{controlplane.ServiceRange4, ExternalRange4, controlplane.ServiceRange6, ExternalRange6} {
		to, gateway := netip.MustParsePrefix(prefix), node.Address4
		if to.Addr().Is6() {
			gateway = node.Address6
		}
		if err := client.AddRoute(to, client.Device, gateway); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) serve(name string, server *lab.Process, addresses ...netip.Addr) {
	w.Servers[name] = server
	for _, address := range addresses {
		for _, network := range []string{process.TCP, process.UDP} {
			server.Listen(network, netip.AddrPortFrom(address, Port), name)
			server.Listen(network, netip.AddrPortFrom(address, OtherPort), OtherName(name))
		}
	}
}

// NodeOf is the name of the node where a server is.
func NodeOf(server string) string {
	switch server {
	case "remote-1", "remote-2", "host-2":
		return Remote
	}
	return Tested
}

// StartProxy starts a program as the service proxy of the tested node, in place of the one that was there.
func (w *World) StartProxy(command *exec.Cmd) error {
	w.StopProxy()
	log, err := os.OpenFile(w.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	w.proxy = w.Node.Start("proxy", command)
	return nil
}

// StopProxy kills the proxy.
func (w *World) StopProxy() {
	if w.proxy != nil {
		w.proxy.Kill()
	}
}

// Proxy is the running proxy.
func (w *World) Proxy() *lab.Program { return w.proxy }

// LogFile is where the proxy writes.
func (w *World) LogFile() string { return w.Node.File("proxy.log") }
