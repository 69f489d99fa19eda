// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"time"

	"github.com/shunt-lb/shunt/test/cluster/perf/traffic"
	"github.com/shunt-lb/shunt/test/lab"
)

// family of addresses.
type family int

var families = []family{4, 6}

func (f family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

func (f family) of(four, six netip.Addr) netip.Addr {
	if f == 4 {
		return four
	}
	return six
}

// path is who talks to whom, and through what.
type path struct {
	name    string
	target  float64 // what shunt may cost, as a ratio to direct traffic
	client  func(*world) *lab.Process
	server  func(*world) *lab.Process
	service func(*world, family) netip.AddrPort
	kinds   []traffic.Kind
}

// direct is the server without a Service.
func (p path) direct(w *world, f family) netip.AddrPort {
	server := p.server(w)
	return netip.AddrPortFrom(f.of(server.Address4, server.Address6), serverPort)
}

func clientPod(w *world) *lab.Process     { return w.client }
func outsideClient(w *world) *lab.Process { return w.outside }
func localServer(w *world) *lab.Process   { return w.local }
func remoteServer(w *world) *lab.Process  { return w.remote }

var (
	connections = []traffic.Kind{traffic.Connect, traffic.Exchange, traffic.Request, traffic.Flow}
	everything  = append(connections[:len(connections):len(connections)], traffic.Stream, traffic.Bulk)
)

var paths = []path{
	{name: "pod → pod, no Service", target: 1.02, client: clientPod, server: localServer, kinds: connections,
		service: func(w *world, f family) netip.AddrPort {
			return netip.AddrPortFrom(f.of(w.local.Address4, w.local.Address6), serverPort)
		}},
	{name: "pod → ClusterIP → pod", target: 1.03, client: clientPod, server: localServer, kinds: connections,
		service: func(_ *world, f family) netip.AddrPort {
			return netip.AddrPortFrom(f.of(toLocal.address4, toLocal.address6), dialedPort)
		}},
	{name: "outside → node port → local pod", target: 1.08, client: outsideClient, server: localServer, kinds: everything,
		service: func(w *world, f family) netip.AddrPort {
			return netip.AddrPortFrom(f.of(w.node.Address4, w.node.Address6), toLocal.nodePort)
		}},
	{name: "outside → node port → pod on another node", target: 1.18, client: outsideClient, server: remoteServer, kinds: everything,
		service: func(w *world, f family) netip.AddrPort {
			return netip.AddrPortFrom(f.of(w.node.Address4, w.node.Address6), toRemote.nodePort)
		}},
}

// benchCase is one row of the report.
type benchCase struct {
	path   path
	family family
	kind   traffic.Kind
	count  int // operations of a sample, the same in all worlds
}

func selectCases(only *regexp.Regexp) []*benchCase {
	var all []*benchCase
	for _, p := range paths {
		for _, f := range families {
			for _, kind := range p.kinds {
				if c := (&benchCase{path: p, family: f, kind: kind}); matches(only, c.name()) {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

func (c *benchCase) name() string { return fmt.Sprintf("%s, %s, %s", c.path.name, c.family, c.kind) }

// work is what the client of a world does for the case: with no proxy it dials the server itself.
func (c *benchCase) work(w *world) traffic.Work {
	to := c.path.direct(w, c.family)
	if w.variant.command != nil {
		to = c.path.service(w, c.family)
	}
	return traffic.Work{Kind: c.kind, To: to, Count: c.count}
}

// sample is what an operation cost, in the mean of many.
type sample struct {
	CPU          float64 // nanoseconds of client, server and kernel
	Rate         float64 // a second
	Median, Slow time.Duration
}

// bench holds the worlds and what was measured in them.
type bench struct {
	settings settings
	kernel   kernelThread
	worlds   []*world
	cases    []*benchCase
	samples  map[*benchCase]map[*world][]sample
	rounds   int // that are complete
	failures []string
	progress io.Writer
	// began and ended are when the rounds were, and load is the machine's load average before them.
	began, ended time.Time
	load         float64
}

// mostConnections bounds the ports that wait for the end of TIME_WAIT at once.
const mostConnections = 2000

// calibrate finds how many operations take as long as a sample should, on the first, direct, world.
func (b *bench) calibrate() error {
	for _, c := range b.cases {
		c.count = 64
		for {
			s, err := b.sample(c, b.worlds[0])
			if err != nil {
				return fmt.Errorf("calibrate %s: %w", c.name(), err)
			}
			if cost := s.CPU * float64(c.count); cost < float64(b.settings.sample)/8 && c.kind != traffic.Bulk {
				c.count *= 2
				continue
			}
			c.count = max(1, int(float64(b.settings.sample)/s.CPU))
			break
		}
		if c.kind == traffic.Connect || c.kind == traffic.Exchange || c.kind == traffic.Flow {
			c.count = min(c.count, mostConnections)
		}
	}
	return nil
}

func (b *bench) sample(c *benchCase, w *world) (sample, error) {
	return w.measure(c.path.client(w), c.path.server(w), c.work(w), b.kernel)
}

// run measures each case in all worlds, one after the other in a new order, and so for all rounds: what disturbs the
// machine disturbs all of them. It ends after the round in which the context does.
func (b *bench) run(ctx context.Context) error {
	b.samples = map[*benchCase]map[*world][]sample{}
	b.load, b.began = loadAverage(), time.Now()
	for round := 0; round < b.settings.rounds && ctx.Err() == nil; round++ {
		fmt.Fprintf(b.progress, "round %d of %d\n", round+1, b.settings.rounds)
		for _, c := range b.cases {
			if err := b.roundOf(c); err != nil {
				return err
			}
		}
		b.rounds++
	}
	if b.rounds == 0 {
		return context.Cause(ctx)
	}
	b.ended = time.Now()
	return nil
}

// roundOf keeps samples of all worlds or, when an operation fails in one, of none, so that rounds can be compared.
func (b *bench) roundOf(c *benchCase) error {
	taken := map[*world]sample{}
	for _, i := range rand.Perm(len(b.worlds)) {
		w := b.worlds[i]
		warm := *c
		warm.count = max(1, c.count/16)
		_, err := b.sample(&warm, w)
		if err == nil {
			taken[w], err = b.sample(c, w)
		}
		if errors.Is(err, lab.ErrProcessEnded) {
			return err
		}
		if err != nil {
			b.failures = append(b.failures, fmt.Sprintf("%s: %v", c.name(), err))
			fmt.Fprintln(b.progress, b.failures[len(b.failures)-1])
			return nil
		}
	}
	if b.samples[c] == nil {
		b.samples[c] = map[*world][]sample{}
	}
	for w, s := range taken {
		b.samples[c][w] = append(b.samples[c][w], s)
	}
	return nil
}

// ratios are the costs of a world by those of direct traffic, one for each round.
func (b *bench) ratios(c *benchCase, w *world) spread {
	var all []float64
	for round, s := range b.samples[c][w] {
		all = append(all, s.CPU/b.samples[c][b.worlds[0]][round].CPU)
	}
	return newSpread(all)
}

func (b *bench) column(c *benchCase, w *world, value func(sample) float64) spread {
	var all []float64
	for _, s := range b.samples[c][w] {
		all = append(all, value(s))
	}
	return newSpread(all)
}
