// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"log/slog"
	"time"
)

// stalePause bounds how often sockets are looked through: each look costs a step for each translated socket.
const stalePause = 200 * time.Millisecond

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
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		ended, err := s.end()
		if err != nil {
			s.log.Warn("ending UDP sockets whose backend has gone failed", "err", err)
		}
		if ended > 0 {
			s.log.Debug("ended UDP sockets whose backend has gone", "sockets", ended)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(stalePause):
		}
	}
}
