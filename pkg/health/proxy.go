// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Proxy knows whether the agent keeps up with the changes it is told of, and whether its node should get traffic.
type Proxy struct {
	// now is the clock.
	now func() time.Time
	// patience is how long a change may wait.
	patience time.Duration
	answered func(path string, code int)

	mu       sync.Mutex
	families map[model.Family]*progress
	eligible bool
	ready    bool
}

// progress is one family's.
type progress struct {
	// queued is when the oldest change that is not programmed yet came; zero: none waits.
	queued time.Time
	// updated is when the last sync succeeded.
	updated time.Time
}

// ProxyOptions are what NewProxy needs.
type ProxyOptions struct {
	// SyncPeriod is the configuration's; a change that waits for twice as long makes the agent unhealthy.
	SyncPeriod time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Answered is told each answer; nil: nobody is.
	Answered func(path string, code int)
}

// NewProxy returns a healthy Proxy on a node that is not known yet.
func NewProxy(o ProxyOptions) *Proxy {
	p := &Proxy{now: o.Now, patience: 2 * o.SyncPeriod, answered: o.Answered, families: map[model.Family]*progress{}}
	if p.now == nil {
		p.now = time.Now
	}
	if p.answered == nil {
		p.answered = func(string, int) {}
	}
	return p
}

// Queued says that a change of a family waits to be programmed.
func (p *Proxy) Queued(f model.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.family(f); g.queued.IsZero() {
		g.queued = p.now()
	}
}

// Updated says that everything known of a family is programmed. The start of the sync loop counts as well. One
// family's success says nothing about the other's.
func (p *Proxy) Updated(f model.Family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.family(f)
	g.queued, g.updated = time.Time{}, p.now()
}

func (p *Proxy) family(f model.Family) *progress {
	g, ok := p.families[f]
	if !ok {
		g = &progress{}
		p.families[f] = g
	}
	return g
}

// SetNode says whether load balancers should choose this node: its Node object is known, not being deleted, and not
// about to be removed by the cluster autoscaler.
func (p *Proxy) SetNode(eligible bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eligible = eligible
}

// SetReady says that the first full sync is done.
func (p *Proxy) SetReady() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = true
}

// Healthy reports whether no family's changes have waited too long.
func (p *Proxy) Healthy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.healthyAt(p.now())
}

func (p *Proxy) healthyAt(now time.Time) bool {
	for _, g := range p.families {
		if !p.timely(g, now) {
			return false
		}
	}
	return true
}

func (p *Proxy) timely(g *progress, now time.Time) bool {
	return g.queued.IsZero() || now.Sub(g.queued) < p.patience
}

// status is the body of /healthz and /livez, with kube-proxy's names.
type status struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyStatus `json:"status"`
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// status returns the body, and whether the answer is 200. With node, the node must be eligible too.
func (p *Proxy) status(node bool) (status, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	s := status{CurrentTime: now, Healthy: p.healthyAt(now), Status: map[string]familyStatus{}}
	for f, g := range p.families {
		s.Status[f.String()] = familyStatus{LastUpdated: g.updated, Healthy: p.timely(g, now)}
		if g.updated.After(s.LastUpdated) {
			s.LastUpdated = g.updated
		}
	}
	ok := s.Healthy
	if node {
		eligible := p.eligible
		s.NodeEligible = &eligible
		ok = ok && eligible
	}
	if ok {
		s.LastUpdated = now
	}
	return s, ok
}

// Handler serves /healthz (for load balancers that choose nodes), /livez (for who restarts the agent) and /readyz.
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s, ok := p.status(true)
		p.answer(w, "/healthz", s, ok)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		s, ok := p.status(false)
		p.answer(w, "/livez", s, ok)
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		ready := p.ready
		p.mu.Unlock()
		p.answer(w, "/readyz", map[string]bool{"ready": ready}, ready)
	})
	return mux
}

func (p *Proxy) answer(w http.ResponseWriter, path string, body any, ok bool) {
	code := http.StatusOK
	if !ok {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, body)
	p.answered(path, code)
}

// writeJSON answers with a body that no browser will take for something else.
func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	// A client that has gone is its own affair.
	_ = json.NewEncoder(w).Encode(body)
}
