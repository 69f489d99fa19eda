// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
)

func (b *bench) printMachine() {
	var name unix.Utsname
	release := "an unknown kernel"
	if unix.Uname(&name) == nil {
		release = "Linux " + unix.ByteSliceToString(name.Release[:])
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(b.out, "%d processors, %s, kube-proxy %s, load %s\n", runtime.NumCPU(), release, binaries.Version,
		strings.TrimSpace(string(load)))
}

// figure is a column of the table. Less is better for all of them.
type figure struct {
	title string
	value func(result) float64
	unit  string
}

var figures = []figure{
	{"start to all answering", func(r result) float64 { return r.start.Seconds() }, "s"},
	{"CPU of the start", func(r result) float64 { return r.startCPU.Seconds() }, "s"},
	{"peak memory", func(r result) float64 { return float64(r.peakBytes) / (1 << 20) }, "MiB"},
	{"change to answering, p50", func(r result) float64 { return milliseconds(quantile(r.single, 0.5)) }, "ms"},
	{"change to answering, p99", func(r result) float64 { return milliseconds(quantile(r.single, 0.99)) }, "ms"},
	{"among 100 changes/s, p50", func(r result) float64 { return milliseconds(quantile(r.churned, 0.5)) }, "ms"},
	{"among 100 changes/s, p99", func(r result) float64 { return milliseconds(quantile(r.churned, 0.99)) }, "ms"},
	{"CPU of a change", func(r result) float64 { return milliseconds(r.changeCPU) }, "ms"},
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// printResults prints a table: a row for each figure, a column for each proxy, and shunt's share of each.
func (b *bench) printResults(size int, results []result) {
	fmt.Fprintf(b.out, "\n%d Services of %d endpoints\n\n", size, endpoints)
	fmt.Fprintf(b.out, "| figure | %s |\n", strings.Join(headings(results), " | "))
	fmt.Fprintf(b.out, "|---%s|\n", strings.Repeat("|---", len(headings(results))))
	for _, f := range figures {
		var cells []string
		for _, r := range results {
			cells = append(cells, cell(f, r))
		}
		for _, r := range results {
			if r.proxy != shuntName {
				cells = append(cells, ratio(f, results, r))
			}
		}
		fmt.Fprintf(b.out, "| %s | %s |\n", f.title, strings.Join(cells, " | "))
	}
}

func headings(results []result) []string {
	var names []string
	for _, r := range results {
		names = append(names, r.proxy)
	}
	for _, r := range results {
		if r.proxy != shuntName {
			names = append(names, "shunt / "+r.proxy)
		}
	}
	return names
}

func cell(f figure, r result) string {
	if r.gaveUp {
		return "given up"
	}
	return fmt.Sprintf("%.3g %s", f.value(r), f.unit)
}

// ratio is shunt's figure over another's.
func ratio(f figure, results []result, other result) string {
	for _, r := range results {
		if r.proxy == shuntName && !r.gaveUp && !other.gaveUp && f.value(other) > 0 {
			return fmt.Sprintf("%.3f", f.value(r)/f.value(other))
		}
	}
	return "-"
}
