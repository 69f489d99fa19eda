// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// NodeOptions may be left empty: the n-th node is node-n, 172.20.0.(9+n), fd00:172:20::(9+n), with the pod networks
// 10.244.n.0/24 and fd00:10:244:n::/64.
type NodeOptions struct {
	Name     string
	Address4 netip.Addr
	Address6 netip.Addr
	Pods4    netip.Prefix
	Pods6    netip.Prefix
	MTU      int // of eth0 and, unless they say otherwise, of pods
	Layout   Layout
}

// Layout is how a node connects its pods.
type Layout int

const (
	// Routed is what the ptp plugin does: one veth pair per pod, the gateway on its node end, a host route to the pod.
	Routed Layout = iota
	// Bridged is what the bridge plugin does: all pods on one bridge that has the gateway's address.
	Bridged
)

// Node is a network namespace that forwards between its pods and the wire, with a cgroup and a bpffs of its own.
type Node struct {
	*Namespace
	Name       string
	Address4   netip.Addr
	Address6   netip.Addr
	Pods4      netip.Prefix
	Pods6      netip.Prefix
	MTU        int
	CgroupRoot string // parent of the cgroups of the node's processes and pods: what is "the root" on a real node
	BPFFS      string // mount point

	lab       *Lab
	bridge    *netlink.Bridge
	pods      int
	processes int
}

// Node adds a node. Nodes know the way to each other's pods.
func (l *Lab) Node(options NodeOptions) *Node {
	node, err := l.newNode(options)
	if err != nil {
		l.check(fmt.Errorf("add node: %w", err))
	}
	l.nodes = append(l.nodes, node)
	return node
}

func (l *Lab) newNode(options NodeOptions) (*Node, error) {
	namespace, err := l.newNamespace()
	if err != nil {
		return nil, err
	}
	number := len(l.nodes) + 1
	node := &Node{
		Namespace: namespace, lab: l,
		Name:     either(options.Name, fmt.Sprintf("node-%d", number)),
		Address4: either(options.Address4, numbered(wirePrefix4, firstNodeNumber+number-1)),
		Address6: either(options.Address6, numbered(wirePrefix6, firstNodeNumber+number-1)),
		Pods4:    either(options.Pods4, netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", number))),
		Pods6:    either(options.Pods6, netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/64", number))),
		MTU:      either(options.MTU, defaultMTU),
	}
	if node.CgroupRoot, err = l.makeCgroup(node.Name); err != nil {
		return nil, err
	}
	if node.BPFFS, err = l.mountBPF(node.Name); err != nil {
		return nil, err
	}
	for _, setting := range []string{"ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1"} {
		if err := namespace.applySetting(setting); err != nil {
			return nil, err
		}
	}
	if err := l.joinWire(namespace, node.Address4, node.Address6, node.MTU); err != nil {
		return nil, err
	}
	if options.Layout == Bridged {
		if err := node.makeBridge(); err != nil {
			return nil, err
		}
	}
	return node, node.meet(l.nodes)
}

// meet gives this node and the others routes to each other's pods.
func (n *Node) meet(others []*Node) error {
	for _, other := range others {
		for _, way := range []struct {
			from    *Node
			pods    netip.Prefix
			gateway netip.Addr
		}{
			{n, other.Pods4, other.Address4}, {n, other.Pods6, other.Address6},
			{other, n.Pods4, n.Address4}, {other, n.Pods6, n.Address6},
		} {
			if err := way.from.AddRoute(way.pods, wireDevice, way.gateway); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *Lab) joinWire(namespace *Namespace, address4, address6 netip.Addr, mtu int) error {
	if err := l.wire.plug(namespace, mtu); err != nil {
		return err
	}
	if err := namespace.AddAddress(wireDevice, netip.PrefixFrom(address4, wirePrefix4.Bits())); err != nil {
		return err
	}
	return namespace.AddAddress(wireDevice, netip.PrefixFrom(address6, wirePrefix6.Bits()))
}

// Process starts a process of the node itself (host network), in a cgroup of its own below the node's.
func (n *Node) Process() *Process {
	return n.lab.newProcess(n.Namespace, n.serviceCgroup("process"), Host{
		Name: n.Name, Address4: n.Address4, Address6: n.Address6,
	})
}

// Start runs a program on the node, host network, in a cgroup of its own named after it: the agent, for instance.
func (n *Node) Start(name string, command *exec.Cmd) *Program {
	program, err := n.lab.start(n.Namespace, n.serviceCgroup(name), command)
	if err != nil {
		n.lab.check(fmt.Errorf("start %s on %s: %w", name, n.Name, err))
	}
	return program
}

func (n *Node) serviceCgroup(name string) []string {
	n.processes++
	return []string{n.Name, "system", fmt.Sprintf("%s-%d", name, n.processes)}
}

// File is a path in a directory that belongs to the node and goes with the lab.
func (n *Node) File(name string) string { return filepath.Join(n.lab.directory, n.Name, name) }

// either is the wanted value, or the usual one where none is given.
func either[T comparable](wanted, usual T) T {
	var none T
	if wanted == none {
		return usual
	}
	return wanted
}
