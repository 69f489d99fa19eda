// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// Source is what the metrics read: a part of maps.Reader.
type Source interface {
	ServiceNames() iter.Seq2[maps.Entry[uint32, maps.ServiceName], error]
	ServiceStats(ids []uint32) ([]maps.ServiceStats, error)
	PacketStats(ids []uint32) ([]maps.PacketStats, error)
	Drops() ([]uint64, error)
	Usage() (map[string]maps.Usage, error)
}

// Options are what New needs.
type Options struct {
	Source Source
	// Reason returns the word of a reason, by its number in enum reason; empty: there is none, and no series.
	Reason func(int) string
	// Version and Commit are of the build.
	Version, Commit string
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Metrics has every metric of the agent. It is safe for concurrent use.
type Metrics struct {
	*Recorder
	registry *prometheus.Registry
	maps     *mapCollector
}

// New returns the metrics, with nothing recorded.
func New(o Options) *Metrics {
	if o.Now == nil {
		o.Now = time.Now
	}
	registry := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "shunt_build_info", Help: "1, labelled with what was built.",
	}, []string{"version", "commit"})
	build.WithLabelValues(o.Version, o.Commit).Set(1)
	registry.MustRegister(build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &Metrics{Recorder: newRecorder(registry, o.Now), registry: registry, maps: newMapCollector(o)}
	registry.MustRegister(m.maps.failures)
	return m
}

// Handler serves /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// Gather returns the registry's metrics and those of the maps. The latter do not go through the registry: it compares
// every series of a scrape with every other one, which costs more than all the rest for the services of a large
// cluster, whose labels are distinct as it is.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) {
	families := m.maps.gather()
	registered, err := m.registry.Gather()
	if err != nil {
		err = fmt.Errorf("gather metrics: %w", err)
	}
	families = append(families, registered...)
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return families, err
}
