// SPDX-License-Identifier: Apache-2.0

package packetpath

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestPodsComeAndGo(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, l.layout)
			w.service("near", 1, "", w.near)
			w.start(l.flags...)
			for range 5 {
				pod := w.Node.Pod(lab.PodOptions{})
				client := pod.Process()
				w.AwaitReached(client, process.TCP, w.sides()[0].clusterIP(1), "near")
				w.removeDevice(pod.Device)
			}
			w.awaitAttached()
			w.Eventually("nothing is left of the pods in map devices", func() (bool, string) {
				have, want := w.devicesInMap(), len(w.attached())
				return have == want, fmt.Sprintf("%d elements for %d devices", have, want)
			})
		})
	}
}

func TestDevicesChangeWhileTheAgentRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.Routed)
	w.start("--devices=!skip*")
	h := w.Node.Netlink()

	// Many at once, and gone at once.
	for i := range 40 {
		w.Must(h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("a%d", i)}, PeerName: fmt.Sprintf("b%d", i)}))
	}
	w.awaitAttached()
	for i := range 39 {
		w.removeDevice(fmt.Sprintf("a%d", i))
	}
	w.awaitAttached()

	// Renamed out of the patterns, and into them again.
	device, err := h.LinkByName("a39")
	w.Must(err)
	w.Must(h.LinkSetName(device, "skip0"))
	w.awaitPrograms("skip0", 0)
	w.Must(h.LinkSetName(device, "a39"))
	w.awaitPrograms("a39", 2)

	// Moved to another node's namespace.
	index := device.Attrs().Index
	w.Must(h.LinkSetNsFd(device, w.Neighbour.Fd()))
	w.awaitAttached()
	w.Must(w.Neighbour.Do(func() error {
		moved, err := netlink.LinkByName("a39")
		if err != nil {
			return err
		}
		on, err := link.QueryPrograms(link.QueryOptions{Target: moved.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		if err == nil && len(on.Programs) > 0 {
			t.Errorf("device %d has taken its programs to another namespace", index)
		}
		return err
	}))

	// A port of a bridge: the port has them, the bridge has not. A bond: the bond has them, its port has not.
	w.Must(h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}))
	bridge, err := h.LinkByName("br0")
	w.Must(err)
	w.Must(h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "c0"}, PeerName: "c1"}))
	port, err := h.LinkByName("c0")
	w.Must(err)
	w.Must(h.LinkSetMaster(port, bridge))
	w.awaitPrograms("c0", 2)
	w.awaitPrograms("br0", 0)
	w.Must(h.LinkSetNoMaster(port))
	w.awaitAttached()
}

func TestPatternsChooseDevices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.Routed)
	w.StartAgent("--packet-path", "--devices=eth*")
	w.awaitPrograms("eth0", 2)
	if got := w.attached(); len(got) != 1 {
		t.Errorf("programs are on %v, want eth0 alone", got)
	}
}

func TestOtherProgramsOnTheDeviceStay(t *testing.T) {
	for _, l := range layouts {
		if l.layout == lab.Bridged {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, l.layout)
			w.service("near", 1, "", w.near)
			other := w.attachOther()
			w.start(l.flags...)
			w.expect(t, w.client, process.TCP, w.sides()[0].frontends(1)["node port"], "near", w.client.Address4)
			w.stop()
			w.Shunt("cleanup")
			info, err := other.Info()
			w.Must(err)
			id, _ := info.ID()
			w.Must(w.Node.Do(func() error {
				eth0, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				on, err := link.QueryPrograms(link.QueryOptions{Target: eth0.Attrs().Index, Attach: ebpf.AttachTCXIngress})
				if err != nil {
					return err
				}
				if len(on.Programs) != 1 || on.Programs[0].ID != id {
					t.Errorf("the other program's link is gone: %v", on.Programs)
				}
				filters, err := netlink.FilterList(eth0, netlink.HANDLE_MIN_INGRESS)
				if err == nil && (len(filters) != 1 || filters[0].(*netlink.BpfFilter).Name != "other") {
					t.Errorf("the other program's filter is gone: %v", filters)
				}
				return err
			}))
		})
	}
}

// attachOther puts a program that does nothing on the ingress of the node's eth0 in both ways: where shunt would be.
func (w *world) attachOther() *ebpf.Program {
	w.T.Helper()
	const next = -1
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other", Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, next), asm.Return()},
	})
	w.Must(err)
	w.T.Cleanup(func() { program.Close() })
	w.Must(w.Node.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		index := eth0.Attrs().Index
		l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		w.T.Cleanup(func() { l.Close() })
		if err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}}); err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
			},
			Fd: program.FD(), Name: "other", DirectAction: true,
		})
	}))
	return program
}

func (w *world) removeDevice(name string) {
	w.T.Helper()
	device, err := w.Node.Netlink().LinkByName(name)
	w.Must(err)
	w.Must(w.Node.Netlink().LinkDel(device))
}

func (w *world) awaitPrograms(device string, count int) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("%s has %d programs", device, count), func() (bool, string) {
		got := w.attached()[device]
		return got == count, fmt.Sprint(got)
	})
}

// devicesInMap counts the elements of map devices.
func (w *world) devicesInMap() int {
	w.T.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(w.Pins(), "devices"), &ebpf.LoadPinOptions{ReadOnly: true})
	w.Must(err)
	defer m.Close()
	var key uint32
	value := make([]byte, m.ValueSize())
	count := 0
	for it := m.Iterate(); it.Next(&key, &value); {
		count++
	}
	return count
}
