// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"os"

	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
	"github.com/shunt-lb/shunt/pkg/source/manifests"
)

// newSource returns where Services come from, and who is told of objects at fault there.
func newSource(cfg *config.Config, log *slog.Logger) (source.Source, Reporter, error) {
	return manifests.New(cfg.Manifests, cfg.NodeName, manifests.DefaultTiming()), logOnly{}, nil
}

// logOnly is the Reporter without an API server: the log has it all.
type logOnly struct{}

func (logOnly) ServiceProblem(string, model.Problem) {}
func (logOnly) SourceProblem(source.Problem)         {}

// kernelFamilies returns the families that this kernel has.
func kernelFamilies() []model.Family {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return []model.Family{model.IPv4}
	}
	disabled, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && len(disabled) > 0 && disabled[0] == '1' {
		return []model.Family{model.IPv4}
	}
	return []model.Family{model.IPv4, model.IPv6}
}
