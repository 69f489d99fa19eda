// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"math/bits"
	"runtime"

	"github.com/shunt-lb/shunt/pkg/maps"
	"golang.org/x/sys/unix"
)

// Capacity is how much can be programmed. A zero leaves a pinned map as it is; a new one is sized by the node's memory.
type Capacity struct {
	// Services sizes services, service_names, service_stats and, with room for the node's own, addresses.
	Services uint32
	Backends uint32
	// Slots is the number of cells; a change needs the old and the new run at once, and a service has up to two.
	Slots        uint32
	Affinity     uint32
	SourceRanges uint32
}

// machine is what the defaults are derived from.
type machine struct {
	memory uint64 // bytes
	cpus   int
}

func thisMachine() (machine, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return machine{}, fmt.Errorf("read the machine's memory: %w", err)
	}
	return machine{memory: uint64(info.Totalram) * uint64(info.Unit), cpus: runtime.NumCPU()}, nil
}

const (
	minBackends = 1 << 14
	// maxBackends are more than the 150,000 pods that Kubernetes supports. The agent maps the slots, four for each
	// backend, into its own memory.
	maxBackends = 1 << 18
	// maxServices are several times as many as Kubernetes supports. The kernel makes counters for each, one by one and on
	// each CPU: more of them would be most of the time that a start takes.
	maxServices = 1 << 16
	// bytesPerBackend of the node's memory are behind one backend: all maps together then take about one percent.
	bytesPerBackend = 1 << 15
	// statsShare of the node's memory, at most, is behind service_stats, which has a copy for each CPU.
	statsShare = 200
	// statsBytes is the size of one service's counters on one CPU.
	statsBytes = 24
)

// withDefaults fills in what is zero.
func (c Capacity) withDefaults(m machine) Capacity {
	backends := clamp(powerOfTwo(m.memory/bytesPerBackend), minBackends, maxBackends)
	services := min(backends/2, clamp(powerOfTwo(m.memory/statsShare/statsBytes/uint64(m.cpus)), minBackends/2, maxServices))
	c.Backends = orElse(c.Backends, backends)
	c.Services = orElse(c.Services, services)
	c.Slots = orElse(c.Slots, 4*max(c.Backends, minBackends))
	c.Affinity = orElse(c.Affinity, backends/2)
	c.SourceRanges = orElse(c.SourceRanges, minBackends)
	return c
}

// entries returns the size of each map that has one of its own, by name.
func (c Capacity) entries() map[string]uint32 {
	return map[string]uint32{
		maps.MapServices:     c.Services,
		maps.MapAddresses:    c.addresses(),
		maps.MapServiceNames: c.Services,
		maps.MapServiceStats: c.Services,
		maps.MapBackends:     c.Backends,
		maps.MapSlots:        c.Slots,
		maps.MapAffinity:     c.Affinity,
		maps.MapSourceRanges: c.SourceRanges,
	}
}

// nodeAddresses is the room for the addresses of the node's own devices, which are written first: Services must not find
// it all taken.
const nodeAddresses = 1024

func (c Capacity) addresses() uint32 {
	if c.Services == 0 {
		return 0
	}
	return c.Services + nodeAddresses
}

// asked returns the maps whose size is not left to the default.
func (c Capacity) asked() map[string]bool {
	asked := map[string]bool{}
	for name, entries := range c.entries() {
		asked[name] = entries != 0
	}
	return asked
}

// powerOfTwo rounds n down.
func powerOfTwo(n uint64) uint32 {
	if n == 0 {
		return 0
	}
	return uint32(min(uint64(1)<<(bits.Len64(n)-1), 1<<31))
}

func clamp(n, low, high uint32) uint32 { return max(low, min(n, high)) }

func orElse(n, usual uint32) uint32 {
	if n == 0 {
		return usual
	}
	return n
}
