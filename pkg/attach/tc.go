// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/shunt-lb/shunt/pkg/loader"
	"golang.org/x/sys/unix"
)

// PacketLinksName is the directory of the packet path's links in that of the other links.
const PacketLinksName = "tc"

// TCMode says how programs get onto a device.
type TCMode string

// The values of TCMode.
const (
	// TCAuto is TCX where the kernel has it (6.6), else clsact.
	TCAuto   TCMode = "auto"
	TCX      TCMode = "tcx"
	TCClsact TCMode = "clsact"
)

// Hook is where on a device a program runs.
type Hook string

// The hooks.
const (
	Ingress Hook = "ingress"
	Egress  Hook = "egress"
)

var hooks = []Hook{Ingress, Egress}

func (h Hook) attachType() ebpf.AttachType {
	if h == Ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

// PacketPath attaches the packet programs to devices of this process' network namespace. It is not safe for concurrent
// use.
type PacketPath struct {
	// Mode is TCX or TCClsact: what is in use.
	Mode      TCMode
	directory string
	programs  map[string]*ebpf.Program
	ids       map[string]ebpf.ProgramID
}

// NewPacketPath prepares to attach the packet programs.
func NewPacketPath(d *loader.Directory, programs map[string]*ebpf.Program, mode TCMode) (*PacketPath, error) {
	p := &PacketPath{Mode: mode, directory: packetLinks(d.Path), programs: programs, ids: map[string]ebpf.ProgramID{}}
	if mode == TCAuto {
		p.Mode = TCClsact
		if hasTCX() {
			p.Mode = TCX
		}
	}
	for name, program := range programs {
		info, err := program.Info()
		if err != nil {
			return nil, fmt.Errorf("read program %s: %w", name, err)
		}
		id, ok := info.ID()
		if !ok {
			return nil, fmt.Errorf("read program %s: the kernel gives it no id", name)
		}
		p.ids[name] = id
	}
	if p.Mode != TCX {
		return p, nil
	}
	if err := os.MkdirAll(p.directory, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of links: %w", err)
	}
	return p, nil
}

func packetLinks(pins string) string { return filepath.Join(pins, LinksName, PacketLinksName) }

// hasTCX asks the kernel what is attached to loopback, which each namespace has.
func hasTCX() bool {
	const loopback = 1
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	return err == nil
}

// programName is that of the compiled programs.
func programName(h Hook, ethernet bool) string {
	name := "tc_" + string(h)
	if !ethernet {
		name += "_l3"
	}
	return name
}

// Attach makes sure that a device has the programs, once, whoever attached them.
func (p *PacketPath) Attach(index int, ethernet bool) error {
	for _, h := range hooks {
		name := programName(h, ethernet)
		attach := p.attachLink
		if p.Mode == TCClsact {
			attach = p.attachFilter
		}
		if err := attach(index, h, name); err != nil {
			return fmt.Errorf("attach %s to device %d: %w", name, index, err)
		}
	}
	return nil
}

// attachLink attaches by a pinned TCX link.
func (p *PacketPath) attachLink(index int, h Hook, name string) error {
	path := filepath.Join(p.directory, linkName(index, h))
	kept, err := update(path, p.programs[name], func(info *link.Info) (bool, error) {
		on := info.TCX()
		if on == nil || int(on.Ifindex) != index || ebpf.AttachType(on.AttachType) != h.attachType() {
			return false, nil
		}
		// The index may be that of a device in the namespace to which this one has moved.
		return isOn(index, h, info.ID)
	})
	if kept || err != nil {
		return err
	}
	// First where packets come in and last where they leave: other programs see what the kernel's routing sees.
	anchor := link.Head()
	if h == Egress {
		anchor = link.Tail()
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: index, Program: p.programs[name], Attach: h.attachType(), Anchor: anchor,
	})
	if err != nil {
		return err
	}
	defer l.Close()
	return pin(l, path)
}

// isOn asks the device whether a link is on it.
func isOn(index int, h Hook, id link.ID) (bool, error) {
	attached, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: h.attachType()})
	if err != nil {
		return false, fmt.Errorf("list programs of device %d: %w", index, err)
	}
	for _, program := range attached.Programs {
		if on, ok := program.LinkID(); ok && on == id {
			return true, nil
		}
	}
	return false, nil
}

func linkName(index int, h Hook) string { return strconv.Itoa(index) + "-" + string(h) }

// Detach takes the programs off a device. It may be gone already.
func (p *PacketPath) Detach(index int) error {
	var errs []error
	for _, h := range hooks {
		err := detach(filepath.Join(p.directory, linkName(index, h)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("detach device %d: %w", index, err))
		}
	}
	if p.Mode == TCClsact {
		errs = append(errs, removeFilters(index))
	}
	return errors.Join(errs...)
}

// Retain takes the programs off all devices but these, and what the other mode has attached off all.
func (p *PacketPath) Retain(devices map[int]bool) error {
	links, filters := devices, devices
	if p.Mode == TCX {
		filters = nil
	} else {
		links = nil
	}
	return errors.Join(retainLinks(p.directory, links), retainFilters(filters))
}

func retainLinks(directory string, devices map[int]bool) error {
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read directory of links: %w", err)
	}
	var errs []error
	for _, e := range entries {
		index, _, whole := parseLinkName(e.Name())
		if whole && devices[index] {
			continue
		}
		if err := detach(filepath.Join(directory, e.Name())); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", e.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// parseLinkName undoes linkName; false for the name of a link that is half made.
func parseLinkName(name string) (int, Hook, bool) {
	number, hook, _ := strings.Cut(name, "-")
	index, err := strconv.Atoi(number)
	return index, Hook(hook), err == nil && (Hook(hook) == Ingress || Hook(hook) == Egress)
}

// DetachPackets takes the packet programs off every device.
func DetachPackets(d *loader.Directory) error {
	directory := packetLinks(d.Path)
	if err := errors.Join(retainLinks(directory, nil), retainFilters(nil)); err != nil {
		return err
	}
	if err := os.Remove(directory); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove directory of links: %w", err)
	}
	return nil
}

// PacketAttachment is one packet program on one device.
type PacketAttachment struct {
	// Device is its index; 0: the device has gone and the program is on none.
	Device  int
	Hook    Hook
	Mode    TCMode
	Program ebpf.ProgramID
}

// ListPackets tells what the packet path is attached to: by the links pinned below a bpffs, and by the filters of this
// process' network namespace. It needs no lock.
func ListPackets(bpffs string) ([]PacketAttachment, error) {
	directory := packetLinks(filepath.Join(bpffs, loader.DirectoryName))
	entries, err := os.ReadDir(directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read directory of links: %w", err)
	}
	var attachments []PacketAttachment
	for _, e := range entries {
		_, hook, whole := parseLinkName(e.Name())
		if !whole {
			continue
		}
		a, err := inspectPackets(filepath.Join(directory, e.Name()), hook)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a pod has gone meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read link %s: %w", e.Name(), err)
		}
		attachments = append(attachments, a)
	}
	filters, err := listFilters()
	return append(attachments, filters...), err
}

func inspectPackets(path string, h Hook) (PacketAttachment, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return PacketAttachment{}, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return PacketAttachment{}, err
	}
	a := PacketAttachment{Hook: h, Mode: TCX, Program: info.Program}
	if on := info.TCX(); on != nil {
		a.Device = int(on.Ifindex)
	}
	return a, nil
}

// IsGone tells errors that mean that a device has left in the meantime.
func IsGone(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) }
