// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// node is the maps of a node, and the metrics that read them.
type node struct {
	*maps.Fake
	*Metrics
	t   testing.TB
	now time.Time
	// names is asked instead of the Fake where it is set, stats is called before the counters are read.
	names func() iter.Seq2[maps.Entry[uint32, maps.ServiceName], error]
	stats func() error
	usage int
}

func newNode(t testing.TB) *node {
	n := &node{Fake: maps.NewFake(nil), t: t, now: time.Unix(1000, 0)}
	n.restartAgent()
	return n
}

// restartAgent makes new metrics over the same maps.
func (n *node) restartAgent() {
	n.Metrics = New(Options{Source: n, Version: "v1", Commit: "abc", Now: func() time.Time { return n.now },
		Reason: func(i int) string { return []string{"no_backend", "", "source_range"}[i] },
		Log:    slog.New(slog.DiscardHandler)})
}

func (n *node) ServiceNames() iter.Seq2[maps.Entry[uint32, maps.ServiceName], error] {
	if n.names != nil {
		return n.names()
	}
	return n.Fake.ServiceNames()
}

func (n *node) ServiceStats(ids []uint32) ([]maps.ServiceStats, error) {
	if n.stats != nil {
		if err := n.stats(); err != nil {
			return nil, err
		}
	}
	return n.Fake.ServiceStats(ids)
}

func (n *node) Usage() (map[string]maps.Usage, error) {
	n.usage++
	return n.Fake.Usage()
}

// servicePort gives an id to a service port, as the agent does: its counters begin at zero.
func (n *node) servicePort(id uint32, service, port string) {
	n.t.Helper()
	name := maps.ServiceName{Protocol: uint8(model.TCP), Family: uint8(model.IPv4)}
	copy(name.Namespace[:], "default")
	copy(name.Name[:], service)
	copy(name.Port[:], port)
	if _, err := n.ResetServiceStats([]uint32{id}); err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.PutServiceNames([]uint32{id}, []maps.ServiceName{name}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) remove(id uint32) {
	n.t.Helper()
	if _, err := n.DeleteServiceNames([]uint32{id}); err != nil {
		n.t.Fatal(err)
	}
}

// scrape returns the lines of /metrics that begin with prefix.
func (n *node) scrape(prefix string) []string {
	n.t.Helper()
	w := httptest.NewRecorder()
	n.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Body)
	if err != nil || w.Code != 200 {
		n.t.Fatalf("scrape: %d, %v: %s", w.Code, err, body)
	}
	var lines []string
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func (n *node) want(when, prefix string, want ...string) {
	n.t.Helper()
	if got := n.scrape(prefix); !slices.Equal(got, want) {
		n.t.Errorf("%s:\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEachServicePortHasItsCounters(t *testing.T) {
	n := newNode(t)
	n.servicePort(2, "web", "http")
	n.servicePort(1, "web", "")
	n.AddServiceStats(2, maps.ServiceStats{Connections: 5, Refused: 3, NoBackend: 1})
	n.want("scrape", "shunt_service",
		`shunt_service_connections_total{family="IPv4",namespace="default",port="",protocol="TCP",service="web"} 0`,
		`shunt_service_connections_total{family="IPv4",namespace="default",port="http",protocol="TCP",service="web"} 5`,
		`shunt_service_no_backend_total{family="IPv4",namespace="default",port="",protocol="TCP",service="web"} 0`,
		`shunt_service_no_backend_total{family="IPv4",namespace="default",port="http",protocol="TCP",service="web"} 1`,
		`shunt_service_refused_total{family="IPv4",namespace="default",port="",protocol="TCP",service="web"} 0`,
		`shunt_service_refused_total{family="IPv4",namespace="default",port="http",protocol="TCP",service="web"} 3`)
}

const (
	webLine   = `shunt_service_connections_total{family="IPv4",namespace="default",port="",protocol="TCP",service="web"} `
	otherLine = `shunt_service_connections_total{family="IPv4",namespace="default",port="",protocol="TCP",service="other"} `
)

func TestCountersGoOnOverARestartOfTheAgent(t *testing.T) {
	n := newNode(t)
	n.servicePort(1, "web", "")
	n.AddServiceStats(1, maps.ServiceStats{Connections: 5})
	n.want("before", "shunt_service_connections", webLine+"5")
	n.restartAgent()
	n.AddServiceStats(1, maps.ServiceStats{Connections: 1})
	n.want("after", "shunt_service_connections", webLine+"6")
}

func TestAServiceThatIsGoneHasNoCountersAndANewOneBeginsAtZero(t *testing.T) {
	n := newNode(t)
	n.servicePort(1, "web", "")
	n.AddServiceStats(1, maps.ServiceStats{Connections: 5})
	n.want("there", "shunt_service_connections", webLine+"5")
	n.remove(1)
	n.want("deleted", "shunt_service_connections")
	n.servicePort(1, "other", "")
	n.want("id reused by another", "shunt_service_connections", otherLine+"0")
	n.servicePort(2, "web", "")
	n.AddServiceStats(2, maps.ServiceStats{Connections: 1})
	n.want("recreated under another id", "shunt_service_connections", otherLine+"0", webLine+"1")
}

// Two series with the same labels would make the scraper refuse the whole scrape.
func TestTwoIdsOfOneServicePortAreOneSeries(t *testing.T) {
	n := newNode(t)
	n.servicePort(1, "web", "")
	n.servicePort(2, "web", "")
	n.AddServiceStats(1, maps.ServiceStats{Connections: 5})
	n.AddServiceStats(2, maps.ServiceStats{Connections: 2})
	n.want("both", "shunt_service_connections", webLine+"7")
}

func TestAnIdThatChangesHandsDuringAScrapeIsLeftOut(t *testing.T) {
	n := newNode(t)
	n.servicePort(1, "web", "")
	n.servicePort(2, "kept", "")
	n.AddServiceStats(1, maps.ServiceStats{Connections: 5})
	n.stats = func() error {
		n.stats = nil
		n.servicePort(1, "other", "")
		return nil
	}
	n.want("during", "shunt_service_connections", strings.Replace(webLine, "web", "kept", 1)+"0")
	n.want("after", "shunt_service_connections", strings.Replace(webLine, "web", "kept", 1)+"0", otherLine+"0")
}

func TestDropsHaveTheWordsOfTheirReasons(t *testing.T) {
	n := newNode(t)
	n.SetDrops([]uint64{7, 8, 9})
	n.want("scrape", "shunt_drops_total",
		`shunt_drops_total{reason="no_backend"} 7`, `shunt_drops_total{reason="source_range"} 9`)
}

func TestTheFillOfTheMapsIsCountedAtMostTwiceAMinute(t *testing.T) {
	n := newNode(t)
	n.SetCapacity(maps.MapServiceNames, 100)
	n.servicePort(1, "web", "")
	first := []string{`shunt_map_elements{map="service_names"} 1`}
	n.want("first", "shunt_map_elements{map=\"service_names\"", first...)
	n.want("first", "shunt_map_capacity_elements{map=\"service_names\"",
		`shunt_map_capacity_elements{map="service_names"} 100`)
	n.servicePort(2, "web", "a")
	n.now = n.now.Add(29 * time.Second)
	n.want("within the half minute", "shunt_map_elements{map=\"service_names\"", first...)
	if n.usage != 1 {
		t.Errorf("counted %d times", n.usage)
	}
	n.now = n.now.Add(time.Second)
	n.want("after", "shunt_map_elements{map=\"service_names\"", `shunt_map_elements{map="service_names"} 2`)
}

func TestAMapThatCannotBeReadLeavesTheOthersInTheScrape(t *testing.T) {
	broken := errors.New("broken")
	for _, fail := range []func(*node){
		func(n *node) { n.stats = func() error { return broken } },
		func(n *node) {
			n.names = func() iter.Seq2[maps.Entry[uint32, maps.ServiceName], error] {
				return func(yield func(maps.Entry[uint32, maps.ServiceName], error) bool) {
					yield(maps.Entry[uint32, maps.ServiceName]{}, broken)
				}
			}
		},
	} {
		n := newNode(t)
		n.SetDrops([]uint64{1, 0, 0})
		n.servicePort(1, "web", "")
		fail(n)
		n.want("services", "shunt_service")
		n.want("drops", "shunt_drops_total{reason=\"no_backend\"", `shunt_drops_total{reason="no_backend"} 1`)
		n.want("failures", "shunt_map_read_errors_total", "shunt_map_read_errors_total 3")
		n.stats, n.names = nil, nil
		n.want("repaired", "shunt_service_connections", webLine+"0")
	}
}

func fill(n *node, services int) {
	for i := range services {
		n.servicePort(uint32(i), "service-"+strings.Repeat("x", i%20)+string(rune('a'+i%26))+time.Duration(i).String(), "http")
		n.AddServiceStats(uint32(i), maps.ServiceStats{Connections: uint64(i)})
	}
}

// BenchmarkScrape is one scrape over HTTP's handler, text format, of a node that serves 10,000 service ports.
func BenchmarkScrape(b *testing.B) {
	n := newNode(b)
	fill(n, 10000)
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		n.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Body.Len() < 30000*100 {
			b.Fatal("short")
		}
	}
}
