// SPDX-License-Identifier: Apache-2.0

package process

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"
)

// loop is a series of connections that runs until it is stopped or has made its count.
type loop struct {
	request ConnectsRequest
	left    atomic.Int64
	stopped atomic.Bool
	workers sync.WaitGroup

	mutex  sync.Mutex
	result ConnectsResult
}

// LoopRequest names a series of connections.
type LoopRequest struct {
	Loop int `json:"loop"`
}

func (s *sockets) connects(in ConnectsRequest) (ConnectsResult, error) {
	return startLoop(in).finish(), nil
}

func (s *sockets) startConnects(in ConnectsRequest) (LoopRequest, error) {
	started := startLoop(in)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.next++
	s.loops[s.next] = started
	return LoopRequest{Loop: s.next}, nil
}

func (s *sockets) stopConnects(in LoopRequest) (ConnectsResult, error) {
	s.mutex.Lock()
	started, found := s.loops[in.Loop]
	delete(s.loops, in.Loop)
	s.mutex.Unlock()
	if !found {
		return ConnectsResult{}, errUnknownSocket
	}
	if started.request.Count == 0 {
		started.stopped.Store(true)
	}
	return started.finish(), nil
}

func startLoop(in ConnectsRequest) *loop {
	l := &loop{request: in, result: ConnectsResult{Servers: map[string]int{}, Errnos: map[string]int{}}}
	l.left.Store(int64(in.Count))
	for range max(in.Workers, 1) {
		l.workers.Go(l.work)
	}
	return l
}

func (l *loop) finish() ConnectsResult {
	l.workers.Wait()
	return l.result
}

func (l *loop) work() {
	servers, errnos := map[string]int{}, map[string]int{}
	var slowest time.Duration
	for !l.stopped.Load() && (l.request.Count == 0 || l.left.Add(-1) >= 0) {
		begin := time.Now()
		server, err := l.once(begin.Add(l.request.Timeout))
		if err != nil {
			errnos[errnoName(err)]++
		} else {
			servers[server]++
		}
		slowest = max(slowest, time.Since(begin))
		time.Sleep(l.request.Pause)
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for server, count := range servers {
		l.result.Servers[server] += count
	}
	for errno, count := range errnos {
		l.result.Errnos[errno] += count
	}
	l.result.Slowest = max(l.result.Slowest, slowest)
}

// once makes one connection and asks who is there.
func (l *loop) once(deadline time.Time) (string, error) {
	family := 4
	if !l.request.Address.Addr().Is4() {
		family = 6
	}
	opened, err := newSocket(l.request.Network, family, false)
	if err != nil {
		return "", err
	}
	defer opened.abort()
	if err := opened.connect(l.request.Address, deadline); err != nil || l.request.Silent {
		return "", err
	}
	if err := opened.send([]byte("who\n"), noAddress); err != nil {
		return "", err
	}
	line, _, err := opened.receive(deadline)
	if err != nil {
		return "", err
	}
	var reply Reply
	if err := json.Unmarshal(line, &reply); err != nil {
		return "", err
	}
	return reply.Server, nil
}
