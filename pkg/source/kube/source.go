// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/shunt-lb/shunt/pkg/source"
)

// Timing says how patient the source is.
type Timing struct {
	// NodeGrace is how long the first complete picture waits for the Node.
	NodeGrace time.Duration
	// Repeat is how often a problem that lasts is reported again.
	Repeat time.Duration
	// RetryFirst and RetryMost are the pauses after the first failure of a watch and after many.
	RetryFirst, RetryMost time.Duration
}

// DefaultTiming is for a cluster of any size: after an outage its nodes come back over half a minute.
func DefaultTiming() Timing {
	return Timing{NodeGrace: 30 * time.Second, Repeat: 5 * time.Minute,
		RetryFirst: 800 * time.Millisecond, RetryMost: 30 * time.Second}
}

// Source watches an API server.
type Source struct {
	client *Client
	node   string
	timing Timing
	first  []source.Event
}

var _ source.Source = (*Source)(nil)

// New returns the source for the node of that name.
func New(client *Client, node string, timing Timing) *Source {
	return &Source{client: client, node: node, timing: timing}
}

// Run delivers the cluster's objects and their changes until ctx ends.
func (s *Source) Run(ctx context.Context, events chan<- source.Event) error {
	// What goes wrong is reported as problems; client-go's own log would say it a second time, and differently.
	ctx = klog.NewContext(ctx, logr.Discard())
	send := func(e source.Event) { source.Send(ctx, events, e) }
	for _, e := range s.first {
		send(e)
	}
	services, slices, nodes, cidrs := resources(s.client, s.node)
	gate := &gate{missing: map[string]bool{services.name: true, slices.name: true, nodes.name: true},
		open: func() { send(source.Synced{}) }}

	var watches sync.WaitGroup
	start := func(r resource, send func(source.Event), gone func(name) source.Event) {
		m := &monitor{resource: &r, send: func(e source.Event) { source.Send(ctx, events, e) },
			repeat: s.timing.Repeat, now: time.Now}
		st := &store{ctx: ctx, resource: &r, send: send, gone: gone, known: map[name]struct{}{}}
		st.listed = func() { gate.arrive(r.name) }
		if r.name == nodes.name {
			m.forbidden = st.listed
			st.listed = func() {
				if len(st.known) == 0 {
					send(goneNode(name{name: s.node}))
				}
				gate.arrive(r.name)
			}
		}
		for _, e := range s.first {
			st.expect(e)
		}
		reflector := s.reflector(&r, st, m)
		watches.Go(func() { reflector.RunWithContext(ctx) })
	}
	start(services, send, goneService)
	start(slices, send, goneSlice)
	start(nodes, distinct(reportNode(send)), goneNode)
	start(cidrs, merge(distinct(send)), goneCIDR)

	grace := time.AfterFunc(s.timing.NodeGrace, func() { gate.arrive(nodes.name) })
	defer grace.Stop()
	<-ctx.Done()
	watches.Wait()
	return ctx.Err()
}

func (s *Source) reflector(r *resource, st *store, m *monitor) *cache.Reflector {
	const factor, steps = 2, 32
	backoff := &wait.Backoff{Duration: s.timing.RetryFirst, Cap: s.timing.RetryMost, Factor: factor, Steps: steps, Jitter: 1}
	quiet := logr.Discard()
	lw := r.listWatch(s.client.parameters, m)
	return cache.NewReflectorWithOptions(lw, r.example, st,
		cache.ReflectorOptions{Name: r.name, Logger: &quiet, Backoff: backoff})
}

// gate opens once, when everything that is missing has arrived.
type gate struct {
	mu      sync.Mutex
	missing map[string]bool
	open    func()
}

func (g *gate) arrive(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.missing) == 0 {
		return
	}
	if delete(g.missing, what); len(g.missing) == 0 {
		g.open()
	}
}
