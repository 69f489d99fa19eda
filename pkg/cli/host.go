// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/agent"
	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/doctor"
	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// hostEnvironment is this machine.
func hostEnvironment() environment {
	return environment{
		openMaps:  openMaps,
		monotonic: monotonic,
		netns:     lookIntoNetns,
		datapath:  readDatapath,
		gather:    doctor.Gather,
		clean:     hostCleaner(),
		agent:     agent.Run,
		settings:  config.OSFiles{},
	}
}

func openMaps(dir string) (maps.Reader, func(), error) {
	k, err := maps.Open(dir, maps.Options{ReadOnly: true})
	if err != nil {
		return nil, nil, err
	}
	return k, k.Close, nil
}

func monotonic() uint64 {
	var t unix.Timespec
	// The clock exists and the pointer is good: no other failure is defined.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint64(t.Nano())
}

// hookPrefix begins the names of the socket programs; the rest is the hook's name.
const hookPrefix = "sock_"

// readDatapath reads what is attached, and the settings of one of the programs: all have the same.
func readDatapath(bpffs string) (explain.Datapath, error) {
	attachments, err := attach.List(bpffs)
	if err != nil {
		return explain.Datapath{}, fmt.Errorf("find the attached programs: %w", err)
	}
	var d explain.Datapath
	if d.PacketDevices, err = packetDevices(bpffs); err != nil {
		return explain.Datapath{}, err
	}
	var program attach.Attachment
	for _, a := range attachments {
		if hook, ok := strings.CutPrefix(a.Name, hookPrefix); ok && a.CgroupID != 0 {
			d.Hooks = append(d.Hooks, hook)
			program = a
		}
	}
	if len(d.Hooks) == 0 {
		d.NodeCookie, _, err = identifyNetns()
		return d, err
	}
	s, err := loader.ReadSettings(program.Program)
	if err != nil {
		return explain.Datapath{}, err
	}
	d.NodeCookie = s.NetnsCookie
	d.LoopbackNodePorts, d.HostOnly = s.LoopbackNodePorts, s.HostOnly
	d.SetRetval, d.ReadKernel = s.Features.SetRetval, s.Features.ReadKernel
	d.NodeAddresses, err = nodeAddresses(s)
	return d, err
}

// packetDevices counts the devices that have the packet programs.
func packetDevices(bpffs string) (int, error) {
	attached, err := attach.ListPackets(bpffs)
	if err != nil {
		return 0, fmt.Errorf("find the devices of the packet path: %w", err)
	}
	devices := map[int]bool{}
	for _, a := range attached {
		if a.Device != 0 {
			devices[a.Device] = true
		}
	}
	return len(devices), nil
}

// nodeAddresses returns what source ranges judge the node's own processes by: the addresses that the programs were
// told, or else those that they find in the namespace, which only a command in the same one sees.
func nodeAddresses(s loader.Settings) ([]netip.Addr, error) {
	var told []netip.Addr
	for _, a := range []netip.Addr{s.NodeAddress4, s.NodeAddress6} {
		if a.IsValid() {
			told = append(told, a)
		}
	}
	if len(told) == 2 || !s.Features.ReadKernel {
		return told, nil
	}
	cookie, found, err := identifyNetns()
	if err != nil || cookie != s.NetnsCookie {
		return told, err
	}
	for _, a := range found {
		if !slices.ContainsFunc(told, func(b netip.Addr) bool { return model.FamilyOf(a) == model.FamilyOf(b) }) {
			told = append(told, a)
		}
	}
	return told, nil
}

// lookIntoNetns enters the network namespace of a process, on a thread that ends with it.
func lookIntoNetns(pid int) (cookie uint64, addresses []netip.Addr, err error) {
	target, err := netns.GetFromPid(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil, fmt.Errorf("find the network namespace of process %d: there is no such process", pid)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("find the network namespace of process %d: %w: run as root", pid, err)
	}
	defer target.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine and takes the foreign namespace with it.
		runtime.LockOSThread()
		if err = netns.Set(target); err != nil {
			err = fmt.Errorf("enter the network namespace of process %d: %w: run as root", pid, err)
			return
		}
		cookie, addresses, err = identifyNetns()
	}()
	<-done
	return cookie, addresses, err
}

// identifyNetns returns what the programs know a network namespace by: its cookie, and the first address of each
// family that others see (bpf/netns.h).
func identifyNetns() (uint64, []netip.Addr, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("open a socket to identify the network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil, errors.New("identify the network namespace: this kernel is too old, Linux 5.14 or later is needed")
	}
	if err != nil {
		return 0, nil, fmt.Errorf("identify the network namespace: %w", err)
	}
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return 0, nil, fmt.Errorf("list the addresses of the network namespace: %w", err)
	}
	return cookie, firstOfEachFamily(list), nil
}

func firstOfEachFamily(list []netlink.Addr) []netip.Addr {
	var first []netip.Addr
	for _, entry := range list {
		a, ok := netip.AddrFromSlice(entry.IP)
		a = a.Unmap()
		if !ok || a.IsLoopback() || a.IsLinkLocalUnicast() {
			continue
		}
		sameFamily := func(b netip.Addr) bool { return model.FamilyOf(a) == model.FamilyOf(b) }
		if !slices.ContainsFunc(first, sameFamily) {
			first = append(first, a)
		}
	}
	return first
}
