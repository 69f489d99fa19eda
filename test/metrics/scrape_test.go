// SPDX-License-Identifier: Apache-2.0

// Package metrics proves and measures a scrape over the kernel's own maps.
package metrics

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/metrics"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/writer"
	"github.com/shunt-lb/shunt/test/many"
)

const endpoints = 5

// node programs Services in maps of the kernel's and returns metrics that read them.
func node(t testing.TB, services int, now func() time.Time) (*metrics.Metrics, *maps.Kernel, *loader.Datapath) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loads programs and mounts a bpffs: run as root")
	}
	root := t.TempDir()
	if err := unix.Mount("bpf", root, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		t.Fatalf("mount bpffs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount bpffs: %v", err)
		}
	})
	directory, err := loader.Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { directory.Close() })
	datapath, err := loader.Load(loader.Options{Directory: directory, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { datapath.Close() })
	kernel, err := maps.Open(directory.Path, maps.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kernel.Close() })
	w := writer.New(kernel, plan.New(writer.LimitsOf(kernel)), writer.Options{})
	if err := w.Write(many.Services(services, endpoints)).Err(); err != nil {
		t.Fatal(err)
	}
	return metrics.New(metrics.Options{Source: kernel, Reason: maps.ReasonWord, Version: "test", Now: now,
		Log: slog.New(slog.DiscardHandler)}), kernel, datapath
}

func scrape(m *metrics.Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

func TestAScrapeHasTheCountersOfTheKernel(t *testing.T) {
	m, kernel, datapath := node(t, 20, time.Now)
	perCPU := make([]maps.ServiceStats, ebpf.MustPossibleCPU())
	for i := range perCPU {
		perCPU[i] = maps.ServiceStats{Connections: 10, Refused: 2, NoBackend: 1}
	}
	const counted = 7
	var id uint32
	for entry, err := range kernel.ServiceNames() {
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimRight(string(entry.Value.Name[:]), "\x00") == many.Name(counted) {
			id = entry.Key
		}
	}
	if err := datapath.Maps[maps.MapServiceStats].Put(id, perCPU); err != nil {
		t.Fatal(err)
	}
	text := scrape(m)
	for metric, each := range map[string]int{"connections": 10, "refused": 2, "no_backend": 1} {
		for i := range 20 {
			want := 0
			if i == counted {
				want = each * len(perCPU)
			}
			line := fmt.Sprintf("shunt_service_%s_total{family=\"IPv4\",namespace=\"bench\",port=\"http\",protocol=\"TCP\","+
				"service=\"service-%d\"} %d\n", metric, i, want)
			if !strings.Contains(text, line) {
				t.Errorf("the scrape lacks %s", line)
			}
		}
	}
	for _, line := range []string{"shunt_map_elements{map=\"services\"} 20\n", "shunt_map_elements{map=\"backends\"} 100\n",
		"shunt_map_elements{map=\"slots\"} 100\n", "shunt_drops_total{reason=\"no_backend\"} 0\n"} {
		if !strings.Contains(text, line) {
			t.Errorf("the scrape lacks %s", line)
		}
	}
}

// BenchmarkScrape is one scrape of a node with 10,000 Services of 5 endpoints. Every half minute a scrape counts the
// elements of all maps as well: "count".
func BenchmarkScrape(b *testing.B) {
	now := time.Now()
	m, _, _ := node(b, 10_000, func() time.Time { return now })
	scrape(m)
	b.Run("scrape", func(b *testing.B) { measure(b, func() { scrape(m) }) })
	b.Run("count", func(b *testing.B) {
		measure(b, func() {
			now = now.Add(time.Minute)
			scrape(m)
		})
	})
}

// measure adds the processor's time to the benchmark's, which on a busy machine is mostly waiting.
func measure(b *testing.B, work func()) {
	b.ReportAllocs()
	before := processorTime(b)
	for b.Loop() {
		work()
	}
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
