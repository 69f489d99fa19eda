// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DeviceHandler is told of devices, from one goroutine.
type DeviceHandler interface {
	// All has every device at once, at the beginning, after events may have been lost, and now and then: what else the
	// handler knows of is gone.
	All([]Device)
	// Changed has a device that is new or not as before.
	Changed(Device)
	// Gone has the index of one that has left: removed, or moved to another namespace.
	Gone(index int)
}

// auditPeriod is how often all devices are shown again, whatever events say.
const auditPeriod = time.Minute

// receiveBuffer holds the events of some thousand devices.
const receiveBuffer = 4 << 20

// WatchDevices shows the devices of the calling process' network namespace, at once and whenever one changes, until ctx
// ends. A subscription that the kernel breaks is made again and followed by a new reading.
func WatchDevices(ctx context.Context, log *slog.Logger, h DeviceHandler) error {
	for first := true; ; first = false {
		worked, err := followDevices(ctx, h)
		if ctx.Err() != nil {
			return nil
		}
		if first && !worked {
			return err
		}
		log.Warn("watching this node's devices was interrupted, starting again", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// deviceWatch is one subscription.
type deviceWatch struct {
	handler   DeviceHandler
	links     chan netlink.LinkUpdate
	addresses chan netlink.AddrUpdate
	broken    chan error
	known     map[int]Device
}

// followDevices subscribes, then reads, so that nothing falls between. It reports whether it got that far.
func followDevices(ctx context.Context, h DeviceHandler) (worked bool, err error) {
	w := &deviceWatch{
		handler:   h,
		links:     make(chan netlink.LinkUpdate, 256),
		addresses: make(chan netlink.AddrUpdate, 256),
		broken:    make(chan error, 1),
	}
	done := make(chan struct{})
	defer close(done)
	if err := w.subscribe(done); err != nil {
		return false, err
	}
	// Whatever the subscriptions still have to say when this ends: they must not wait for a reader.
	defer func() { go w.discard() }()
	if err := w.readAll(); err != nil {
		return false, err
	}
	audit := time.NewTicker(auditPeriod)
	defer audit.Stop()
	for {
		select {
		case <-ctx.Done():
			return true, nil
		case err := <-w.broken:
			return true, fmt.Errorf("receive device events: %w", err)
		case <-audit.C:
			if err := w.readAll(); err != nil {
				return true, err
			}
		case u, ok := <-w.links:
			if !ok {
				return true, errEnded
			}
			w.link(u)
		case u, ok := <-w.addresses:
			if !ok {
				return true, errEnded
			}
			w.address(u)
		}
	}
}

var errEnded = errors.New("receive device events: the subscription ended")

func (w *deviceWatch) subscribe(done <-chan struct{}) error {
	report := func(err error) {
		select {
		case w.broken <- err:
		default:
		}
	}
	if err := netlink.LinkSubscribeWithOptions(w.links, done, netlink.LinkSubscribeOptions{
		ErrorCallback: report, ReceiveBufferSize: receiveBuffer, ReceiveBufferForceSize: true,
	}); err != nil {
		return fmt.Errorf("subscribe to device events: %w", err)
	}
	if err := netlink.AddrSubscribeWithOptions(w.addresses, done, netlink.AddrSubscribeOptions{
		ErrorCallback: report, ReceiveBufferSize: receiveBuffer, ReceiveBufferForceSize: true,
	}); err != nil {
		return fmt.Errorf("subscribe to address events: %w", err)
	}
	return nil
}

// discard takes what a subscription has in hand when it ends; it closes its channel then.
func (w *deviceWatch) discard() {
	for links, addresses := w.links, w.addresses; links != nil || addresses != nil; {
		select {
		case _, ok := <-links:
			if !ok {
				links = nil
			}
		case _, ok := <-addresses:
			if !ok {
				addresses = nil
			}
		}
	}
}

// readAll reads everything and shows it.
func (w *deviceWatch) readAll() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list this node's devices: %w", err)
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list this node's addresses: %w", err)
	}
	networks := map[int]bool{}
	for _, a := range addresses {
		networks[a.LinkIndex] = networks[a.LinkIndex] || hasNetwork(a.IPNet)
	}
	w.known = map[int]Device{}
	for _, l := range links {
		d := deviceOf(l)
		d.Networks = networks[d.Index]
		w.known[d.Index] = d
	}
	all := make([]Device, 0, len(links))
	for _, l := range links {
		all = append(all, w.complete(l.Attrs().Index))
	}
	w.handler.All(all)
	return nil
}

// complete returns a known device with its master.
func (w *deviceWatch) complete(index int) Device {
	d := w.known[index]
	if m, ok := w.known[d.MasterIndex]; ok {
		d.Master = &m
	}
	return d
}

// link takes an event about a device. Those of family AF_BRIDGE are about its being a port: one that says "removed"
// means that it has left its bridge.
func (w *deviceWatch) link(u netlink.LinkUpdate) {
	if u.IfInfomsg.Family == unix.AF_BRIDGE {
		return
	}
	index := int(u.IfInfomsg.Index)
	if u.Header.Type == unix.RTM_DELLINK {
		delete(w.known, index)
		w.handler.Gone(index)
		return
	}
	before, there := w.known[index]
	now := deviceOf(u.Link)
	now.Networks = before.Networks
	if there && before.same(now) {
		return
	}
	w.known[index] = now
	w.handler.Changed(w.complete(index))
	if !there || before.MAC.String() == now.MAC.String() && before.Kind == now.Kind {
		return
	}
	for _, port := range w.known {
		if port.MasterIndex == index {
			w.handler.Changed(w.complete(port.Index))
		}
	}
}

// address takes an event about an address of a device.
func (w *deviceWatch) address(u netlink.AddrUpdate) {
	d, there := w.known[u.LinkIndex]
	if !there || !hasNetwork(&u.LinkAddress) {
		return
	}
	networks := u.NewAddr
	if !networks {
		rest, err := netlink.AddrList(indexed(u.LinkIndex), netlink.FAMILY_ALL)
		if err != nil {
			return // the device is gone, as another event will say
		}
		for _, a := range rest {
			networks = networks || hasNetwork(a.IPNet)
		}
	}
	if networks != d.Networks {
		d.Networks = networks
		w.known[d.Index] = d
		w.handler.Changed(w.complete(d.Index))
	}
}

func indexed(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// hasNetwork tells an address that comes with its network from a host's own and from the link's.
func hasNetwork(a *net.IPNet) bool {
	if a == nil || a.IP.IsLinkLocalUnicast() || a.IP.IsLoopback() {
		return false
	}
	ones, bits := a.Mask.Size()
	return ones < bits
}

// deviceOf has what a link says of itself.
func deviceOf(l netlink.Link) Device {
	a := l.Attrs()
	return Device{
		Index:         a.Index,
		Name:          a.Name,
		Kind:          l.Type(),
		Encapsulation: a.EncapType,
		MAC:           a.HardwareAddr,
		Loopback:      a.Flags&net.FlagLoopback != 0,
		Up:            a.Flags&net.FlagUp != 0,
		MasterIndex:   a.MasterIndex,
	}
}

// same tells whether nothing differs that Decide looks at; their masters aside.
func (d Device) same(o Device) bool {
	return d.Index == o.Index && d.Name == o.Name && d.Kind == o.Kind && d.Encapsulation == o.Encapsulation &&
		d.MAC.String() == o.MAC.String() && d.Loopback == o.Loopback && d.Up == o.Up && d.Networks == o.Networks &&
		d.MasterIndex == o.MasterIndex
}
