// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// filterPrefix begins the name of each filter of shunt: by its name it is known, whatever its place.
const filterPrefix = "shunt_"

// filterHandle is what a filter of shunt has, if no other filter of its priority has it.
const filterHandle = 0x5354

// priority puts shunt's filter first where packets come in, and last where they leave.
func (h Hook) priority() uint16 {
	if h == Ingress {
		return 1
	}
	return 0xfffe
}

func (h Hook) parent() uint32 {
	if h == Ingress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

func deviceOf(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// attachFilter attaches by a filter of the device's clsact qdisc.
func (p *PacketPath) attachFilter(index int, h Hook, name string) error {
	if err := addClsact(index); err != nil {
		return err
	}
	filters, err := netlink.FilterList(deviceOf(index), h.parent())
	if err != nil {
		return fmt.Errorf("list filters: %w", err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: h.parent(), Handle: filterHandle, Protocol: unix.ETH_P_ALL, Priority: h.priority(),
		},
		Fd: p.programs[name].FD(), Name: filterPrefix + name, DirectAction: true,
	}
	if keepsFilter(filters, filter, p.ids[name]) {
		return nil
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("add filter (another qdisc than clsact may be in the way: tc qdisc show): %w", err)
	}
	return nil
}

// keepsFilter finds the place of the filter among those that are there: the one where an earlier one of shunt is, else
// one that is free. It reports true if the same program is there already.
func keepsFilter(there []netlink.Filter, filter *netlink.BpfFilter, program ebpf.ProgramID) bool {
	taken := map[uint32]bool{}
	for _, f := range there {
		other := f.Attrs()
		if other.Priority != filter.Priority {
			continue
		}
		if bpf, ok := f.(*netlink.BpfFilter); ok && strings.HasPrefix(bpf.Name, filterPrefix) {
			filter.Handle = other.Handle
			return ebpf.ProgramID(bpf.Id) == program
		}
		taken[other.Handle] = true
	}
	for taken[filter.Handle] {
		filter.Handle++
	}
	return false
}

func addClsact(index int) error {
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add qdisc clsact: %w", err)
	}
	return nil
}

// ownFilters are shunt's filters on a device.
func ownFilters(index int) (map[Hook][]*netlink.BpfFilter, error) {
	own := map[Hook][]*netlink.BpfFilter{}
	for _, h := range hooks {
		filters, err := netlink.FilterList(deviceOf(index), h.parent())
		// A device without the qdisc, or one that has gone.
		if errors.Is(err, unix.EINVAL) || IsGone(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list filters of device %d: %w", index, err)
		}
		for _, f := range filters {
			if bpf, ok := f.(*netlink.BpfFilter); ok && strings.HasPrefix(bpf.Name, filterPrefix) {
				own[h] = append(own[h], bpf)
			}
		}
	}
	return own, nil
}

// removeFilters takes shunt's filters off a device. The qdisc stays: it does nothing, and others may count on it.
func removeFilters(index int) error {
	own, err := ownFilters(index)
	if err != nil {
		return err
	}
	var errs []error
	for _, filters := range own {
		for _, f := range filters {
			if err := netlink.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) && !IsGone(err) {
				errs = append(errs, fmt.Errorf("remove filter of device %d: %w", index, err))
			}
		}
	}
	return errors.Join(errs...)
}

// clsactDevices are the devices that can have filters of shunt.
func clsactDevices() ([]int, error) {
	qdiscs, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	var devices []int
	for _, q := range qdiscs {
		if q.Type() == "clsact" {
			devices = append(devices, q.Attrs().LinkIndex)
		}
	}
	return devices, nil
}

// retainFilters removes shunt's filters from all devices but these.
func retainFilters(devices map[int]bool) error {
	all, err := clsactDevices()
	if err != nil {
		return err
	}
	var errs []error
	for _, index := range all {
		if !devices[index] {
			errs = append(errs, removeFilters(index))
		}
	}
	return errors.Join(errs...)
}

func listFilters() ([]PacketAttachment, error) {
	devices, err := clsactDevices()
	if err != nil {
		return nil, err
	}
	var attachments []PacketAttachment
	for _, index := range devices {
		own, err := ownFilters(index)
		if err != nil {
			return nil, err
		}
		for _, h := range hooks {
			for _, f := range own[h] {
				attachments = append(attachments, PacketAttachment{
					Device: index, Hook: h, Mode: TCClsact, Program: ebpf.ProgramID(f.Id),
				})
			}
		}
	}
	return attachments, nil
}
