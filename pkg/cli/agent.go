// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/agent"
	"github.com/shunt-lb/shunt/pkg/config"
)

func newAgentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Program this node's kernel from the API server, or from a directory of manifests",
		Long: "Program this node's kernel: watch Services and EndpointSlices, at the API server or in a directory\n" +
			"(--manifests), and keep the kernel's maps as they say. What is programmed goes on working when the agent ends.",
		Args: cobra.NoArgs,
	}
	flags := config.AddFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, warnings, err := flags.Load()
		if err != nil {
			return err
		}
		log := cfg.Logger(cmd.ErrOrStderr())
		for _, w := range warnings {
			log.Warn(w)
		}
		if err := agent.Run(cmd.Context(), cfg, flags.Watch, log); err != nil {
			return fmt.Errorf("run the agent: %w", err)
		}
		return nil
	}
	return cmd
}
