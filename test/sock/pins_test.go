// SPDX-License-Identifier: Apache-2.0

package sock

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

func TestANewVersionReplacesTheProgramsWithoutAGap(t *testing.T) {
	w := newWorld(t)
	if !w.datapath.Fresh {
		t.Error("the first maps are not fresh")
	}
	s := w.serve(tcp, "10.96.0.10:80", w.pod("server"))
	w.address("10.96.0.10", maps.AddressClusterIP)
	connects := w.pod("client").StartConnects(process.ConnectsRequest{Network: tcp, Address: s.frontends[0], Workers: 2})
	before := attachments(w)
	for i := range 10 {
		w.load(func(o *loader.Options) { o.Capacity.Services = uint32(300 + i) })
		if w.datapath.Fresh || len(w.datapath.Resized) != 0 {
			t.Errorf("fresh: %t, not resized: %v", w.datapath.Fresh, w.datapath.Resized)
		}
	}
	result := connects.Stop()
	if result.Total() == 0 || len(result.Errnos) != 0 {
		t.Errorf("%d connects, errors %v", result.Total(), result.Errnos)
	}
	for name, program := range attachments(w) {
		if before[name] == program {
			t.Errorf("%s is still the first program", name)
		}
	}
	if len(before) != len(w.datapath.Programs) || len(before) != 10 {
		t.Errorf("attached: %v", before)
	}
}

func attachments(w *world) map[string]ebpf.ProgramID {
	w.t.Helper()
	list, err := attach.List(w.node.BPFFS)
	w.must(err)
	programs := map[string]ebpf.ProgramID{}
	for _, a := range list {
		programs[a.Name] = a.Program
	}
	return programs
}

func TestASecondAgentIsRefused(t *testing.T) {
	w := newWorld(t)
	_, err := loader.Lock(w.node.BPFFS)
	if !errors.Is(err, loader.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("lock: %v", err)
	}
	if err := attach.Cleanup(w.node.BPFFS); !errors.Is(err, loader.ErrLocked) {
		t.Errorf("cleanup: %v", err)
	}
}

func TestADirectoryThatIsNoBPFFSIsRefused(t *testing.T) {
	for _, path := range []string{t.TempDir(), "/does/not/exist"} {
		if _, err := loader.Lock(path); err == nil || !strings.Contains(err.Error(), "mount -t bpf bpf "+path) {
			t.Errorf("lock %s: %v", path, err)
		}
	}
}

func TestMapsOfAnotherLayoutAreRefusedByName(t *testing.T) {
	rows := []struct {
		name  string
		spoil func(w *world)
		want  string
	}{
		{"meta of another version", func(w *world) {
			w.must(w.maps.PutMeta(maps.Meta{LayoutVersion: maps.LayoutVersion + 1, NextBackendID: 1}))
		}, "/meta: its layout is"},
		{"another value", func(w *world) { replacePin(w, maps.MapBackends, ebpf.Hash, 4, 24, 0) }, "/backends: it is a Hash"},
		{"another type", func(w *world) { replacePin(w, maps.MapAffinity, ebpf.Hash, 32, 16, 0) }, "/affinity: it is a Hash"},
		{"other flags", func(w *world) { replacePin(w, maps.MapSlots, ebpf.Array, 4, 4, 0) }, "/slots: it is a Array"},
		{"no meta", func(w *world) {
			w.must(os.Remove(filepath.Join(w.pins.Path, maps.MapMeta)))
		}, "map meta is missing"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			row.spoil(w)
			_, err := loader.Load(loader.Options{Directory: w.pins, Capacity: smallCapacity})
			if !errors.Is(err, loader.ErrLayout) || !strings.Contains(err.Error(), row.want) ||
				!strings.Contains(err.Error(), "shunt cleanup") {
				t.Errorf("load: %v", err)
			}
		})
	}
}

func replacePin(w *world, name string, kind ebpf.MapType, key, value, flags uint32) {
	w.t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: key, ValueSize: value, MaxEntries: 256, Flags: flags})
	w.must(err)
	defer m.Close()
	path := filepath.Join(w.pins.Path, name)
	w.must(os.Remove(path))
	w.must(m.Pin(path))
}

func TestMapsAreResizedWithTheirContent(t *testing.T) {
	w := newWorld(t)
	client, server := w.pod("client"), w.pod("server")
	s := w.serve(tcp, "10.96.0.10:80", server)
	s.affinity = time.Hour
	w.program(s)
	bound(t, client, s.frontends[0], 3)
	stats := w.stats(s)
	larger := loader.Capacity{Services: 512, Backends: 300, Slots: 4096, Affinity: 500, SourceRanges: 100}
	smaller := loader.Capacity{Services: 128, Backends: 200, Slots: 4096, Affinity: 100, SourceRanges: 32}
	for _, c := range []loader.Capacity{larger, smaller} {
		w.load(func(o *loader.Options) { o.Capacity = c })
		for name, want := range map[string]uint32{
			maps.MapServices: c.Services, maps.MapServiceStats: c.Services, maps.MapAddresses: c.Services + 1024,
			maps.MapServiceNames: c.Services, maps.MapBackends: c.Backends, maps.MapSlots: c.Slots,
			maps.MapAffinity: c.Affinity, maps.MapSourceRanges: c.SourceRanges,
		} {
			pinned, err := ebpf.LoadPinnedMap(filepath.Join(w.pins.Path, name), nil)
			w.must(err)
			if pinned.MaxEntries() != want || w.datapath.Maps[name].MaxEntries() != want {
				t.Errorf("map %s has %d elements pinned, %d loaded, want %d", name, pinned.MaxEntries(),
					w.datapath.Maps[name].MaxEntries(), want)
			}
			pinned.Close()
		}
		if got := w.stats(s); got != stats {
			t.Errorf("counters %+v, before %+v", got, stats)
		}
		bound(t, client, s.frontends[0], 3)
		if w.stats(s).Connections != stats.Connections+3 {
			t.Errorf("the programs count in another map")
		}
		stats = w.stats(s)
		entries := 0
		for _, err := range w.maps.AffinityEntries() {
			w.must(err)
			entries++
		}
		if entries != 1 {
			t.Errorf("%d bindings, want 1", entries)
		}
	}
	// What is in it does not fit, or its cells are in use: the map stays, and everything works.
	w.load(func(o *loader.Options) { o.Capacity = loader.Capacity{Slots: 512, Services: 128} })
	if kept := w.datapath.Resized; len(kept) != 1 || kept[0].Map != maps.MapSlots || kept[0].Pinned != 4096 ||
		!strings.Contains(kept[0].String(), "stays at 4096 elements, 512 were asked for") {
		t.Errorf("not resized: %v", kept)
	}
	other := w.program(&service{protocol: protocolTCP, frontends: []netip.AddrPort{addrPort("10.96.0.11:80")},
		backends: s.backends})
	w.load(func(o *loader.Options) { o.Capacity = loader.Capacity{Services: 1} })
	if kept := w.datapath.Resized; len(kept) != 1 || kept[0].Map != maps.MapServices || kept[0].Pinned != 128 {
		t.Errorf("not resized: %v", kept)
	}
	for _, s := range []*service{s, other} {
		if reply := client.Dial(tcp, s.frontends[0]).Exchange("x"); reply.Server != "server" {
			t.Errorf("%s: %+v", s.frontends[0], reply)
		}
	}
}

// TestCountersOfServiceIDsInUseStay: after many Services have gone, the ids of the few that are left may be high ones.
func TestCountersOfServiceIDsInUseStay(t *testing.T) {
	w := newWorld(t)
	before, inUse := smallCapacity.Services, smallCapacity.Services/2
	_, err := w.maps.PutServiceNames([]uint32{inUse}, []maps.ServiceName{{Protocol: protocolTCP, Family: 4}})
	w.must(err)
	w.load(func(o *loader.Options) { o.Capacity.Services = inUse })
	if kept := w.datapath.Resized; len(kept) != 1 || kept[0].Map != maps.MapServiceStats || kept[0].Pinned != before {
		t.Errorf("not resized: %v, want %s alone", kept, maps.MapServiceStats)
	}
	if _, err := w.maps.ResetServiceStats([]uint32{inUse}); err != nil {
		t.Errorf("an id cannot be given up: %v", err)
	}
	w.load(func(o *loader.Options) { o.Capacity.Services = inUse + 1 })
	if kept := w.datapath.Resized; len(kept) != 0 {
		t.Errorf("not resized, though all ids fit: %v", kept)
	}
}

func TestALinkOnAnotherCgroupOrADeadOneIsReplaced(t *testing.T) {
	w := newWorld(t)
	s := w.serve(tcp, "10.96.0.10:80", w.pod("server"))
	names := []string{"sock_connect4", "sock_connect6", "sock_sendmsg4"}
	w.must(attach.Verify(w.node.BPFFS, w.node.CgroupRoot, names))

	other := filepath.Join(w.node.CgroupRoot, "other")
	w.must(os.Mkdir(other, 0o755))
	w.must(attach.Sockets(w.pins, other, w.datapath.Programs))
	if err := attach.Verify(w.node.BPFFS, w.node.CgroupRoot, names); err == nil ||
		!strings.Contains(err.Error(), "sock_connect4 is attached to another cgroup") {
		t.Errorf("verify: %v", err)
	}
	w.must(os.Remove(other))
	// The kernel lets go of a removed cgroup's links a moment later.
	gone := "sock_connect4 was attached to a cgroup that is gone"
	for deadline := time.Now().Add(usual); ; time.Sleep(time.Millisecond) {
		err := attach.Verify(w.node.BPFFS, w.node.CgroupRoot, names)
		if err != nil && strings.Contains(err.Error(), gone) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("verify: %v", err)
		}
	}
	w.must(attach.Sockets(w.pins, w.node.CgroupRoot, w.datapath.Programs))
	w.must(attach.Verify(w.node.BPFFS, w.node.CgroupRoot, names))
	if reply := w.pod("client").Dial(tcp, s.frontends[0]).Exchange("x"); reply.Server != "server" {
		t.Errorf("attached again: %+v", reply)
	}
}

func TestCleanupLeavesNothing(t *testing.T) {
	w := newWorld(t)
	client := w.pod("client")
	s := w.serve(udp, "10.96.0.10:53", w.pod("server"))
	if reply := client.Dial(udp, s.frontends[0]).Exchange("x"); reply.Server != "server" {
		t.Fatalf("before: %+v", reply)
	}
	w.must(w.pins.Close())
	w.must(attach.Cleanup(w.node.BPFFS))
	if _, err := os.Stat(w.pins.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pin directory is still there: %v", err)
	}
	if remote := client.Dial(udp, s.frontends[0]).Inspect().KernelRemote; remote != s.frontends[0] {
		t.Errorf("still translated: the kernel dialled %s", remote)
	}
	if err := attach.Verify(w.node.BPFFS, w.node.CgroupRoot, []string{"sock_connect4"}); err == nil ||
		!strings.Contains(err.Error(), "sock_connect4 is not attached") {
		t.Errorf("verify: %v", err)
	}
	w.must(attach.Cleanup(w.node.BPFFS))
}

func TestTheCgroupRootMustBeOfVersion2(t *testing.T) {
	node := lab.New(t).Node(lab.NodeOptions{})
	if path, err := attach.CgroupRoot(node.CgroupRoot); err != nil || path != node.CgroupRoot {
		t.Errorf("%s: %v", path, err)
	}
	for _, path := range []string{t.TempDir(), "/does/not/exist"} {
		if _, err := attach.CgroupRoot(path); err == nil || !strings.Contains(err.Error(), "correct --cgroup-root") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := attach.CgroupRoot(""); err != nil {
		t.Errorf("the machine's own: %v", err)
	}
}
