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
