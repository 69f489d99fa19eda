// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/config"
)

// attachedPeriod is the pause between two looks at the links, each a few system calls for each program.
const attachedPeriod = 5 * time.Second

// keepAttached sees to it that the socket programs stay on the cgroup: a script that empties the bpffs takes them off
// it, and no Service works any more, without an error anywhere. Links alone are made again; when the pin directory is
// gone the agent ends, for only a new start locks and fills another one.
func (d *datapath) keepAttached(cfg *config.Config, log *slog.Logger) func(context.Context) error {
	names := make([]string, 0, len(d.loaded.Programs))
	for _, p := range d.loaded.Programs {
		names = append(names, p.Name)
	}
	return func(ctx context.Context) error {
		ticker := time.NewTicker(attachedPeriod)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			if err := d.directory.InPlace(); err != nil {
				return err
			}
			cgroup, err := attach.CgroupRoot(cfg.CgroupRoot)
			if err != nil {
				return err
			}
			missing := attach.Verify(cfg.BPFFS, cgroup, names)
			if missing == nil {
				continue
			}
			log.Error("socket programs were taken off the cgroup, they are attached again", "err", missing)
			if err := attach.Sockets(d.directory, cgroup, d.loaded.Programs); err != nil {
				return fmt.Errorf("attach the programs again: %w", err)
			}
		}
	}
}
