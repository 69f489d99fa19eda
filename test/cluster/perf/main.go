// SPDX-License-Identifier: Apache-2.0

// Command perf measures what Services cost: the same operations between the same pods directly, through kube-proxy in
// its modes and through shunt, in one run and interleaved. docs/benchmarks.md describes the method and has the figures
// of the last run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/cluster/perf/traffic"
	"github.com/shunt-lb/shunt/test/lab"
)

// helperArgument is by which this program runs itself as the processes of its labs.
const helperArgument = "lab-helper"

// settings of a run.
type settings struct {
	rounds    int
	sample    time.Duration // CPU time that a sample should take
	services  []int
	endpoints int // of the agent whose memory is measured
	cpu       int
	document  string // file to write the report to
	// only limits the cases, proxies the variants beside direct traffic; nil: all.
	only, proxies *regexp.Regexp

	reference binaries.Reference
	shunt     string // the binary
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == helperArgument {
		fail(lab.Helper(os.Args[2:], traffic.Operations()))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	settings := fullSettings()
	short := flag.Bool("short", false, "prove that it works; the figures mean little")
	flag.IntVar(&settings.rounds, "rounds", settings.rounds, "samples of each figure")
	flag.DurationVar(&settings.sample, "sample", settings.sample, "CPU time of a sample")
	flag.IntVar(&settings.cpu, "cpu", settings.cpu, "CPU that clients and servers share")
	flag.StringVar(&settings.document, "document", "", "file whose figures to replace by this run's")
	flag.Func("only", "regular expression of the cases, by the report's words", pattern(&settings.only))
	flag.Func("proxies", "regular expression of the proxies beside direct traffic", pattern(&settings.proxies))
	flag.Parse()
	if *short {
		short := shortSettings()
		short.cpu, short.document, short.only, short.proxies = settings.cpu, settings.document, settings.only, settings.proxies
		settings = short
	}
	fail(run(ctx, settings, []string{helperArgument}, os.Stdout, os.Stderr))
}

func pattern(to **regexp.Regexp) func(string) error {
	return func(text string) (err error) {
		*to, err = regexp.Compile(text)
		return err
	}
}

func matches(pattern *regexp.Regexp, text string) bool {
	return pattern == nil || pattern.MatchString(text)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "perf:", err)
		os.Exit(1)
	}
}

func fullSettings() settings {
	return settings{
		rounds: 15, sample: 50 * time.Millisecond, services: []int{10, 10_000}, endpoints: 100_000,
		cpu: runtime.NumCPU() - 1,
	}
}

func shortSettings() settings {
	return settings{
		rounds: 1, sample: 2 * time.Millisecond, services: []int{10}, endpoints: 1000, cpu: runtime.NumCPU() - 1,
	}
}

// run measures and writes the report.
func run(ctx context.Context, settings settings, helper []string, output, progress io.Writer) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the lab makes network namespaces and cgroups: run as root")
	}
	if settings.reference, err = binaries.BuildReference("kube-proxy"); err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "shunt-perf")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	settings.shunt = filepath.Join(directory, "shunt")
	if err := binaries.BuildShunt(settings.shunt); err != nil {
		return err
	}
	// All that it starts inherits it: the proxies program, and samples that are compared follow each other, without
	// regard to what else the machine does.
	if err := traffic.RaisePriority(); err != nil {
		return err
	}
	b := &bench{settings: settings, cases: selectCases(settings.only), progress: progress}
	if len(b.cases) == 0 {
		return errors.New("no case has such words: see the report for theirs")
	}
	if b.kernel, err = findKernelThread(settings.cpu); err != nil {
		return err
	}
	r := &report{bench: b}
	if settings.only == nil {
		if r.memory, err = measureMemory(ctx, helper, settings); err != nil {
			return err
		}
	}
	err = b.inWorlds(ctx, helper, variants(settings), func() error {
		if err := errors.Join(b.calibrate(), b.run(ctx)); err != nil || ctx.Err() != nil {
			return err
		}
		r.programs, err = b.programCosts()
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(r.write(output), r.replace(settings.document), b.verdict())
}

// inWorlds makes a world for each variant, one in the other, and runs body in the last. The worlds outlive an interrupt:
// what has been measured until then is reported.
func (b *bench) inWorlds(ctx context.Context, helper []string, left []variant, body func() error) error {
	if len(left) == 0 {
		return body()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return lab.Run(context.WithoutCancel(ctx), helper, func(l *lab.Lab) error {
		fmt.Fprintf(b.progress, "make a world with %s\n", left[0].name())
		serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		w, err := newWorld(ctx, serving, l, left[0], b.settings)
		if err != nil {
			return err
		}
		b.worlds = append(b.worlds, w)
		return b.inWorlds(ctx, helper, left[1:], body)
	})
}

// verdict is an error when operations failed: figures are no proof then.
func (b *bench) verdict() error {
	if len(b.failures) > 0 {
		return fmt.Errorf("%d samples failed, the first: %s", len(b.failures), b.failures[0])
	}
	return nil
}
