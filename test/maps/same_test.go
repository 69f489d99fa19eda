// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/writer"
)

// dump is all that a Reader shows, in an order of its own.
func dump(t *testing.T, r maps.Reader) []string {
	t.Helper()
	var lines []string
	add := func(kind string, value any) { lines = append(lines, fmt.Sprintf("%s %v", kind, value)) }
	for _, e := range collect(t, r.Services()) {
		add("service", e)
		for _, run := range []maps.Run{e.Value.Internal, e.Value.External} {
			cells, err := r.Slots(run)
			if err != nil {
				t.Fatal(err)
			}
			add("cells", cells)
		}
	}
	for _, e := range collect(t, r.Backends()) {
		add("backend", e)
	}
	for _, e := range collect(t, r.Addresses()) {
		add("address", e)
	}
	for _, e := range collect(t, r.ServiceNames()) {
		add("name", e)
	}
	for _, e := range collect(t, r.SourceRanges()) {
		add("range", e)
	}
	meta, err := r.Meta()
	if err != nil {
		t.Fatal(err)
	}
	add("meta", meta)
	slices.Sort(lines)
	return lines
}

// randomChange is a Service with frontends of its own and backends that vary.
func randomChange(random *rand.Rand, service int) plan.Change {
	c := plan.Change{Service: model.ServiceName{Namespace: "ns", Name: fmt.Sprint("s", service)}}
	if random.IntN(5) == 0 {
		return c
	}
	p := model.ServicePort{Name: model.ServicePortName{ServiceName: c.Service, Protocol: model.TCP, Family: model.IPv6}}
	for i := range random.IntN(8) {
		p.Backends = append(p.Backends, model.Backend{
			Address: netip.MustParseAddr(fmt.Sprintf("fd00::%x", i+random.IntN(9)*16)), Port: 80, Cluster: true,
			Local: random.IntN(2) == 0, OnNode: random.IntN(2) == 0,
		})
	}
	slices.SortFunc(p.Backends, func(a, b model.Backend) int { return a.Address.Compare(b.Address) })
	p.Backends = slices.CompactFunc(p.Backends, func(a, b model.Backend) bool { return a.Address == b.Address })
	for i := range 1 + random.IntN(3) {
		p.Frontends = append(p.Frontends, model.Frontend{
			FrontendKey: model.FrontendKey{
				Address: netip.MustParseAddr(fmt.Sprintf("fd01::%x:%x", service, i)), Port: 443, Protocol: model.TCP,
			},
			Kind:     model.Kind(1 + random.IntN(3)),
			External: model.Target{Local: random.IntN(2) == 0},
		})
	}
	if random.IntN(2) == 0 {
		p.SourceRanges = []netip.Prefix{netip.MustParsePrefix("fd00:1::/32"), netip.MustParsePrefix("fd00:2::/40")}
	}
	c.Ports = []model.ServicePort{p}
	return c
}

func TestTheKernelAndTheFakeHoldTheSame(t *testing.T) {
	capacity := map[string]uint32{maps.MapServices: 40, maps.MapBackends: 90, maps.MapSlots: 120, maps.MapSourceRanges: 24}
	pinned, _ := kernel(t, capacity)
	for _, name := range []string{maps.MapAddresses, maps.MapServiceNames, maps.MapServiceStats} {
		capacity[name] = size
	}
	fake := maps.NewFake(capacity)
	now := time.Unix(0, 0)
	options := writer.Options{Now: func() time.Time { return now }}
	writers := []*writer.Writer{
		writer.New(pinned, plan.New(writer.LimitsOf(pinned)), options),
		writer.New(fake, plan.New(writer.LimitsOf(fake)), options),
	}
	random := rand.New(rand.NewPCG(3, 4))
	failures, successes := 0, 0
	for range 300 {
		changes := []plan.Change{}
		for service := range 20 {
			if random.IntN(4) == 0 {
				changes = append(changes, randomChange(random, service))
			}
		}
		onReal, onFake := writers[0].Write(changes), writers[1].Write(changes)
		if !reflect.DeepEqual(names(onReal), names(onFake)) || onReal.Operations != onFake.Operations {
			t.Fatalf("the kernel: %+v, the fake: %+v", onReal, onFake)
		}
		failures += len(onReal.Failures)
		successes += onReal.Operations
		if got, want := dump(t, pinned), dump(t, fake); !slices.Equal(got, want) {
			t.Fatalf("the kernel holds\n%v\nthe fake\n%v", got, want)
		}
		now = now.Add(writer.DefaultGrace / 2)
		for _, w := range writers {
			if err := w.Collect().Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if failures == 0 || successes == 0 {
		t.Fatalf("%d failures and %d operations prove little", failures, successes)
	}
	state, err := writer.ReadBack(pinned, writer.LimitsOf(pinned))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := state.FreeSlots(), writers[0].State().FreeSlots(); got < want {
		t.Fatalf("%d cells are free after reading back, %d before", got, want)
	}
}

// names is who failed and why, in an order of its own.
func names(r writer.Result) []string {
	lines := make([]string, len(r.Failures))
	for i, f := range r.Failures {
		lines[i] = fmt.Sprintf("%v: %v", f.Port, f.Err)
	}
	slices.SortFunc(lines, cmp.Compare[string])
	return lines
}
