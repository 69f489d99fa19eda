// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/writer"
)

// pass plans and writes what has changed; with retry, also what has failed before. The first pass, and one after the
// audit has found a difference, are full.
func (r *Reconciler) pass(retry bool) {
	p := Pass{Started: r.Now(), Full: r.full}
	if p.Full {
		r.full, r.auditAt = false, p.Started.Add(r.AuditPeriod)
		r.evaluateNode()
	}
	if p.Full || r.addressesChanged || retry && r.addressesFailed {
		result := r.Writer.SetNodeAddresses(r.nodePortAddresses(), r.onNode)
		r.addressesChanged, r.addressesFailed = false, len(result.Failures) > 0
		p.add(result)
	}
	changes := r.changes(p.Full, retry)
	p.Services = len(changes)
	p.add(r.Writer.Write(changes))
	if p.Full {
		p.add(r.Writer.Prune(r.Model.Has))
	}
	r.settle(changes, &p)
	r.lastPass = r.Now()
	p.Duration = r.lastPass.Sub(p.Started)
	r.report(p)
}

func (p *Pass) add(result writer.Result) {
	p.Operations += result.Operations
	p.Failures = append(p.Failures, result.Failures...)
}

// changes returns the desired state of the Services that the pass is about.
func (r *Reconciler) changes(full, retry bool) []plan.Change {
	names := r.Model.TakeDirty()
	if full {
		names = append(names, r.Model.Services()...)
	}
	if retry {
		names = slices.AppendSeq(names, maps.Keys(r.failed))
	}
	slices.SortFunc(names, model.ServiceName.Compare)
	names = slices.Compact(names)
	changes := make([]plan.Change, len(names))
	for i, name := range names {
		changes[i] = plan.Change{Service: name, Ports: r.Model.Desired(name)}
		r.Observer.Problems(name, r.Model.Problems(name))
	}
	return changes
}

// settle notes which Services of a pass are as desired now and which are to be tried again.
func (r *Reconciler) settle(changes []plan.Change, p *Pass) {
	failed := map[model.ServiceName]struct{}{}
	for _, f := range p.Failures {
		if f.Port.ServiceName != (model.ServiceName{}) {
			failed[f.Port.ServiceName] = struct{}{}
			// Not only of the changes: a Service that was to be removed, or that a frontend was taken from, is to be
			// tried again as well.
			r.failed[f.Port.ServiceName] = struct{}{}
		}
	}
	now, udp := r.Now(), p.Full // an earlier agent's Services may be gone altogether
	for _, c := range changes {
		if r.concernsUDP(c) {
			udp = true
			r.stale.serve(c.Service, r.servingElsewhere(c))
		}
		if _, again := failed[c.Service]; again {
			continue
		}
		delete(r.failed, c.Service)
		for _, t := range r.triggers[c.Service] {
			p.Latencies = append(p.Latencies, Latency{t.family, now.Sub(t.at)})
		}
		delete(r.triggers, c.Service)
		r.Observer.Programmed(c.Service, c.Ports, r.Model.HealthChecks(c.Service))
	}
	if udp {
		r.stale.check()
		// The backends of a service port that is gone stay until they are collected.
		r.checkAgain = true
	}
	r.schedule(now, len(p.Failures) > 0)
}

// concernsUDP tells whether a UDP backend may have gone with a change: the Service has UDP ports, or had.
func (r *Reconciler) concernsUDP(c plan.Change) bool {
	_, had := r.udp[c.Service]
	has := slices.ContainsFunc(c.Ports, func(p model.ServicePort) bool { return p.Name.Protocol == model.UDP })
	if has {
		r.udp[c.Service] = struct{}{}
	} else {
		delete(r.udp, c.Service)
	}
	return has || had
}

// servingElsewhere returns the endpoints of a Service's UDP ports that serve and are given no new flows here: they are
// leaving, or hints or a policy are for others. As with kube-proxy, the flows that they have are theirs.
func (r *Reconciler) servingElsewhere(c plan.Change) map[serving]struct{} {
	elsewhere := map[serving]struct{}{}
	for _, p := range c.Ports {
		if p.Name.Protocol != model.UDP {
			continue
		}
		all := r.Model.Serving(p.Name)
		if len(all) == len(p.Backends) {
			continue // the same: backends serve
		}
		for _, endpoint := range all {
			elsewhere[serving{p.Name, endpoint}] = struct{}{}
		}
		for _, b := range p.Backends {
			delete(elsewhere, serving{p.Name, netip.AddrPortFrom(b.Address, b.Port)})
		}
	}
	return elsewhere
}

// audit compares a part of what is programmed with what this process has written. Something else may have written to
// the maps, or a bug of ours; either way all is written again.
func (r *Reconciler) audit() {
	r.auditAt = r.Now().Add(r.AuditPeriod)
	difference, err := r.Audit()
	if err != nil {
		r.Log.Warn("looking whether the maps are as they were written failed", "err", err)
		return
	}
	if difference != "" {
		r.Log.Error("the maps are not as they were written, everything is written again", "difference", difference)
		r.full = true
	}
}

// schedule sets the time of the next attempt.
func (r *Reconciler) schedule(now time.Time, failed bool) {
	if !failed && len(r.failed) == 0 && !r.addressesFailed {
		r.backoff, r.retryAt = 0, time.Time{}
		return
	}
	if !failed {
		return // a pass about something else: the time of the next attempt stays
	}
	r.backoff = min(max(2*r.backoff, firstBackoff), max(r.SyncPeriod, firstBackoff))
	r.retryAt = now.Add(r.backoff)
}

// report tells of a pass: of a failed attempt that there was one, the Observer says what failed; everything else at debug
// level but for the first.
func (r *Reconciler) report(p Pass) {
	r.Observer.Passed(p)
	if len(p.Failures) > 0 {
		r.Log.Error("programming failed in part, it is tried again", "failures", len(p.Failures), "retry", r.backoff,
			"err", p.Failures[0].Err)
	}
	log := r.Log.Debug
	if p.Full {
		log = r.Log.Info
	}
	log("programmed", "services", p.Services, "operations", p.Operations, "failures", len(p.Failures),
		"duration", p.Duration, "full", p.Full)
}
