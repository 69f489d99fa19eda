// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"slices"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/writer"
)

// pass plans and writes what has changed; with retry, also what has failed before.
func (r *Reconciler) pass(retry bool) {
	p := Pass{Started: r.Now(), Full: r.lastPass.IsZero()}
	if p.Full {
		r.evaluateNode()
	}
	if r.addressesChanged || retry && r.addressesFailed {
		result := r.Writer.SetNodeAddresses(r.nodePortAddresses(), r.onNode)
		r.addressesChanged, r.addressesFailed = false, len(result.Failures) > 0
		p.add(result)
	}
	changes := r.changes(retry)
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
func (r *Reconciler) changes(retry bool) []plan.Change {
	names := r.Model.TakeDirty()
	if retry {
		for name := range r.failed {
			if _, dirty := slices.BinarySearchFunc(names, name, model.ServiceName.Compare); !dirty {
				names = append(names, name)
			}
		}
		slices.SortFunc(names, model.ServiceName.Compare)
	}
	changes := make([]plan.Change, len(names))
	for i, name := range names {
		changes[i] = plan.Change{Service: name, Ports: r.Model.Desired(name)}
		r.Observer.Problems(name, r.uids[name], r.Model.Problems(name))
	}
	return changes
}

// settle notes which Services of a pass are as desired now and which are to be tried again.
func (r *Reconciler) settle(changes []plan.Change, p *Pass) {
	failed := map[model.ServiceName]struct{}{}
	for _, f := range p.Failures {
		failed[f.Port.ServiceName] = struct{}{}
	}
	now, udp := r.Now(), p.Full // an earlier agent's Services may be gone altogether
	for _, c := range changes {
		udp = r.concernsUDP(c) || udp
		if _, again := failed[c.Service]; again {
			r.failed[c.Service] = struct{}{}
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

// report tells of a pass: a failure once for each attempt, everything else at debug level but for the first.
func (r *Reconciler) report(p Pass) {
	r.Observer.Passed(p)
	for _, f := range p.Failures {
		r.Log.Error("programming failed, it is tried again", "service", f.Port.ServiceName, "port", f.Port.Port,
			"protocol", f.Port.Protocol, "family", f.Port.Family, "retry", r.backoff, "err", f.Err)
	}
	log := r.Log.Debug
	if p.Full {
		log = r.Log.Info
	}
	log("programmed", "services", p.Services, "operations", p.Operations, "failures", len(p.Failures),
		"duration", p.Duration, "full", p.Full)
}
