// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/netdev"
)

// packetPath keeps the packet programs on the node's devices, and tells them what they must know of node and cluster.
type packetPath struct {
	cfg      *config.Config
	loaded   *loader.Packets
	attacher *attach.PacketPath
	// devices is the map of that name.
	devices *ebpf.Map
	log     *slog.Logger

	// ports are the devices that have the programs. They belong to the goroutine that watches devices.
	ports map[int]netdev.Port

	mu       sync.Mutex // guards what follows
	settings maps.PacketSettings
	// ranges are those of ClusterIPs; they take effect when all Services are programmed, for addresses in them that no
	// Service has are dropped.
	ranges     []netip.Prefix
	programmed bool
}

// openPacketPath loads the packet programs and gives them their settings; nothing is attached yet.
func openPacketPath(cfg *config.Config, d *loader.Directory, datapath *loader.Datapath, log *slog.Logger) (*packetPath, error) {
	loaded, err := datapath.LoadPackets(loader.PacketOptions{
		Flows:        cfg.MaxFlows,
		NodeAddress4: netdev.OwnAddress(model.IPv4),
		NodeAddress6: netdev.OwnAddress(model.IPv6),
		Log:          log,
	})
	if err != nil {
		return nil, err
	}
	p := &packetPath{cfg: cfg, loaded: loaded, devices: datapath.Maps[maps.MapDevices], log: log,
		ports: map[int]netdev.Port{}}
	if err := p.prepare(d, datapath); err != nil {
		return nil, errors.Join(err, loaded.Close())
	}
	return p, nil
}

func (p *packetPath) prepare(d *loader.Directory, datapath *loader.Datapath) error {
	var err error
	if p.attacher, err = attach.NewPacketPath(d, p.loaded.Programs, attach.TCMode(p.cfg.TCAttach)); err != nil {
		return err
	}
	if p.settings, err = packetSettings(p.cfg); err != nil {
		return err
	}
	// What an earlier agent knew of the cluster holds until this one knows better.
	var before maps.PacketSettings
	if err := datapath.Maps[maps.MapPacketSettings].Lookup(uint32(0), &before); err != nil {
		return fmt.Errorf("read map %s: %w", maps.MapPacketSettings, err)
	}
	p.settings.Services = before.Services
	if p.cfg.DetectLocalMode == config.LocalModeNodeCIDR {
		p.settings.Pods = before.Pods
	}
	return p.loaded.Configure(p.settings)
}

// packetSettings are the settings as far as the configuration and this kernel decide.
func packetSettings(cfg *config.Config) (maps.PacketSettings, error) {
	s := maps.DefaultPacketSettings()
	content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return s, fmt.Errorf("read the range of local ports: %w", err)
	}
	var low, high uint16
	if _, err := fmt.Sscan(string(content), &low, &high); err != nil {
		return s, fmt.Errorf("read the range of local ports %q: %w", content, err)
	}
	s.SNATPortMin, s.SNATPortMax = snatPorts(low, high)
	for flag, on := range map[maps.PacketFlags]bool{
		maps.PacketNodePods:           cfg.DetectLocalMode != config.LocalModeClusterCIDR,
		maps.PacketDevicePods:         podsByDevice(cfg.DetectLocalMode),
		maps.PacketMasqueradeAll:      cfg.MasqueradeAll,
		maps.PacketMasqueradeExternal: cfg.MasqueradeExternal,
		maps.PacketNodeClients:        cfg.SocketLB == config.SocketLBOff,
	} {
		if on {
			s.Flags |= flag
		}
	}
	if cfg.DetectLocalMode == config.LocalModeClusterCIDR {
		var prefixes []netip.Prefix
		for _, text := range cfg.ClusterCIDRs {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return s, fmt.Errorf("read clusterCIDR: %w", err)
			}
			prefixes = append(prefixes, prefix)
		}
		s.Pods = prefixArray(prefixes)
	}
	return s, nil
}

func podsByDevice(mode config.LocalMode) bool {
	return mode == config.LocalModeBridgeInterface || mode == config.LocalModeInterfaceNamePrefix
}

// firstUserPort is the first port that needs no privilege; fewSNATPorts are too few to be worth a range of their own.
const (
	firstUserPort = 1024
	fewSNATPorts  = 1024
)

// snatPorts returns source ports for masqueraded clients, beside the range from which the kernel takes ports for the
// node's own connections: below it or above it, where there are more, for as many flows to one backend can be told apart
// at once. Where it leaves too little, they are the upper quarter of all; the programs ask for each port whether a socket
// has it.
func snatPorts(low, high uint16) (first, last uint16) {
	const top = 65535
	above, below := top-int(high), int(low)-firstUserPort
	switch {
	case max(above, below) < fewSNATPorts:
		return top - top/4, top
	case above >= below:
		return high + 1, top
	}
	return firstUserPort, low - 1
}

// prefixArray puts as many prefixes as there is room for into map form.
func prefixArray(prefixes []netip.Prefix) (array [maps.PacketPrefixes]maps.Prefix) {
	for i, p := range prefixes[:min(len(prefixes), len(array))] {
		bits := p.Bits()
		if p.Addr().Is4() {
			bits += 96
		}
		array[i] = maps.Prefix{Address: maps.AddressOf(p.Masked().Addr()), Bits: uint32(bits)}
	}
	return array
}

// run watches devices until ctx ends.
func (p *packetPath) run(ctx context.Context) error {
	p.log.Info("the packet path is on", "attach", p.attacher.Mode, "flows", p.loaded.Flows)
	return netdev.WatchDevices(ctx, p.log, p)
}

// setServiceRanges takes the ranges of ClusterIPs.
func (p *packetPath) setServiceRanges(ranges []netip.Prefix) {
	if len(ranges) > maps.PacketPrefixes {
		p.log.Warn("the packet path has room for fewer ranges of ClusterIPs: in the others, packets to addresses that no "+
			"Service has are not dropped", "ranges", len(ranges), "room", maps.PacketPrefixes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ranges = ranges
	p.applyServiceRanges()
}

// setProgrammed says that all Services have been programmed once.
func (p *packetPath) setProgrammed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.programmed = true
	p.applyServiceRanges()
}

func (p *packetPath) applyServiceRanges() {
	if p.programmed {
		p.settings.Services = prefixArray(p.ranges)
		p.configure()
	}
}

// setPodRanges takes the Node object's ranges of pods.
func (p *packetPath) setPodRanges(ranges []netip.Prefix) {
	if p.cfg.DetectLocalMode != config.LocalModeNodeCIDR {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings.Pods = prefixArray(ranges)
	p.configure()
}

func (p *packetPath) configure() {
	if err := p.loaded.Configure(p.settings); err != nil {
		p.log.Error("the packet path's settings are not up to date", "err", err)
	}
}

// All implements netdev.DeviceHandler.
func (p *packetPath) All(devices []netdev.Device) {
	there, wanted := map[int]bool{}, map[int]bool{}
	for _, d := range devices {
		there[d.Index] = true
		p.Changed(d)
		if _, ok := netdev.Decide(d, p.cfg.Devices); ok {
			wanted[d.Index] = true
		}
	}
	for index := range p.ports {
		if !there[index] {
			p.Gone(index)
		}
	}
	// What an earlier agent has left on others, or attached in the other way.
	if err := errors.Join(p.attacher.Retain(wanted), p.forget(wanted)); err != nil {
		p.log.Warn("programs may have stayed where they are no longer wanted", "err", err)
	}
}

// forget removes what an earlier agent has told the programs of other devices than these.
func (p *packetPath) forget(wanted map[int]bool) error {
	var unwanted []int
	var index uint32
	var device maps.Device
	all := p.devices.Iterate()
	for all.Next(&index, &device) {
		if !wanted[int(index)] {
			unwanted = append(unwanted, int(index))
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read map %s: %w", maps.MapDevices, err)
	}
	var errs []error
	for _, index := range unwanted {
		errs = append(errs, p.loaded.RemoveDevice(index))
	}
	return errors.Join(errs...)
}

// Changed implements netdev.DeviceHandler.
func (p *packetPath) Changed(d netdev.Device) {
	port, wanted := netdev.Decide(d, p.cfg.Devices)
	if !wanted {
		if _, had := p.ports[d.Index]; had {
			p.Gone(d.Index)
		}
		return
	}
	if err := p.attach(port); err != nil {
		if !attach.IsGone(err) {
			p.log.Warn("a device has no packet programs, it is tried again", "device", d.Name, "err", err)
		}
		return
	}
	if _, had := p.ports[d.Index]; !had {
		p.log.Debug("attached", "device", d.Name, "index", d.Index)
	}
	p.ports[d.Index] = port
}

// attach tells the programs of a device first; one that there is no room for has them all the same.
func (p *packetPath) attach(port netdev.Port) error {
	return errors.Join(p.loaded.SetDevice(port.Index, p.deviceOf(port)), p.attacher.Attach(port.Index, port.Ethernet))
}

// Gone implements netdev.DeviceHandler.
func (p *packetPath) Gone(index int) {
	delete(p.ports, index)
	if err := errors.Join(p.attacher.Detach(index), p.loaded.RemoveDevice(index)); err != nil {
		p.log.Warn("a device that is gone, or not wanted any more, has left something behind", "index", index, "err", err)
	}
}

// deviceOf is what the programs are told of a device.
func (p *packetPath) deviceOf(port netdev.Port) maps.Device {
	var d maps.Device
	copy(d.MAC[:], port.MAC)
	for flag, on := range map[maps.DeviceFlags]bool{
		maps.DevicePods:       hasPods(p.cfg, port),
		maps.DeviceBridgePort: port.BridgePort,
		maps.DeviceBehindNode: port.BehindNode,
		maps.DeviceEthernet:   port.Ethernet,
	} {
		if on {
			d.Flags |= flag
		}
	}
	return d
}

// hasPods tells whether pods are behind a device, as the modes say that go by its name. A packet that comes in by the
// port of a bridge comes in by the bridge, for kube-proxy.
func hasPods(cfg *config.Config, port netdev.Port) bool {
	names := []string{port.Name}
	if port.BridgePort {
		names = append(names, port.Master.Name)
	}
	for _, name := range names {
		switch cfg.DetectLocalMode {
		case config.LocalModeBridgeInterface:
			if name == cfg.PodBridgeInterface {
				return true
			}
		case config.LocalModeInterfaceNamePrefix:
			if strings.HasPrefix(name, cfg.PodInterfaceNamePrefix) {
				return true
			}
		}
	}
	return false
}
