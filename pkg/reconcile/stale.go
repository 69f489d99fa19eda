// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
)

const (
	// stalePause bounds how often sockets are looked through: each look costs a step for each translated socket.
	stalePause = 200 * time.Millisecond
	// A look that failed is repeated after staleFirstRetry, then after twice as long each time, up to staleMostRetry.
	staleFirstRetry = time.Second
	staleMostRetry  = time.Minute
)

// staleFlows ends connected UDP sockets whose backend has gone, beside the loop: entering the pods' network namespaces
// takes its time.
type staleFlows struct {
	end  func(Keep) (int, error)
	log  *slog.Logger
	wake chan struct{}

	mu sync.Mutex
	// serving has the endpoints that are no backends and may keep their flows, by Service.
	serving map[model.ServiceName]map[serving]struct{}
}

// Keep tells whether an endpoint that is no backend of a service port may keep the flows it has.
type Keep func(port model.ServicePortName, endpoint netip.AddrPort) bool

// serving is an endpoint of a service port.
type serving struct {
	port     model.ServicePortName
	endpoint netip.AddrPort
}

func newStaleFlows(end func(Keep) (int, error), log *slog.Logger) *staleFlows {
	return &staleFlows{end: end, log: log, wake: make(chan struct{}, 1),
		serving: map[model.ServiceName]map[serving]struct{}{}}
}

// serve replaces the endpoints of a Service that may keep their flows.
func (s *staleFlows) serve(name model.ServiceName, endpoints map[serving]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(endpoints) == 0 {
		delete(s.serving, name)
	} else {
		s.serving[name] = endpoints
	}
}

// keep is a Keep.
func (s *staleFlows) keep(port model.ServicePortName, endpoint netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, serves := s.serving[port.ServiceName][serving{port, endpoint}]
	return serves
}

// check asks for a look soon.
func (s *staleFlows) check() {
	select {
	case s.wake <- struct{}{}:
	default: // one is due already, and will see this change too
	}
}

func (s *staleFlows) run(ctx context.Context) {
	if s.end == nil {
		return
	}
	var retry <-chan time.Time
	var backoff time.Duration
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-retry:
		}
		ended, err := s.end(s.keep)
		if ended > 0 {
			s.log.Debug("ended UDP sockets whose backend has gone", "sockets", ended)
		}
		if err == nil {
			retry, backoff, said = nil, 0, ""
		} else {
			backoff = min(max(2*backoff, staleFirstRetry), staleMostRetry)
			retry = time.After(backoff)
			if err.Error() != said { // what lasts is said once
				said = err.Error()
				s.log.Warn("ending UDP sockets whose backend has gone failed, it is tried again", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(stalePause):
		}
	}
}
