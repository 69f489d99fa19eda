// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/cluster/perf/traffic"
)

// marker divides the document: what is above is written by hand, what is below is replaced by each run.
const marker = "<!-- Figures of `make bench`: the next run replaces all that is below this line. -->\n"

// report is a run in words and tables, as Markdown.
type report struct {
	*bench
	memory   memoryCost
	programs []caseCosts
}

// replace puts the report below the marker of a document.
func (r *report) replace(file string) error {
	if file == "" {
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("update %s: %w", file, err)
	}
	before, _, found := strings.Cut(string(content), marker)
	if !found {
		return fmt.Errorf("update %s: it has no line %q", file, strings.TrimSpace(marker))
	}
	var text strings.Builder
	if err := r.write(&text); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(before+marker+text.String()), 0o644); err != nil {
		return fmt.Errorf("update %s: %w", file, err)
	}
	return nil
}

func (r *report) write(to io.Writer) error {
	var out strings.Builder
	r.writeRun(&out)
	r.writeSummary(&out)
	r.writeTargets(&out)
	for _, p := range paths {
		for _, f := range families {
			r.writeCosts(&out, p, f)
		}
	}
	r.writeRates(&out)
	r.writeLatencies(&out)
	r.writePrograms(&out)
	r.writeStarts(&out)
	_, err := io.WriteString(to, out.String())
	return err
}

func (r *report) writeRun(out *strings.Builder) {
	fmt.Fprintf(out, "\n## The run\n%s, %s. kube-proxy %s, shunt %s. %d rounds in %s; load average before them: %.1f. ",
		r.began.UTC().Format("2006-01-02 15:04 UTC"), describeMachine(), binaries.Version, revision(),
		r.rounds, r.ended.Sub(r.began).Round(time.Second), r.load)
	if r.kernel == 0 {
		out.WriteString("The kernel's packet thread is not visible here: its CPU time is missing. ")
	}
	fmt.Fprintf(out, "Samples that failed: %d.\n", len(r.failures))
	for _, failure := range r.failures[:min(len(r.failures), 10)] {
		fmt.Fprintf(out, "- %s\n", failure)
	}
}

// revision is the commit that the benchmark ran on.
func revision() string {
	root, err := binaries.Root()
	if err != nil {
		return "of this tree"
	}
	output, err := exec.Command("git", "-C", root, "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "of this tree"
	}
	return "at " + strings.TrimSpace(string(output))
}

// writeSummary has one figure for each path: the geometric mean over the operations.
func (r *report) writeSummary(out *strings.Builder) {
	out.WriteString("\n## Summary\nCPU time by that of direct traffic: the geometric mean over the operations of their medians, which are " +
		"below.\n\n| path | target |")
	for _, w := range r.worlds[1:] {
		fmt.Fprintf(out, " %s |", w.variant.name())
	}
	out.WriteString("\n|---|---|" + strings.Repeat("---|", len(r.worlds)-1) + "\n")
	for _, p := range paths {
		for _, f := range families {
			cases := r.casesOf(p, f)
			if len(cases) == 0 {
				continue
			}
			fmt.Fprintf(out, "| %s, %s | %.2f |", p.name, f, p.target)
			for _, w := range r.worlds[1:] {
				sum := 0.0
				for _, c := range cases {
					sum += math.Log(r.ratios(c, w).median)
				}
				fmt.Fprintf(out, " %.2f |", math.Exp(sum/float64(len(cases))))
			}
			out.WriteString("\n")
		}
	}
}

// writeTargets lists what shunt costs more than it should, by the median.
func (r *report) writeTargets(out *strings.Builder) {
	var over []string
	total := 0
	for _, c := range r.cases {
		for _, w := range r.worlds {
			if w.variant.proxy != shuntName || len(r.samples[c][w]) == 0 {
				continue
			}
			total++
			if s := r.ratios(c, w); s.median > c.path.target {
				over = append(over, fmt.Sprintf("- %s, %s Services: %s, target %.2f\n",
					c.name(), thousands(w.variant.services), s, c.path.target))
			}
		}
	}
	fmt.Fprintf(out, "\n## Against the targets\nshunt is within its target in %d of %d figures.\n", total-len(over), total)
	if len(over) > 0 {
		out.WriteString("Over it:\n" + strings.Join(over, ""))
	}
}

func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", s.median, s.least, s.most) }

func (r *report) writeCosts(out *strings.Builder, p path, f family) {
	if len(r.casesOf(p, f)) == 0 {
		return
	}
	fmt.Fprintf(out, "\n## %s, %s\nCPU time of an operation by that of direct traffic: median (least–most) of the rounds. "+
		"Target for shunt: %.2f.\n\n| operation | direct, µs |", p.name, f, p.target)
	for _, w := range r.worlds[1:] {
		fmt.Fprintf(out, " %s |", w.variant.name())
	}
	out.WriteString("\n|---|" + strings.Repeat("---|", len(r.worlds)) + "\n")
	for _, c := range r.casesOf(p, f) {
		direct := r.column(c, r.worlds[0], func(s sample) float64 { return s.CPU / 1000 })
		fmt.Fprintf(out, "| %s | %.1f |", c.kind, direct.median)
		for _, w := range r.worlds[1:] {
			fmt.Fprintf(out, " %s |", r.ratios(c, w))
		}
		out.WriteString("\n")
	}
}

func (r *report) casesOf(p path, f family) []*benchCase {
	var some []*benchCase
	for _, c := range r.cases {
		if c.path.name == p.name && c.family == f {
			some = append(some, c)
		}
	}
	return some
}

// writeTable writes a line for each case that has figures.
func (r *report) writeTable(out *strings.Builder, title, text string, figure func(*benchCase, *world) string) {
	fmt.Fprintf(out, "\n## %s\n%s\n\n| path | operation |", title, text)
	for _, w := range r.worlds {
		fmt.Fprintf(out, " %s |", w.variant.name())
	}
	out.WriteString("\n|---|---|" + strings.Repeat("---|", len(r.worlds)) + "\n")
	for _, c := range r.cases {
		if figure(c, r.worlds[0]) == "" {
			continue
		}
		fmt.Fprintf(out, "| %s, %s | %s |", c.path.name, c.family, c.kind)
		for _, w := range r.worlds {
			fmt.Fprintf(out, " %s |", figure(c, w))
		}
		out.WriteString("\n")
	}
}

func (r *report) writeRates(out *strings.Builder) {
	r.writeTable(out, "Rates", "Operations a second of one client, median of the rounds; client and server share a CPU, "+
		"and the machine has other work: the CPU time above is what to compare.",
		func(c *benchCase, w *world) string {
			return thousands(int(r.column(c, w, func(s sample) float64 { return s.Rate }).median))
		})
}

func (r *report) writeLatencies(out *strings.Builder) {
	r.writeTable(out, "Latency", "Of a request and its response on an open connection, in µs: the 50th and the 99th percentile of "+
		"a sample, each the median of the rounds.",
		func(c *benchCase, w *world) string {
			if c.kind != traffic.Request {
				return ""
			}
			middle := r.column(c, w, func(s sample) float64 { return float64(s.Median.Nanoseconds()) / 1000 })
			slow := r.column(c, w, func(s sample) float64 { return float64(s.Slow.Nanoseconds()) / 1000 })
			return fmt.Sprintf("%.1f / %.1f", middle.median, slow.median)
		})
}

func (r *report) writePrograms(out *strings.Builder) {
	out.WriteString("\n## The programs\nMean run time of each program by the kernel's own statistics (its clock costs some 20 ns of each " +
		"run, which are in the figures), and how often it runs for one operation. Without a Service all are misses.\n\n" +
		"| path | operation | Services | program: ns × runs |\n|---|---|---|---|\n")
	for _, costs := range r.programs {
		var parts []string
		for _, p := range costs.programs {
			parts = append(parts, fmt.Sprintf("%s %.0f × %.1f", p.name, p.nanoseconds, p.runs))
		}
		fmt.Fprintf(out, "| %s, %s | %s | %s | %s |\n", costs.c.path.name, costs.c.family, costs.c.kind,
			thousands(costs.world.variant.services), strings.Join(parts, ", "))
	}
}

func (r *report) writeStarts(out *strings.Builder) {
	out.WriteString("\n## Programming from empty\nDual-stack Services with two endpoints of each family, from an API server: from the start of " +
		"the process until the last Service answers.\n\n| proxy | s | CPU s, to rest | resident MB |\n|---|---|---|---|\n")
	for _, w := range r.worlds {
		if w.proxy != nil {
			fmt.Fprintf(out, "| %s | %.2f | %.2f | %d |\n", w.variant.name(), w.started.Elapsed.Seconds(), w.started.CPU.Seconds(), w.started.Memory)
		}
	}
	m := r.memory
	if m.services == 0 {
		return
	}
	fmt.Fprintf(out, "\nThe agent with %s Services of %d endpoints from manifests: ready after %.2f s and %.2f s of CPU time, "+
		"%d MB resident at rest, %d MB at most.\n",
		thousands(m.services), endpointsOfService, m.Elapsed.Seconds(), m.CPU.Seconds(), m.Memory, m.peak)
	if len(m.benchmark) > 0 {
		fmt.Fprintf(out, "\nPlan, writer and maps alone, 10,000 Services of 10 endpoints (`make bench-programming`):\n\n```\n%s\n```\n",
			strings.Join(m.benchmark, "\n"))
	}
}

// thousands writes a number with commas.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
