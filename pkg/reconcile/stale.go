// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"log/slog"
	"time"
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
	end  func() (int, error)
	log  *slog.Logger
	wake chan struct{}
}

func newStaleFlows(end func() (int, error), log *slog.Logger) *staleFlows {
	return &staleFlows{end: end, log: log, wake: make(chan struct{}, 1)}
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
		ended, err := s.end()
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
