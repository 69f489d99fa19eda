// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// programCost is what a program did for one operation.
type programCost struct {
	name        string
	runs        float64 // an operation
	nanoseconds float64 // a run, in the mean
}

// caseCosts are the programs that ran in a case.
type caseCosts struct {
	world    *world
	c        *benchCase
	programs []programCost
}

// programCosts lets the kernel measure the programs of shunt, with the most Services, in each case. It does so apart
// from the rounds, because the kernel's clock is part of what would be measured.
func (b *bench) programCosts() ([]caseCosts, error) {
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return nil, fmt.Errorf("ask for statistics of programs: %w", err)
	}
	defer stats.Close()
	var all []caseCosts
	for _, w := range b.worlds {
		if w.variant.proxy != shuntName || w.variant.services != slices.Max(b.settings.services) {
			continue
		}
		fmt.Fprintf(b.progress, "measure the programs of %s\n", w.variant.name())
		programs, err := programsOf(w)
		if err != nil {
			return nil, err
		}
		for _, c := range b.cases {
			costs, err := b.costsOf(w, c, programs)
			if err != nil {
				return nil, err
			}
			all = append(all, costs)
		}
		for _, p := range programs {
			p.Close()
		}
	}
	return all, nil
}

func (b *bench) costsOf(w *world, c *benchCase, programs map[string]*ebpf.Program) (caseCosts, error) {
	before, err := readStats(programs)
	if err != nil {
		return caseCosts{}, err
	}
	if _, err := b.sample(c, w); err != nil {
		return caseCosts{}, err
	}
	after, err := readStats(programs)
	if err != nil {
		return caseCosts{}, err
	}
	costs := caseCosts{world: w, c: c}
	for name, s := range after {
		runs := float64(s.RunCount - before[name].RunCount)
		const strays = 0.02 // of other packets: neighbour discovery, the agent's own
		if runs < strays*float64(c.count) {
			continue
		}
		costs.programs = append(costs.programs, programCost{
			name: name, runs: runs / float64(c.count),
			nanoseconds: float64((s.Runtime - before[name].Runtime).Nanoseconds()) / runs,
		})
	}
	slices.SortFunc(costs.programs, func(a, b programCost) int { return strings.Compare(a.name, b.name) })
	return costs, nil
}

func readStats(programs map[string]*ebpf.Program) (map[string]*ebpf.ProgramStats, error) {
	all := map[string]*ebpf.ProgramStats{}
	for name, p := range programs {
		s, err := p.Stats()
		if err != nil {
			return nil, fmt.Errorf("read statistics of program %s: %w", name, err)
		}
		all[name] = s
	}
	return all, nil
}

// programsOf are the loaded programs that use the maps pinned in the world.
func programsOf(w *world) (map[string]*ebpf.Program, error) {
	pinned, err := pinnedMaps(filepath.Join(w.node.BPFFS, loader.DirectoryName))
	if err != nil {
		return nil, err
	}
	found := map[string]*ebpf.Program{}
	for id := ebpf.ProgramID(0); ; {
		id, err = ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("list programs: %w", err)
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has gone
		}
		info, err := p.Info()
		if err != nil {
			return nil, fmt.Errorf("look at program %d: %w", id, err)
		}
		ids, _ := info.MapIDs()
		if slices.ContainsFunc(ids, func(id ebpf.MapID) bool { return pinned[id] }) && found[info.Name] == nil {
			found[info.Name] = p
			continue
		}
		p.Close()
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("find programs of %s: none uses the maps in %s", w.variant.name(), w.node.BPFFS)
	}
	return found, nil
}

func pinnedMaps(directory string) (map[ebpf.MapID]bool, error) {
	ids := map[ebpf.MapID]bool{}
	for _, name := range []string{maps.MapServices, maps.MapConntrack, maps.MapDrops} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(directory, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return nil, fmt.Errorf("open map %s: %w", name, err)
		}
		info, err := m.Info()
		m.Close()
		if err != nil {
			return nil, fmt.Errorf("look at map %s: %w", name, err)
		}
		if id, ok := info.ID(); ok {
			ids[id] = true
		}
	}
	return ids, nil
}
