// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/events"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// TestABindConflictIsToldOnceInAWhile: a process that crashes on its taken port is started again for ever.
func TestABindConflictIsToldOnceInAWhile(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	now := time.Unix(1000, 0)
	reader := &traceReader{
		names:    func(uint32) (maps.ServiceName, bool, error) { return maps.ServiceName{}, true, nil },
		reporter: events.New(events.Options{Log: log}), log: log, now: func() time.Time { return now },
	}
	told := func(port uint16, pid uint32) int {
		before := strings.Count(text.String(), "\n")
		e := maps.TraceEvent{ServiceID: 1, PID: pid, Kind: maps.EventBindConflict}
		e.Frontend = maps.Frontend{Address: maps.AddressOf(netip.MustParseAddr("0.0.0.0")), Port: port, Protocol: 6}
		copy(e.Command[:], "crasher")
		reader.bindConflict(e)
		return strings.Count(text.String(), "\n") - before
	}
	if told(30080, 1) != 1 {
		t.Error("a conflict is not told of")
	}
	for pid := range uint32(1000) {
		if told(30080, pid+2) != 0 {
			t.Fatalf("told of again with pid %d", pid+2)
		}
	}
	if told(30081, 2) != 1 {
		t.Error("a conflict on another port is not told of")
	}
	now = now.Add(conflictPause)
	if told(30080, 3) != 1 {
		t.Error("not told of again after the pause")
	}
	for port := range uint16(2 * maxConflicts) {
		told(port, 1)
	}
	if len(reader.told) > maxConflicts {
		t.Errorf("%d conflicts are remembered, at most %d should be", len(reader.told), maxConflicts)
	}
}
