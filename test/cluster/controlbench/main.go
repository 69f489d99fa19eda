// SPDX-License-Identifier: Apache-2.0

// Command controlbench measures control planes: what it takes kube-proxy in its modes and shunt, fed by one API server
// with the same Services, to begin to serve them all, and to follow changes. docs/benchmarks.md describes such runs.
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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/cluster/probe"
	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab"
)

// helperArgument is by which this program runs itself as the processes of its labs.
const helperArgument = "lab-helper"

func main() {
	if len(os.Args) > 1 && os.Args[1] == helperArgument {
		exit(lab.Helper(os.Args[2:], probe.Operations(), operations()))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{out: os.Stdout}
	sizes := flag.String("services", "100,1000,5000,10000", "numbers of Services")
	names := flag.String("proxies", strings.Join(proxyNames(), ","), "what to measure")
	flag.IntVar(&b.changes, "changes", 30, "single changes that are measured")
	flag.DurationVar(&b.churn, "churn", 15*time.Second, "how long 100 changes a second are made")
	flag.DurationVar(&b.patience, "patience", 2*time.Minute, "when a proxy that has not begun to serve is given up")
	flag.Parse()
	exit(errors.Join(b.choose(*sizes, *names), flagsLeft()))
	exit(b.run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "controlbench:", err)
		os.Exit(1)
	}
}

func flagsLeft() error {
	if flag.NArg() > 0 {
		return fmt.Errorf("read flags: %q is none", flag.Arg(0))
	}
	return nil
}

// bench is one run of the program.
type bench struct {
	sizes    []int
	proxies  []proxy
	changes  int
	churn    time.Duration
	patience time.Duration
	out      io.Writer

	cluster *world.Cluster
	shunt   string
	loaded  int  // Services that the API server has
	flipped bool // the probed Service leads to the double
}

func (b *bench) choose(sizes, names string) error {
	for text := range strings.SplitSeq(sizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil || size < 1 || size > mostServices {
			return fmt.Errorf("read --services: %q is no number from 1 to %d", text, mostServices)
		}
		b.sizes = append(b.sizes, size)
	}
	slices.Sort(b.sizes)
	for name := range strings.SplitSeq(names, ",") {
		found := slices.IndexFunc(proxies, func(p proxy) bool { return p.name == name })
		if found < 0 {
			return fmt.Errorf("read --proxies: %q is none of %s", name, strings.Join(proxyNames(), ", "))
		}
		b.proxies = append(b.proxies, proxies[found])
	}
	return nil
}

func (b *bench) run(ctx context.Context) error {
	return lab.Run(ctx, []string{helperArgument}, func(l *lab.Lab) error {
		var err error
		if b.cluster, err = world.NewCluster(l); err != nil {
			return err
		}
		b.shunt = filepath.Join(l.Directory(), "shunt-binary")
		if err := binaries.BuildShunt(b.shunt); err != nil {
			return err
		}
		if err := b.makeProbed(ctx); err != nil {
			return err
		}
		b.printMachine()
		for _, size := range b.sizes {
			if err := b.measureSize(ctx, size); err != nil {
				return err
			}
		}
		return nil
	})
}

// measureSize measures every proxy with a number of Services, and prints them beside each other.
func (b *bench) measureSize(ctx context.Context, size int) error {
	if err := b.load(ctx, size); err != nil {
		return err
	}
	var results []result
	for _, p := range b.proxies {
		if size > p.most {
			continue
		}
		fmt.Fprintf(os.Stderr, "%d Services, %s\n", size, p.name)
		measured, err := b.measure(ctx, p, size)
		if err != nil {
			return fmt.Errorf("measure %s with %d Services: %w", p.name, size, err)
		}
		results = append(results, measured)
	}
	b.printResults(size, results)
	return nil
}
