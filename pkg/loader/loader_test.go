// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/shunt-lb/shunt/pkg/maps"
)

func TestDefaultsFollowTheMachine(t *testing.T) {
	const gib = 1 << 30
	rows := []struct {
		name string
		machine
		given, want Capacity
	}{
		{"a small node", machine{gib / 2, 1}, Capacity{}, Capacity{8192, 16384, 65536, 8192, 16384}},
		{"a usual node", machine{16 * gib, 4}, Capacity{}, Capacity{65536, 262144, 1048576, 131072, 16384}},
		{"many processors and little memory", machine{8 * gib, 256}, Capacity{}, Capacity{8192, 262144, 1048576, 131072, 16384}},
		{"what is given stays, slots follow backends", machine{8 * gib, 2}, Capacity{Backends: 100000},
			Capacity{65536, 100000, 400000, 131072, 16384}},
		{"all given", machine{8 * gib, 2}, Capacity{1, 2, 3, 4, 5}, Capacity{1, 2, 3, 4, 5}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if got := row.given.withDefaults(row.machine); got != row.want {
				t.Errorf("%+v, want %+v", got, row.want)
			}
		})
	}
}

func TestARefusedProgramIsNamedAndItsLogIsForDebugging(t *testing.T) {
	refused := fmt.Errorf("program sock_connect4: load program: %w", &ebpf.VerifierError{
		Cause: syscall.E2BIG, Log: []string{"0: (bf) r6 = r1", "BPF program is too large"},
	})
	var log bytes.Buffer
	err := programError(refused, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	var program *ProgramError
	if !errors.As(err, &program) || program.Program != "sock_connect4" || !errors.Is(err, syscall.E2BIG) {
		t.Errorf("error %#v", err)
	}
	if strings.Contains(err.Error(), "r6 = r1") || !strings.Contains(err.Error(), "--v=4") {
		t.Errorf("a user would read: %v", err)
	}
	if !strings.Contains(log.String(), "r6 = r1") {
		t.Errorf("the debug log has: %s", log.String())
	}
	if err := programError(refused, nil); err == nil {
		t.Error("without a log there is no error")
	}
	if err := programError(syscall.EPERM, nil); !errors.Is(err, ErrPermission) {
		t.Errorf("no privilege: %v", err)
	}
}

func TestOnlyMapsOfThePathAreMade(t *testing.T) {
	spec, err := specOf(Options{NetnsCookie: 1, Capacity: Capacity{Services: 7}}, Features{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{maps.MapServices, maps.MapMeta, maps.MapServiceNames, maps.MapTrace, "udp_flows"} {
		if spec.Maps[name] == nil {
			t.Errorf("map %s is missing", name)
		}
	}
	if spec.Maps["conntrack"] != nil {
		t.Error("a map of the packet path is made")
	}
	if n := spec.Maps[maps.MapServiceNames].MaxEntries; n != 7 {
		t.Errorf("service_names has %d elements", n)
	}
}
