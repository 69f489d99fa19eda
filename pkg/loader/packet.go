// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// PacketOptions are what LoadPackets needs to know.
type PacketOptions struct {
	// Flows is how many flows can be tracked at once; 0: from the node's memory.
	Flows uint32
	// NodeAddress4 and NodeAddress6 are what backends on other nodes see, where the kernel cannot tell the address of a
	// route (before 6.7, unless the distribution has added it); invalid: there is none.
	NodeAddress4, NodeAddress6 netip.Addr
	// Log receives the verifier's words at level Debug, when a program is refused.
	Log *slog.Logger
}

// Packets is the programs of the packet path, in the kernel, over the maps of a Datapath. Nothing is attached yet.
type Packets struct {
	// Programs are tc_ingress and tc_egress, for devices with an Ethernet header, and tc_ingress_l3 and tc_egress_l3.
	Programs map[string]*ebpf.Program
	// Flows is how many can be tracked at once.
	Flows uint32

	settings, devices *ebpf.Map
}

const (
	// bytesPerFlow of the node's memory are behind one flow: the maps then take about 0.7 percent.
	bytesPerFlow = 1 << 16
	minFlows     = 1 << 14
	maxFlows     = 1 << 20
)

// PacketSpec returns the programs of the packet path and all maps that they declare, as compiled.
func PacketSpec() (*ebpf.CollectionSpec, error) {
	spec, err := loadTc()
	if err != nil {
		return nil, fmt.Errorf("read the compiled packet programs: %w", err)
	}
	return spec, nil
}

// LoadPackets loads the programs of the packet path over the maps that d has, and over maps of their own, which are
// pinned like those. The maps belong to d; the programs must not be attached before Configure.
func (d *Datapath) LoadPackets(o PacketOptions) (*Packets, error) {
	spec, err := PacketSpec()
	if err != nil {
		return nil, err
	}
	values := settings{NodeAddress4: addressOrZero(o.NodeAddress4), NodeAddress6: addressOrZero(o.NodeAddress6)}
	if err := spec.Variables["settings"].Set(values); err != nil {
		return nil, fmt.Errorf("set settings: %w", err)
	}
	if err := d.openPacketMaps(spec, o); err != nil {
		return nil, err
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: d.replacements(spec)})
	if err != nil {
		return nil, programError(err, o.Log)
	}
	defer collection.Close()
	p := &Packets{
		Programs: map[string]*ebpf.Program{},
		Flows:    min(d.Maps[maps.MapConntrack].MaxEntries()/2, d.Maps[maps.MapConntrackRing].MaxEntries()),
		settings: d.Maps[maps.MapPacketSettings],
		devices:  d.Maps[maps.MapDevices],
	}
	for name := range spec.Programs {
		p.Programs[name] = collection.DetachProgram(name)
	}
	return p, nil
}

// openPacketMaps gives each map of the spec the size that it has or shall have, and opens or makes those that d lacks.
func (d *Datapath) openPacketMaps(spec *ebpf.CollectionSpec, o PacketOptions) error {
	m, err := thisMachine()
	if err != nil {
		return err
	}
	keepMaps(spec)
	delete(spec.Maps, maps.MapServiceNames)
	flows := orElse(o.Flows, clamp(powerOfTwo(m.memory/bytesPerFlow), minFlows, maxFlows))
	spec.Maps[maps.MapConntrack].MaxEntries = 2 * flows
	spec.Maps[maps.MapConntrackRing].MaxEntries = flows
	spec.Maps[maps.MapPacketStats].MaxEntries = d.Maps[maps.MapServiceStats].MaxEntries()
	for _, name := range sortedNames(spec.Maps) {
		if open, ok := d.Maps[name]; ok {
			spec.Maps[name].MaxEntries = open.MaxEntries()
		} else if pinned(name) {
			if _, err := d.openMap(spec.Maps[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// replacements are the maps of d that the spec has: a collection refuses any others.
func (d *Datapath) replacements(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	open := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if m, ok := d.Maps[name]; ok {
			open[name] = m
		}
	}
	return open
}

// Configure sets what may change while the programs run. FlowCapacity is filled in.
func (p *Packets) Configure(s maps.PacketSettings) error {
	s.FlowCapacity = p.Flows
	if err := p.settings.Put(uint32(0), s); err != nil {
		return fmt.Errorf("write map %s: %w", maps.MapPacketSettings, permission(err))
	}
	return nil
}

// SetDevice tells the programs about a device, by its index.
func (p *Packets) SetDevice(index int, d maps.Device) error {
	if err := p.devices.Put(uint32(index), d); err != nil {
		return fmt.Errorf("write map %s: %w", maps.MapDevices, permission(err))
	}
	return nil
}

// RemoveDevice makes the programs forget a device.
func (p *Packets) RemoveDevice(index int) error {
	if err := p.devices.Delete(uint32(index)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("write map %s: %w", maps.MapDevices, permission(err))
	}
	return nil
}

// Close closes the programs; where they are attached they go on.
func (p *Packets) Close() error {
	var errs []error
	for _, program := range p.Programs {
		errs = append(errs, program.Close())
	}
	return errors.Join(errs...)
}
