// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/events"
	"github.com/shunt-lb/shunt/pkg/health"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/metrics"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/netdev"
	"github.com/shunt-lb/shunt/pkg/node"
	"github.com/shunt-lb/shunt/pkg/reconcile"
	"github.com/shunt-lb/shunt/pkg/source"
	"github.com/shunt-lb/shunt/pkg/version"
)

// auditPeriod is the pause between two parts of the audit, of which there is one for each map.
const auditPeriod = time.Minute

// agent is the running parts.
type agent struct {
	cfg       *config.Config
	log       *slog.Logger
	datapath  *datapath
	nodePorts node.NodePortAddresses
	proxy     *health.Proxy
	services  *health.Services
	metrics   *metrics.Metrics

	mu sync.Mutex
	// ips are the node's chosen addresses, onDevices those that its devices have.
	ips       node.IPs
	onDevices []netip.Addr
	// checked: the configuration has been compared with the node.
	checked bool
}

// Run runs the agent until ctx ends, then it returns nil: what is programmed stays. watchConfig returns an error when
// the configuration has changed and the agent is to be started again.
func Run(ctx context.Context, cfg *config.Config, watchConfig func(context.Context) error, log *slog.Logger) error {
	a := &agent{cfg: cfg, log: log}
	if err := a.prepare(); err != nil {
		return err
	}
	// The source's configuration is read before anything changes in the kernel.
	from, reporter, err := newSource(cfg, log)
	if err != nil {
		return err
	}
	if a.datapath, err = openDatapath(cfg, log); err != nil {
		return err
	}
	defer func() {
		if err := a.datapath.close(); err != nil {
			log.Warn("closing failed", "err", err)
		}
	}()
	a.makeServers(reporter)
	defer a.services.Close()
	log.Info("shunt agent starts", "version", version.Get().String(), "node", cfg.NodeName)
	reporter.Record(starting(cfg.NodeName))
	trace := &traceReader{buffer: a.datapath.loaded.Maps[maps.MapTrace], names: a.datapath.kernel.ServiceName,
		reporter: reporter, log: log}
	parts := []func(context.Context) error{watchConfig, reporter.Run, trace.run, a.reconciler(from, reporter).Run}
	if a.datapath.packets != nil {
		parts = append(parts, a.datapath.packets.run)
	}
	if cfg.SocketLB != config.SocketLBOff {
		parts = append(parts, a.datapath.keepAttached(cfg, log))
	}
	return a.run(ctx, parts...)
}

// starting is the Event that kube-proxy records too.
func starting(nodeName string) events.Event {
	e := events.OnNode(nodeName, events.ReasonStarting, events.ActionStart, "shunt agent starts")
	e.Normal = true
	return e
}

// prepare does what needs no datapath.
func (a *agent) prepare() error {
	var err error
	if a.nodePorts, err = node.ParseNodePortAddresses(a.cfg.NodePortAddresses); err != nil {
		return fmt.Errorf("read nodePortAddresses: %w", err)
	}
	if err := a.cfg.ApplySysctls(config.OSFiles{}, runtime.NumCPU(), a.log); err != nil {
		return err
	}
	if err := a.cfg.ApplyOOMScore(config.OSFiles{}); err != nil {
		a.log.Info("this process's score for the out-of-memory killer stays", "err", err)
	}
	return nil
}

// makeServers makes what the health and metrics servers serve.
func (a *agent) makeServers(reporter *events.Recorder) {
	build := version.Get()
	a.metrics = metrics.New(metrics.Options{
		Source:  a.datapath.kernel,
		Reason:  maps.ReasonWord,
		Version: build.Version,
		Commit:  build.Commit,
		Log:     a.log,
	})
	a.proxy = health.NewProxy(health.ProxyOptions{SyncPeriod: a.cfg.SyncPeriod.Duration, Answered: a.metrics.Answered})
	a.services = health.NewServices(health.ServicesOptions{
		Listeners: a.healthListeners,
		Healthy:   a.proxy.Healthy,
		Opened: func(name model.ServiceName, family model.Family, err error) {
			var problems []events.Event
			if err != nil {
				problems = []events.Event{events.OnService(name, events.ReasonServiceHealthcheck, events.ActionListen, err.Error())}
			}
			reporter.Set(events.HealthPort(name, family), problems)
		},
	})
}

func (a *agent) reconciler(from source.Source, reporter *events.Recorder) *reconcile.Reconciler {
	return reconcile.New(reconcile.Options{
		Source:      withServiceRanges(from, a.datapath.packets),
		Model:       model.New(model.Config{Node: model.Node{Name: a.cfg.NodeName}}),
		Writer:      a.datapath.writer,
		NodePorts:   a.nodePorts,
		BindAddress: bindAddress(a.cfg),
		WatchAddresses: func(ctx context.Context, changed func([]netip.Addr)) error {
			return netdev.WatchAddresses(ctx, a.log, func(now []netip.Addr) {
				a.setAddresses(now)
				changed(now)
			})
		},
		EndStale:    a.datapath.endStale(),
		Audit:       func() (string, error) { return a.datapath.writer.Audit(a.datapath.kernel) },
		AuditPeriod: auditPeriod,
		Observer: newObserver(observer{
			proxy: a.proxy, services: a.services, metrics: a.metrics, reporter: reporter, log: a.log,
			nodeChanged: a.nodeChanged, allProgrammed: a.allProgrammed, nodeOptional: a.cfg.Manifests != "",
		}),
		MinSyncPeriod: a.cfg.MinSyncPeriod.Duration,
		SyncPeriod:    a.cfg.SyncPeriod.Duration,
		Log:           a.log,
	})
}

// run runs all parts until ctx ends or one of them gives up.
func (a *agent) run(ctx context.Context, more ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	healthz := &health.Server{Name: "healthz", Address: a.cfg.HealthzBindAddress, Handler: a.proxy.Handler(),
		HardFail: a.cfg.BindAddressHardFail, Log: a.log}
	metricsServer := &health.Server{Name: "metrics", Address: a.cfg.MetricsBindAddress,
		Handler:  health.MetricsHandler(a.metrics.Handler(), a.cfg.Configz, a.cfg.Profiling),
		HardFail: a.cfg.BindAddressHardFail, Log: a.log}
	var parts sync.WaitGroup
	for _, part := range append(more, healthz.Run, metricsServer.Run) {
		parts.Go(func() {
			if err := part(ctx); err != nil {
				cancel(err)
			}
		})
	}
	parts.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	a.log.Info("shunt agent ends: what is programmed goes on working")
	return nil
}

// nodeChanged remembers the node's addresses and compares the configuration with the node, once it is known.
func (a *agent) nodeChanged(n *source.Node, ips node.IPs) {
	a.mu.Lock()
	a.ips = ips
	if a.datapath.packets != nil && n != nil {
		a.datapath.packets.setPodRanges(n.PodCIDRs)
	}
	first := !a.checked && n != nil
	a.checked = a.checked || first
	a.mu.Unlock()
	if !first {
		return
	}
	warnings, err := a.cfg.Check(config.Node{Primary: ips.Primary, Families: kernelFamilies(), PodCIDRs: n.PodCIDRs})
	if err != nil {
		a.log.Error("the configuration does not fit this node", "err", err)
	}
	for _, f := range kernelFamilies() {
		if w := a.nodePorts.ForFamily(f, ips).Warning(); w != "" {
			warnings = append(warnings, w)
		}
	}
	for _, w := range warnings {
		a.log.Warn(w)
	}
}

// allProgrammed passes on that every Service has been programmed once.
func (a *agent) allProgrammed() {
	if a.datapath.packets != nil {
		a.datapath.packets.setProgrammed()
	}
}

// setAddresses remembers the addresses of the node's devices.
func (a *agent) setAddresses(now []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onDevices = now
}

// healthListeners says where health check node ports listen: where node ports are served.
func (a *agent) healthListeners(f model.Family) ([]netip.Addr, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	matcher := a.nodePorts.ForFamily(f, a.ips)
	if matcher.All {
		return nil, true
	}
	return matcher.Select(a.onDevices), false
}
