// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/writer"
	"github.com/shunt-lb/shunt/test/many"
)

const (
	manyServices = 10_000
	endpoints    = 10
)

var large = map[string]uint32{
	maps.MapServices: 1 << 16, maps.MapBackends: 1 << 18, maps.MapSlots: 1 << 19, maps.MapAddresses: 1 << 16,
	maps.MapServiceNames: 1 << 16, maps.MapServiceStats: 1 << 16,
}

func program(b *testing.B, k *maps.Kernel, changes []plan.Change) *writer.Writer {
	b.Helper()
	w := writer.New(k, plan.New(writer.LimitsOf(k)), writer.Options{})
	if err := w.Write(changes).Err(); err != nil {
		b.Fatal(err)
	}
	return w
}

// BenchmarkProgram programs all Services from an empty kernel, planning included.
func BenchmarkProgram(b *testing.B) {
	changes := many.Services(manyServices, endpoints)
	for b.Loop() {
		b.StopTimer()
		k, _ := kernel(b, large)
		runtime.GC()
		before := heap()
		b.StartTimer()
		w := program(b, k, changes)
		b.StopTimer()
		runtime.GC()
		b.ReportMetric(float64(heap()-before)/(1<<20), "mirror-MB")
		runtime.KeepAlive(w)
		k.Close()
		b.StartTimer()
	}
	b.ReportMetric(peakMB(b), "peak-rss-MB")
}

// BenchmarkChange adds and removes one endpoint among them.
func BenchmarkChange(b *testing.B) {
	k, _ := kernel(b, large)
	changes := many.Services(manyServices, endpoints)
	w := program(b, k, changes)
	one := changes[4711]
	fewer := one
	fewer.Ports = []model.ServicePort{one.Ports[0]}
	fewer.Ports[0].Backends = one.Ports[0].Backends[1:]
	for b.Loop() {
		w.Write([]plan.Change{fewer})
		w.Write([]plan.Change{one})
		w.Collect()
	}
}

// BenchmarkReadBack reads all of it back, as a restarted agent does.
func BenchmarkReadBack(b *testing.B) {
	k, _ := kernel(b, large)
	program(b, k, many.Services(manyServices, endpoints))
	for b.Loop() {
		if _, err := writer.ReadBack(k, writer.LimitsOf(k)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkServiceStats sums the counters of all Services, as a scrape does.
func BenchmarkServiceStats(b *testing.B) {
	k, _ := kernel(b, large)
	all := ids(manyServices)
	for b.Loop() {
		if _, err := k.ServiceStats(all); err != nil {
			b.Fatal(err)
		}
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// peakMB is the most memory that the process has used at once.
func peakMB(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	var kB float64
	if _, err := fmt.Sscan(after, &kB); err != nil {
		b.Fatal(err)
	}
	return kB / 1024
}
