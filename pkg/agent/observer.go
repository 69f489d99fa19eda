// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/shunt-lb/shunt/pkg/events"
	"github.com/shunt-lb/shunt/pkg/health"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/metrics"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/node"
	"github.com/shunt-lb/shunt/pkg/reconcile"
	"github.com/shunt-lb/shunt/pkg/source"
	"github.com/shunt-lb/shunt/pkg/writer"
)

var families = []model.Family{model.IPv4, model.IPv6}

// observer passes what the reconciler tells to the health checks, the metrics, the log and the Reporter.
type observer struct {
	proxy    *health.Proxy
	services *health.Services
	metrics  *metrics.Metrics
	reporter *events.Recorder
	log      *slog.Logger
	// nodeChanged has the node's facts for the rest of the agent.
	nodeChanged func(*source.Node, node.IPs)
	// allProgrammed is called when every Service has been programmed once.
	allProgrammed func()
	// nodeOptional: a node without a Node object is a good one, as there is no API server that would have it.
	nodeOptional bool

	pendingServices map[model.ServiceName]struct{}
	pendingSlices   map[model.SliceName]struct{}
	// noLocal counts, for each Service, the service ports whose local set is empty; noLocalSum all of them.
	noLocal    map[model.ServiceName]noLocal
	noLocalSum noLocal
}

var _ reconcile.Observer = (*observer)(nil)

// noLocal counts service ports by policy and family.
type noLocal map[noLocalKey]int

type noLocalKey struct {
	policy metrics.Policy
	family model.Family
}

func newObserver(o observer) *observer {
	o.pendingServices = map[model.ServiceName]struct{}{}
	o.pendingSlices = map[model.SliceName]struct{}{}
	o.noLocal = map[model.ServiceName]noLocal{}
	o.noLocalSum = noLocal{}
	return &o
}

// queued says that something waits to be programmed, in either family: a pass writes both.
func (o *observer) queued() {
	for _, f := range families {
		o.proxy.Queued(f)
		o.metrics.Queued(f)
	}
	o.metrics.Pending(len(o.pendingServices), len(o.pendingSlices))
}

// ServiceChanged implements reconcile.Observer.
func (o *observer) ServiceChanged(name model.ServiceName, uid string) {
	o.reporter.SetUID(name, uid)
	o.pendingServices[name] = struct{}{}
	o.metrics.ServiceChange()
	o.queued()
}

// SliceChanged implements reconcile.Observer.
func (o *observer) SliceChanged(name model.SliceName) {
	o.pendingSlices[name] = struct{}{}
	o.metrics.EndpointChange()
	o.queued()
}

// NodeChanged implements reconcile.Observer.
func (o *observer) NodeChanged(n *source.Node, ips node.IPs) {
	o.proxy.SetNode(n == nil && o.nodeOptional || n != nil && !n.Leaving)
	o.nodeChanged(n, ips)
}

// Problems implements reconcile.Observer.
func (o *observer) Problems(service model.ServiceName, problems []model.Problem) {
	var all []events.Event
	for _, p := range problems {
		all = append(all, events.FromModel(p))
	}
	o.reporter.Set(events.Model(service), all)
}

// SourceProblems implements reconcile.Observer.
func (o *observer) SourceProblems(origin, uid string, problems []source.Problem) {
	var all []events.Event
	for _, p := range problems {
		all = append(all, events.FromSource(p, uid))
	}
	o.reporter.Set(events.Origin{By: origin}, all)
}

// Programmed implements reconcile.Observer.
func (o *observer) Programmed(service model.ServiceName, ports []model.ServicePort, checks []model.HealthCheck) {
	o.services.Set(service, checks)
	o.reporter.Set(events.Programming(service), nil)
	for key, n := range o.noLocal[service] {
		o.noLocalSum[key] -= n
	}
	counts := noLocal{}
	for _, p := range ports {
		internal, external := p.NoLocal()
		if internal {
			counts[noLocalKey{metrics.PolicyInternal, p.Name.Family}]++
		}
		if external {
			counts[noLocalKey{metrics.PolicyExternal, p.Name.Family}]++
		}
	}
	for key, n := range counts {
		o.noLocalSum[key] += n
	}
	if len(counts) == 0 {
		delete(o.noLocal, service)
	} else {
		o.noLocal[service] = counts
	}
}

// stuck tells whether a pass has left a family behind. A full map does not: all that fits is programmed, restarting
// the agent would not help, and metrics and Events say it.
func stuck(p reconcile.Pass, f model.Family) bool {
	return slices.ContainsFunc(p.Failures, func(failure writer.Failure) bool {
		known := failure.Port.Family != 0
		return !errors.Is(failure.Err, maps.ErrFull) && (!known || failure.Port.Family == f)
	})
}

// Passed implements reconcile.Observer.
func (o *observer) Passed(p reconcile.Pass) {
	clear(o.pendingServices)
	clear(o.pendingSlices)
	o.metrics.Pending(0, 0)
	for _, f := range families {
		o.metrics.SyncDone(metrics.Sync{Family: f, Duration: p.Duration, Full: p.Full, Failed: len(p.Failures) > 0})
		if !stuck(p, f) {
			o.proxy.Updated(f)
		}
		for _, policy := range []metrics.Policy{metrics.PolicyInternal, metrics.PolicyExternal} {
			o.metrics.NoLocalEndpoints(policy, f, o.noLocalSum[noLocalKey{policy, f}])
		}
	}
	for _, l := range p.Latencies {
		o.metrics.ProgrammingLatency(l.Family, l.Duration)
	}
	o.services.Sync()
	if p.Full {
		o.proxy.SetReady()
		o.allProgrammed()
		// What the first full reading took will not be needed again.
		debug.FreeOSMemory()
	}
	o.reportFailures(p.Failures)
}

// reasonNotProgrammed is the reason of the Event about a Service that could not be written in full.
const reasonNotProgrammed = "NotProgrammed"

// reportFailures tells of what cannot be written of each Service that a pass was about.
func (o *observer) reportFailures(failures []writer.Failure) {
	all := map[model.ServiceName][]events.Event{}
	for _, f := range failures {
		service := f.Port.ServiceName
		if service == (model.ServiceName{}) {
			o.log.Error("programming the node's addresses failed", "err", f.Err)
			continue
		}
		reason := reasonNotProgrammed
		if errors.Is(f.Err, maps.ErrFull) {
			reason = events.ReasonMapFull
		}
		all[service] = append(all[service], events.OnService(service, reason, events.ActionTranslate,
			fmt.Sprintf("port %q (%s, %s): %v", f.Port.Port, f.Port.Protocol, f.Port.Family, f.Err)))
	}
	for service, problems := range all {
		o.reporter.Set(events.Programming(service), problems)
	}
}
