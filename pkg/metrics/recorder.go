// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Recorder is told by the reconcile loop and the health servers what happens.
type Recorder struct {
	now func() time.Time

	sync, syncFull, syncPartial *prometheus.HistogramVec
	lastSync, lastQueued        *prometheus.GaugeVec
	programming                 *prometheus.HistogramVec
	endpointsPending            prometheus.Gauge
	endpointsTotal              prometheus.Counter
	servicesPending             prometheus.Gauge
	servicesTotal               prometheus.Counter
	noLocalEndpoints            *prometheus.GaugeVec
	healthz, livez              *prometheus.CounterVec
	failures                    *prometheus.CounterVec
}

// Policy is which traffic policy an empty local set belongs to.
type Policy string

// The values of Policy.
const (
	PolicyInternal Policy = "internal"
	PolicyExternal Policy = "external"
)

const labelFamily = "ip_family"

// newRecorder registers kube-proxy's metrics with kube-proxy's names, labels and buckets.
func newRecorder(registry prometheus.Registerer, now func() time.Time) *Recorder {
	syncBuckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	r := &Recorder{
		now:         now,
		sync:        histogram("sync_proxy_rules_duration_seconds", "Duration of a sync.", syncBuckets),
		syncFull:    histogram("sync_full_proxy_rules_duration_seconds", "Duration of a full sync.", syncBuckets),
		syncPartial: histogram("sync_partial_proxy_rules_duration_seconds", "Duration of a partial sync.", syncBuckets),
		lastSync: gauges("sync_proxy_rules_last_timestamp_seconds",
			"When the last sync succeeded, in Unix time.", labelFamily),
		lastQueued: gauges("sync_proxy_rules_last_queued_timestamp_seconds",
			"When a sync was last asked for, in Unix time.", labelFamily),
		programming: histogram("network_programming_duration_seconds",
			"From the change of a Service's or pod's state to its being programmed.", programmingBuckets()),
		endpointsPending: gauge("sync_proxy_rules_endpoint_changes_pending",
			"EndpointSlice changes that are not programmed yet."),
		endpointsTotal: counter("sync_proxy_rules_endpoint_changes_total", "EndpointSlice changes."),
		servicesPending: gauge("sync_proxy_rules_service_changes_pending",
			"Service changes that are not programmed yet."),
		servicesTotal: counter("sync_proxy_rules_service_changes_total", "Service changes."),
		noLocalEndpoints: gauges("sync_proxy_rules_no_local_endpoints_total",
			"Service ports with traffic policy Local and endpoints, none of them on this node.",
			"traffic_policy", labelFamily),
		healthz: counters("kubeproxy", "proxy_healthz_total", "Answers of /healthz.", "code"),
		livez:   counters("kubeproxy", "proxy_livez_total", "Answers of /livez.", "code"),
		failures: counters("shunt", "sync_failures_total",
			"Syncs that left something unprogrammed.", "family"),
	}
	registry.MustRegister(r.sync, r.syncFull, r.syncPartial, r.lastSync, r.lastQueued, r.programming,
		r.endpointsPending, r.endpointsTotal, r.servicesPending, r.servicesTotal, r.noLocalEndpoints, r.healthz, r.livez,
		r.failures)
	return r
}

// programmingBuckets are kube-proxy's: fine up to a minute, then coarser up to five.
func programmingBuckets() []float64 {
	buckets := []float64{0.25, 0.5}
	buckets = append(buckets, prometheus.LinearBuckets(1, 1, 59)...)
	buckets = append(buckets, prometheus.LinearBuckets(60, 5, 12)...)
	return append(buckets, prometheus.LinearBuckets(120, 30, 7)...)
}

func histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "kubeproxy", Name: name, Help: help, Buckets: buckets}, []string{labelFamily})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "kubeproxy", Name: name, Help: help})
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "kubeproxy", Name: name, Help: help}, labels)
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "kubeproxy", Name: name, Help: help})
}

func counters(namespace, name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

// Queued says that a sync of a family has been asked for. The start of the sync loop counts as well.
func (r *Recorder) Queued(f model.Family) { r.lastQueued.WithLabelValues(f.String()).Set(r.unix()) }

// Sync is what happened in one sync of one family.
type Sync struct {
	Family   model.Family
	Duration time.Duration
	// Full: everything was compared, not only what had changed.
	Full bool
	// Failed: something is left to be tried again.
	Failed bool
}

// SyncDone records a sync.
func (r *Recorder) SyncDone(s Sync) {
	family, seconds := s.Family.String(), s.Duration.Seconds()
	r.sync.WithLabelValues(family).Observe(seconds)
	if s.Full {
		r.syncFull.WithLabelValues(family).Observe(seconds)
	} else {
		r.syncPartial.WithLabelValues(family).Observe(seconds)
	}
	if s.Failed {
		r.failures.WithLabelValues(family).Inc()
		return
	}
	r.lastSync.WithLabelValues(family).Set(r.unix())
}

// ProgrammingLatency records the time from an EndpointSlice's trigger (the annotation
// endpoints.kubernetes.io/last-change-trigger-time) to its being programmed.
func (r *Recorder) ProgrammingLatency(f model.Family, latency time.Duration) {
	r.programming.WithLabelValues(f.String()).Observe(latency.Seconds())
}

// EndpointChange records one event of a source.
func (r *Recorder) EndpointChange() { r.endpointsTotal.Inc() }

// ServiceChange records one event of a source.
func (r *Recorder) ServiceChange() { r.servicesTotal.Inc() }

// Pending sets how many changes wait to be programmed.
func (r *Recorder) Pending(services, endpointSlices int) {
	r.servicesPending.Set(float64(services))
	r.endpointsPending.Set(float64(endpointSlices))
}

// NoLocalEndpoints sets how many service ports of a family have a Local policy whose set is empty although usable
// endpoints exist elsewhere.
func (r *Recorder) NoLocalEndpoints(p Policy, f model.Family, servicePorts int) {
	r.noLocalEndpoints.WithLabelValues(string(p), f.String()).Set(float64(servicePorts))
}

// Answered counts an answer of the health server; it fits health.ProxyOptions.
func (r *Recorder) Answered(path string, code int) {
	switch path {
	case "/healthz":
		r.healthz.WithLabelValues(strconv.Itoa(code)).Inc()
	case "/livez":
		r.livez.WithLabelValues(strconv.Itoa(code)).Inc()
	}
}

func (r *Recorder) unix() float64 { return float64(r.now().UnixNano()) / 1e9 }
