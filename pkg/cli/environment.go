// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// environment is what the commands need of the machine; tests put their own in its place.
type environment struct {
	// openMaps opens the maps pinned in a directory; the function it returns closes them.
	openMaps func(dir string) (maps.Reader, func(), error)
	// monotonic is CLOCK_MONOTONIC in nanoseconds.
	monotonic func() uint64
	// netns returns the cookie of a process's network namespace and the addresses that identify it.
	netns func(pid int) (cookie uint64, addresses []netip.Addr, err error)
	// datapath tells what works on the maps pinned below a bpffs.
	datapath func(bpffs string) (explain.Datapath, error)
	// gather reads the node for doctor.
	gather gatherFacts
	clean  cleaner
	// agent is agent.Run.
	agent func(context.Context, *config.Config, func(context.Context) error, *slog.Logger) error
	// settings are the kernel's.
	settings config.Files
}

// commonFlags are the flags that all commands share.
type commonFlags struct {
	env   environment
	bpffs string
}

func (c *commonFlags) pins() string { return filepath.Join(c.bpffs, loader.DirectoryName) }

// withMaps calls f with the pinned maps.
func (c *commonFlags) withMaps(f func(maps.Reader) error) error {
	reader, closeMaps, err := c.env.openMaps(c.pins())
	if err != nil {
		return err
	}
	defer closeMaps()
	return f(reader)
}
