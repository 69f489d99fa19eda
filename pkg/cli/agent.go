// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/config"
)

func newAgentCommand(env environment) *cobra.Command {
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
		return runAgent(cmd.Context(), env, cfg, flags, cmd.OutOrStdout(), log)
	}
	return cmd
}

// runAgent runs the agent, or does the one thing that a flag asks for in its place.
func runAgent(ctx context.Context, env environment, cfg *config.Config, flags *config.Flags, out io.Writer,
	log *slog.Logger) error {
	switch {
	case flags.WriteConfigTo != "":
		return writeConfig(cfg, flags.WriteConfigTo)
	case flags.Cleanup:
		return cleanShunt(&commonFlags{env: env, bpffs: cfg.BPFFS}, false, out)
	case flags.InitOnly:
		return cfg.ApplySysctls(env.settings, runtime.NumCPU(), log)
	}
	if err := env.agent(ctx, cfg, flags.Watch, log); err != nil {
		return fmt.Errorf("run the agent: %w", err)
	}
	return nil
}

// writeConfig writes a file that --config takes.
func writeConfig(cfg *config.Config, file string) error {
	text, err := cfg.YAML()
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}
