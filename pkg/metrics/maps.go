// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// usageAge is how old the fill of the maps may be: counting it walks every map, and no alert needs it finer.
const usageAge = 30 * time.Second

// mapFamily is a metric read from the maps.
type mapFamily struct {
	name, help string
	kind       dto.MetricType
	labels     []string
}

var serviceLabels = []string{"namespace", "service", "port", "protocol", "family"}

// mapFamilies are the metrics read from the maps.
var mapFamilies = struct{ connections, refused, noBackend, drops, elements, capacity mapFamily }{
	connections: mapFamily{"shunt_service_connections_total",
		"Connections and UDP flows translated to a backend of the service port.", dto.MetricType_COUNTER, serviceLabels},
	refused: mapFamily{"shunt_service_refused_total",
		"Connections and sends to the service port that were answered with an error.", dto.MetricType_COUNTER,
		serviceLabels},
	noBackend: mapFamily{"shunt_service_no_backend_total",
		"Those of the refused for which no backend was usable.", dto.MetricType_COUNTER, serviceLabels},
	drops: mapFamily{"shunt_drops_total",
		"What the programs did not translate as asked, by reason.", dto.MetricType_COUNTER, []string{"reason"}},
	elements: mapFamily{"shunt_map_elements", "Elements in the map.", dto.MetricType_GAUGE, []string{"map"}},
	capacity: mapFamily{"shunt_map_capacity_elements", "Elements that the map can hold.", dto.MetricType_GAUGE,
		[]string{"map"}},
}

// mapCollector reads the maps. It keeps the labels of the services from scrape to scrape.
type mapCollector struct {
	source   Source
	reason   func(int) string
	now      func() time.Time
	log      *slog.Logger
	failures prometheus.Counter

	mu sync.Mutex
	// names is what service_names held when it was last read. rows and ids (those of the rows, in their order) were
	// made of it; none of the three is changed in place.
	names map[uint32]maps.ServiceName
	rows  []row
	ids   []uint32
	// usage is the last count, made at usageAt.
	usage   map[string]maps.Usage
	usageAt time.Time
}

// row is one service port: usually one id; two while an id is on its way out and the Service exists again.
type row struct {
	name   maps.ServiceName
	ids    []uint32
	labels []*dto.LabelPair
}

func newMapCollector(o Options) *mapCollector {
	return &mapCollector{source: o.Source, reason: o.Reason, now: o.Now, log: o.Log,
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "shunt_map_read_errors_total", Help: "Failures to read a map for a scrape; its metrics were left out.",
		})}
}

// gather returns the metrics of all maps that can be read.
func (c *mapCollector) gather() []*dto.MetricFamily {
	c.mu.Lock()
	defer c.mu.Unlock()
	var families []*dto.MetricFamily
	for _, read := range []func() ([]*dto.MetricFamily, error){c.services, c.drops, c.fill} {
		got, err := read()
		if err != nil {
			c.failures.Inc()
			c.log.Error("metrics are left out of a scrape", "err", err)
		}
		families = append(families, got...)
	}
	return families
}

// services reads names, counters, and names again: an id that was given to another service port in between has
// counters of nobody knows whom, and is left out of this scrape.
func (c *mapCollector) services() ([]*dto.MetricFamily, error) {
	if err := c.refresh(); err != nil {
		return nil, err
	}
	stats, err := c.source.ServiceStats(c.ids)
	if err != nil {
		return nil, err
	}
	packets, err := c.source.PacketStats(c.ids)
	if err != nil {
		return nil, err
	}
	rows := c.rows
	if err := c.refresh(); err != nil {
		return nil, err
	}
	return append(serviceFamilies(rows, stats, c.names), packetFamilies(rows, packets, c.names)...), nil
}

// refresh brings names, rows and ids up to date. Most scrapes find nothing changed and allocate nothing here.
func (c *mapCollector) refresh() error {
	same := 0
	for entry, err := range c.source.ServiceNames() {
		if err != nil {
			return err
		}
		if name, ok := c.names[entry.Key]; !ok || name != entry.Value {
			same = -1
			break
		}
		same++
	}
	if same == len(c.names) {
		return nil
	}
	names, err := c.readNames()
	if err != nil {
		return err
	}
	c.remember(names)
	return nil
}

func (c *mapCollector) readNames() (map[uint32]maps.ServiceName, error) {
	names := make(map[uint32]maps.ServiceName, len(c.names))
	for entry, err := range c.source.ServiceNames() {
		if err != nil {
			return nil, err
		}
		names[entry.Key] = entry.Value
	}
	return names, nil
}

// remember makes rows of names, keeping the labels of those that were there before.
func (c *mapCollector) remember(names map[uint32]maps.ServiceName) {
	labels := make(map[maps.ServiceName][]*dto.LabelPair, len(c.rows))
	for _, r := range c.rows {
		labels[r.name] = r.labels
	}
	index := make(map[maps.ServiceName]int, len(names))
	rows := make([]row, 0, len(names))
	for id, name := range names {
		i, ok := index[name]
		if !ok {
			i = len(rows)
			index[name] = i
			rows = append(rows, row{name: name, labels: labels[name]})
		}
		rows[i].ids = append(rows[i].ids, id)
	}
	slices.SortFunc(rows, func(a, b row) int { return compareNames(&a.name, &b.name) })
	for i := range rows {
		if rows[i].labels == nil {
			rows[i].labels = labelsOf(rows[i].name)
		}
	}
	ids := make([]uint32, 0, len(names))
	for _, r := range rows {
		ids = append(ids, r.ids...)
	}
	c.names, c.rows, c.ids = names, rows, ids
}

func compareNames(a, b *maps.ServiceName) int {
	return cmp.Or(bytes.Compare(a.Namespace[:], b.Namespace[:]), bytes.Compare(a.Name[:], b.Name[:]),
		bytes.Compare(a.Port[:], b.Port[:]), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Family, b.Family))
}

// labelNames are those of serviceLabels as the exposition sorts them. All series point to them.
var labelNames = [...]string{"family", "namespace", "port", "protocol", "service"}

// rowLabels is the memory of one service port's labels: in one piece, as the exposition walks through all of them and
// would otherwise wait for memory more than it works.
type rowLabels struct {
	list   [len(labelNames)]*dto.LabelPair
	pairs  [len(labelNames)]dto.LabelPair
	values [len(labelNames)]string
}

// labelsOf returns the labels of a service port.
func labelsOf(n maps.ServiceName) []*dto.LabelPair {
	l := &rowLabels{values: [...]string{model.Family(n.Family).String(), maps.Text(n.Namespace[:]), maps.Text(n.Port[:]),
		model.Protocol(n.Protocol).String(), maps.Text(n.Name[:])}}
	for i := range l.list {
		l.pairs[i].Name, l.pairs[i].Value = &labelNames[i], &l.values[i]
		l.list[i] = &l.pairs[i]
	}
	return l.list[:]
}

func pair(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// serviceFamilies sums up rows whose ids still have the row's name.
func serviceFamilies(rows []row, stats []maps.ServiceStats, names map[uint32]maps.ServiceName) []*dto.MetricFamily {
	connections := newSeries(mapFamilies.connections, len(rows))
	refused := newSeries(mapFamilies.refused, len(rows))
	noBackend := newSeries(mapFamilies.noBackend, len(rows))
	next := 0
	for _, r := range rows {
		var sum maps.ServiceStats
		same := true
		for _, id := range r.ids {
			sum.Connections += stats[next].Connections
			sum.Refused += stats[next].Refused
			sum.NoBackend += stats[next].NoBackend
			next++
			name, ok := names[id]
			same = same && ok && name == r.name
		}
		if same {
			connections.add(r.labels, float64(sum.Connections))
			refused.add(r.labels, float64(sum.Refused))
			noBackend.add(r.labels, float64(sum.NoBackend))
		}
	}
	return present(connections, refused, noBackend)
}

func (c *mapCollector) drops() ([]*dto.MetricFamily, error) {
	counts, err := c.source.Drops()
	if err != nil {
		return nil, err
	}
	drops := newSeries(mapFamilies.drops, len(counts))
	for i, n := range counts {
		if reason := c.reason(i); reason != "" {
			drops.add([]*dto.LabelPair{pair("reason", reason)}, float64(n))
		}
	}
	return present(drops), nil
}

func (c *mapCollector) fill() ([]*dto.MetricFamily, error) {
	if now := c.now(); c.usage == nil || now.Sub(c.usageAt) >= usageAge {
		usage, err := c.source.Usage()
		if err != nil {
			return nil, err
		}
		c.usage, c.usageAt = usage, now
	}
	var names []string
	for name := range c.usage {
		names = append(names, name)
	}
	slices.Sort(names)
	elements := newSeries(mapFamilies.elements, len(names))
	capacity := newSeries(mapFamilies.capacity, len(names))
	for _, name := range names {
		labels := []*dto.LabelPair{pair("map", name)}
		elements.add(labels, float64(c.usage[name].Used))
		capacity.add(labels, float64(c.usage[name].Capacity))
	}
	return present(elements, capacity), nil
}

// series collects the series of one metric in few allocations.
type series struct {
	family mapFamily
	list   []*dto.Metric
	slab   []cell
}

// cell is the memory of one series.
type cell struct {
	metric  dto.Metric
	counter dto.Counter
	gauge   dto.Gauge
	value   float64
}

func newSeries(family mapFamily, size int) *series {
	return &series{family: family, list: make([]*dto.Metric, 0, size), slab: make([]cell, size)}
}

// add appends one series; the labels are shared with other scrapes and never changed.
func (s *series) add(labels []*dto.LabelPair, value float64) {
	m := &s.slab[len(s.list)]
	m.value = value
	m.metric.Label = labels
	if s.family.kind == dto.MetricType_COUNTER {
		m.counter.Value = &m.value
		m.metric.Counter = &m.counter
	} else {
		m.gauge.Value = &m.value
		m.metric.Gauge = &m.gauge
	}
	s.list = append(s.list, &m.metric)
}

// present returns the families that have a series; the exposition has no empty ones.
func present(all ...*series) []*dto.MetricFamily {
	var families []*dto.MetricFamily
	for _, s := range all {
		if len(s.list) > 0 {
			families = append(families, &dto.MetricFamily{Name: &s.family.name, Help: &s.family.help,
				Type: s.family.kind.Enum(), Metric: s.list})
		}
	}
	return families
}
