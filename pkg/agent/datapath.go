// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/flows"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/netdev"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/reconcile"
	"github.com/shunt-lb/shunt/pkg/writer"
)

// datapath is what the agent has in the kernel, and its ways to it.
type datapath struct {
	directory *loader.Directory
	loaded    *loader.Datapath
	kernel    *maps.Kernel
	writer    *writer.Writer
	// packets is nil where the packet path is off.
	packets *packetPath
	// stale is nil where the kernel cannot list the sockets of a map.
	stale *flows.Ender
}

// openDatapath takes the lock on this node's state, loads and attaches the programs, and reads back what an earlier
// agent has programmed.
func openDatapath(cfg *config.Config, log *slog.Logger) (*datapath, error) {
	directory, err := loader.Lock(cfg.BPFFS)
	if err != nil {
		return nil, err
	}
	d := &datapath{directory: directory}
	if err := d.open(cfg, log); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *datapath) open(cfg *config.Config, log *slog.Logger) error {
	// Before anything is made: without a cgroup nothing would use it.
	cgroup, err := attach.CgroupRoot(cfg.CgroupRoot)
	if err != nil {
		return err
	}
	d.loaded, err = loader.Load(loader.Options{
		Directory: d.directory,
		Capacity: loader.Capacity{
			Services:     cfg.MaxServices,
			Backends:     cfg.MaxBackends,
			Slots:        cfg.MaxSlots,
			Affinity:     cfg.MaxAffinity,
			SourceRanges: cfg.MaxSourceRanges,
		},
		LoopbackNodePorts: cfg.LoopbackNodePorts(),
		NodeAddress4:      nodeAddress(cfg, model.IPv4),
		NodeAddress6:      nodeAddress(cfg, model.IPv6),
		HostOnly:          cfg.SocketLB == config.SocketLBHost,
		RefuseBind:        cfg.RefuseNodePortBind,
		Log:               log,
	})
	if err != nil {
		return err
	}
	for _, r := range d.loaded.Resized {
		log.Warn("a pinned map has another size than asked for", "map", r.Map, "err", r.String())
	}
	if err := d.openPackets(cfg, log); err != nil {
		return err
	}
	if d.kernel, err = maps.Open(d.directory.Path, maps.Options{}); err != nil {
		return err
	}
	if err := d.readBack(log); err != nil {
		return err
	}
	if err := d.attach(cfg, cgroup, log); err != nil {
		return err
	}
	d.stale, err = flows.NewEnder(d.loaded.Maps[maps.MapBackends], d.loaded.Maps["socket_flows"])
	if err != nil {
		log.Warn("connected UDP sockets will not be ended when their backend goes", "err", err)
	}
	return nil
}

// nodeAddress is the address that source ranges judge the node's own processes by: the one of --bind-address, else what
// the kernel takes for the way out. By the first address of any device, a load balancer's that sits on lo would stand
// for the node.
func nodeAddress(cfg *config.Config, f model.Family) netip.Addr {
	if bind := bindAddress(cfg); bind.IsValid() && model.FamilyOf(bind) == f {
		return bind
	}
	return netdev.OwnAddress(f)
}

// bindAddress is the address of --bind-address, which has been validated; invalid where it is unspecified and overrides
// nothing.
func bindAddress(cfg *config.Config) netip.Addr {
	bind, _ := netip.ParseAddr(cfg.BindAddress)
	if bind.IsUnspecified() {
		return netip.Addr{}
	}
	return bind
}

// openPackets loads the packet path's programs, or takes them off the devices when it is off.
func (d *datapath) openPackets(cfg *config.Config, log *slog.Logger) error {
	if !cfg.PacketPath {
		return attach.DetachPackets(d.directory)
	}
	var err error
	d.packets, err = openPacketPath(cfg, d.directory, d.loaded, log)
	return err
}

// readBack makes the writer, over what is programmed already.
func (d *datapath) readBack(log *slog.Logger) error {
	limits := writer.LimitsOf(d.kernel)
	state := plan.New(limits)
	if !d.loaded.Fresh {
		var err error
		if state, err = writer.ReadBack(d.kernel, limits); err != nil {
			return fmt.Errorf("read what an earlier agent has programmed: %w", err)
		}
		log.Info("took over what an earlier agent has programmed", "pins", d.directory.Path)
	}
	d.writer = writer.New(d.kernel, state, writer.Options{})
	return nil
}

// attach puts the programs on the cgroup, or takes them off it when the socket path is off.
func (d *datapath) attach(cfg *config.Config, cgroup string, log *slog.Logger) error {
	if cfg.SocketLB == config.SocketLBOff {
		return attach.Detach(d.directory)
	}
	if err := attach.Sockets(d.directory, cgroup, d.loaded.Programs); err != nil {
		return err
	}
	log.Info("attached", "cgroup", cgroup, "programs", len(d.loaded.Programs))
	return nil
}

// endStale is the reconciler's EndStale; nil where it is not possible.
func (d *datapath) endStale() func(reconcile.Keep) (int, error) {
	if d.stale == nil {
		return nil
	}
	return func(keep reconcile.Keep) (int, error) {
		return d.stale.EndStale(func(s flows.Stale) bool {
			name, found, err := d.kernel.ServiceName(s.ServiceID)
			return err == nil && found && keep(writer.PortName(name), s.Peer)
		})
	}
}

// close lets go of everything; what is pinned stays.
func (d *datapath) close() error {
	var errs []error
	if d.stale != nil {
		errs = append(errs, d.stale.Close())
	}
	if d.packets != nil {
		errs = append(errs, d.packets.loaded.Close())
	}
	if d.kernel != nil {
		d.kernel.Close()
	}
	if d.loaded != nil {
		errs = append(errs, d.loaded.Close())
	}
	return errors.Join(append(errs, d.directory.Close())...)
}
