// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the wire: nodes from 10 upwards, clients from 100.
var (
	wirePrefix4 = netip.MustParsePrefix("172.20.0.0/24")
	wirePrefix6 = netip.MustParsePrefix("fd00:172:20::/64")
)

const (
	firstNodeNumber   = 10
	firstClientNumber = 100
	wireDevice        = "eth0"
	defaultMTU        = 1500
)

// wire is the network between nodes and clients: a bridge without address in a namespace of its own.
type wire struct {
	namespace *Namespace
	bridge    *netlink.Bridge
	ports     int
}

func (l *Lab) newWire() (*wire, error) {
	namespace, err := l.newNamespace()
	if err != nil {
		return nil, err
	}
	if err := namespace.quietBridges(); err != nil {
		return nil, err
	}
	bridge, err := newBridge(namespace, "wire", defaultMTU)
	if err != nil {
		return nil, err
	}
	return &wire{namespace: namespace, bridge: bridge}, nil
}

// quietBridges keeps netfilter out of the namespace's bridges, where the kernel has it there: no wire looks at packets.
func (n *Namespace) quietBridges() error {
	for _, family := range []string{"ip", "ip6", "arp"} {
		err := n.Set("bridge/bridge-nf-call-"+family+"tables", "0")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// plug gives the namespace a device eth0 on the wire.
func (w *wire) plug(namespace *Namespace, mtu int) error {
	w.ports++
	port := fmt.Sprintf("port%d", w.ports)
	if err := connect(w.namespace, port, namespace, wireDevice, mtu); err != nil {
		return err
	}
	return enslave(w.namespace, port, w.bridge)
}

// connect makes a veth pair with one end in each namespace, up; it never appears in the machine's own.
func connect(outer *Namespace, outerName string, inner *Namespace, innerName string, mtu int) error {
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = outerName, mtu
	pair := &netlink.Veth{
		LinkAttrs: attributes, PeerName: innerName, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(inner.Fd()),
	}
	if err := outer.handle.LinkAdd(pair); err != nil {
		return fmt.Errorf("make veth pair %s: %w", outerName, err)
	}
	if err := outer.up(outerName); err != nil {
		return err
	}
	return inner.up(innerName)
}

func newBridge(namespace *Namespace, name string, mtu int) (*netlink.Bridge, error) {
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = name, mtu
	snooping := false
	bridge := &netlink.Bridge{LinkAttrs: attributes, MulticastSnooping: &snooping}
	if err := namespace.handle.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", name, err)
	}
	return bridge, namespace.up(name)
}

func enslave(namespace *Namespace, port string, bridge *netlink.Bridge) error {
	link, err := namespace.handle.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find device %s: %w", port, err)
	}
	if err := namespace.handle.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("add %s to bridge %s: %w", port, bridge.Name, err)
	}
	return nil
}

// AddAddress gives a device an address, usable at once.
func (n *Namespace) AddAddress(device string, prefix netip.Prefix) error {
	link, err := n.handle.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find device %s: %w", device, err)
	}
	address := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := n.handle.AddrAdd(link, address); err != nil {
		return fmt.Errorf("add address %s to %s: %w", prefix, device, err)
	}
	return nil
}

// RemoveAddress takes an address away from a device.
func (n *Namespace) RemoveAddress(device string, prefix netip.Prefix) error {
	link, err := n.handle.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find device %s: %w", device, err)
	}
	if err := n.handle.AddrDel(link, &netlink.Addr{IPNet: ipNet(prefix)}); err != nil {
		return fmt.Errorf("remove address %s from %s: %w", prefix, device, err)
	}
	return nil
}

// AddRoute routes a prefix through a gateway, or, with the zero gateway, straight to the device.
func (n *Namespace) AddRoute(prefix netip.Prefix, device string, gateway netip.Addr) error {
	link, err := n.handle.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find device %s: %w", device, err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(prefix)}
	if gateway.IsValid() {
		route.Gw = gateway.AsSlice()
	} else if prefix.Addr().Is4() {
		route.Scope = netlink.SCOPE_LINK
	}
	if err := n.handle.RouteAdd(route); err != nil {
		return fmt.Errorf("add route to %s: %w", prefix, err)
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}
}

// numbered is the n-th address of the prefix.
func numbered(prefix netip.Prefix, n int) netip.Addr {
	bytes := prefix.Masked().Addr().AsSlice()
	bytes[len(bytes)-1] += byte(n)
	bytes[len(bytes)-2] += byte(n >> 8)
	address, _ := netip.AddrFromSlice(bytes)
	return address
}

func hostPrefix(address netip.Addr) netip.Prefix { return netip.PrefixFrom(address, address.BitLen()) }
