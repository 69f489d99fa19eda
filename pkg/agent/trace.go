// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/shunt-lb/shunt/pkg/events"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// traceReader tells of what the programs put into the trace buffer.
type traceReader struct {
	buffer   *ebpf.Map
	names    func(serviceID uint32) (maps.ServiceName, bool, error)
	reporter *events.Recorder
	log      *slog.Logger
	// now is the clock; nil: time.Now.
	now func() time.Time
	// told is when each conflict was told of.
	told map[conflict]time.Time
}

// conflict is what makes one bind conflict the same as another: a process that is started again and again, or binds in
// a loop, is one.
type conflict struct {
	serviceID uint32
	bound     netip.AddrPort
	protocol  uint8
	refused   uint8
	command   string
}

const (
	// conflictPause is how long a conflict is not told of again.
	conflictPause = 10 * time.Minute
	// maxConflicts bounds how many are remembered.
	maxConflicts = 1024
)

// isNews tells whether a conflict has not been told of lately, and notes that it is now.
func (t *traceReader) isNews(c conflict) bool {
	now := time.Now()
	if t.now != nil {
		now = t.now()
	}
	if at, known := t.told[c]; known && now.Sub(at) < conflictPause {
		return false
	}
	if t.told == nil || len(t.told) >= maxConflicts {
		t.told = map[conflict]time.Time{}
	}
	t.told[c] = now
	return true
}

// run reads until ctx ends.
func (t *traceReader) run(ctx context.Context) error {
	reader, err := ringbuf.NewReader(t.buffer)
	if err != nil {
		return fmt.Errorf("read trace events: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { reader.Close() })
	defer stop()
	for {
		record, err := reader.Read()
		if errors.Is(err, os.ErrClosed) || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read trace events: %w", err)
		}
		var e maps.TraceEvent
		if err := binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &e); err != nil {
			t.log.Warn("a trace event cannot be read", "err", err)
			continue
		}
		if e.Kind == maps.EventBindConflict {
			t.bindConflict(e)
		}
	}
}

// bindConflict tells that a process has taken a port that a node port uses.
func (t *traceReader) bindConflict(e maps.TraceEvent) {
	command, _, _ := bytes.Cut(e.Command[:], []byte{0})
	bound := netip.AddrPortFrom(e.Frontend.Address.Addr(), e.Frontend.Port)
	if !t.isNews(conflict{e.ServiceID, bound, e.Frontend.Protocol, e.Refused, string(command)}) {
		return
	}
	outcome := "has bound"
	if e.Refused != 0 {
		outcome = "was refused to bind"
	}
	message := fmt.Sprintf("process %s (pid %d) %s %s/%s, a node port of this Service: new connections to it go to the "+
		"Service", command, e.PID, outcome, bound, model.Protocol(e.Frontend.Protocol))
	name, ok, err := t.names(e.ServiceID)
	if err != nil || !ok {
		t.log.Warn(message, "err", err)
		return
	}
	service := model.ServiceName{Namespace: maps.Text(name.Namespace[:]), Name: maps.Text(name.Name[:])}
	t.reporter.Record(events.OnService(service, events.ReasonBindConflict, events.ActionListen, message))
}
