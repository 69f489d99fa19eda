// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
)

const (
	podDevice      = "eth0"
	podBridge      = "cni0"
	firstPodNumber = 2 // 1 is the gateway
)

// PodOptions may be left empty: pods are pod-1, pod-2, … with the next addresses of the node's pod networks.
type PodOptions struct {
	Name     string
	Address4 netip.Addr
	Address6 netip.Addr
	MTU      int
	OnlyIPv4 bool
	OnlyIPv6 bool
}

// Pod is a network namespace behind a node and a cgroup below the node's.
type Pod struct {
	*Namespace
	Host
	Node       *Node
	Device     string // of the node, the end of the pod's veth pair
	CgroupPath string

	cgroup []string
}

// Pod adds a pod to the node.
func (n *Node) Pod(options PodOptions) *Pod {
	pod, err := n.newPod(options)
	if err != nil {
		n.lab.check(fmt.Errorf("add pod to %s: %w", n.Name, err))
	}
	return pod
}

func (n *Node) newPod(options PodOptions) (*Pod, error) {
	namespace, err := n.lab.newNamespace()
	if err != nil {
		return nil, err
	}
	n.pods++
	pod := &Pod{
		Namespace: namespace, Node: n,
		Device: fmt.Sprintf("veth%d", n.pods),
		Host:   Host{Name: either(options.Name, fmt.Sprintf("pod-%d", n.pods))},
	}
	number := firstPodNumber + n.pods - 1
	if !options.OnlyIPv6 {
		pod.Address4 = either(options.Address4, numbered(n.Pods4, number))
	}
	if !options.OnlyIPv4 {
		pod.Address6 = either(options.Address6, numbered(n.Pods6, number))
	}
	pod.cgroup = []string{n.Name, "kubepods", pod.Name}
	if pod.CgroupPath, err = n.lab.makeCgroup(pod.cgroup...); err != nil {
		return nil, err
	}
	if err := connect(n.Namespace, pod.Device, namespace, podDevice, either(options.MTU, n.MTU)); err != nil {
		return nil, err
	}
	if n.bridge != nil {
		return pod, pod.joinBridge()
	}
	return pod, pod.routeToNode()
}

// routeToNode follows the ptp plugin: the pod reaches everything, its own network included, through the node.
func (p *Pod) routeToNode() error {
	for _, side := range p.families() {
		gateway := numbered(side.network, 1)
		steps := []func() error{
			func() error { return p.Node.AddAddress(p.Device, hostPrefix(gateway)) },
			func() error { return p.Node.AddRoute(hostPrefix(side.address), p.Device, netip.Addr{}) },
			func() error { return p.AddAddress(podDevice, hostPrefix(side.address)) },
			func() error { return p.AddRoute(hostPrefix(gateway), podDevice, netip.Addr{}) },
			func() error { return p.AddRoute(side.everything, podDevice, gateway) },
		}
		if err := inOrder(steps); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pod) joinBridge() error {
	if err := enslave(p.Node.Namespace, p.Device, p.Node.bridge); err != nil {
		return err
	}
	for _, side := range p.families() {
		steps := []func() error{
			func() error { return p.AddAddress(podDevice, netip.PrefixFrom(side.address, side.network.Bits())) },
			func() error { return p.AddRoute(side.everything, podDevice, numbered(side.network, 1)) },
		}
		if err := inOrder(steps); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) makeBridge() error {
	bridge, err := newBridge(n.Namespace, podBridge, n.MTU)
	if err != nil {
		return err
	}
	n.bridge = bridge
	for _, network := range []netip.Prefix{n.Pods4, n.Pods6} {
		if err := n.AddAddress(podBridge, netip.PrefixFrom(numbered(network, 1), network.Bits())); err != nil {
			return err
		}
	}
	return nil
}

type familySide struct {
	address    netip.Addr
	network    netip.Prefix
	everything netip.Prefix
}

func (p *Pod) families() []familySide {
	var sides []familySide
	if p.Address4.IsValid() {
		sides = append(sides, familySide{p.Address4, p.Node.Pods4, netip.MustParsePrefix("0.0.0.0/0")})
	}
	if p.Address6.IsValid() {
		sides = append(sides, familySide{p.Address6, p.Node.Pods6, netip.MustParsePrefix("::/0")})
	}
	return sides
}

// Process starts a process in the pod: in its network namespace and in its cgroup.
func (p *Pod) Process() *Process { return p.Node.lab.newProcess(p.Namespace, p.cgroup, p.Host) }

func inOrder(steps []func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
