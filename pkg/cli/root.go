// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line of shunt: one file per command. Commands print on their standard output, return one
// error that says what to do, and leave exiting to cmd/shunt. The reading commands open the pinned maps read-only and
// work without an agent; their JSON is a contract (docs/cli.md).
package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Run runs the command line and returns the exit status: 0 only on success.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return run(ctx, hostEnvironment(), args, stdout, stderr)
}

func run(ctx context.Context, env environment, args []string, stdout, stderr io.Writer) int {
	root := newRoot(env)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "shunt:", err)
		return 1
	}
	return 0
}

func newRoot(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "shunt",
		Short: "Kubernetes Service addresses, translated in this node's kernel",
		Long: "shunt makes Kubernetes Service addresses work on a node without kube-proxy.\n\n" +
			"\"shunt agent\" programs the kernel; the other commands show what is programmed, explain it, and check the node.",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	common := &commonFlags{env: env}
	root.PersistentFlags().StringVar(&common.bpffs, "bpffs", "/sys/fs/bpf",
		"where the BPF file system is mounted; shunt's state is below its directory shunt")
	for _, command := range []func() *cobra.Command{
		func() *cobra.Command { return newAgentCommand(common.env) },
		func() *cobra.Command { return newServicesCommand(common) },
		func() *cobra.Command { return newBackendsCommand(common) },
		func() *cobra.Command { return newAffinityCommand(common) },
		func() *cobra.Command { return newConntrackCommand(common) },
		func() *cobra.Command { return newExplainCommand(common) },
		func() *cobra.Command { return newDoctorCommand(common) },
		func() *cobra.Command { return newCleanupCommand(common) },
		newDemoCommand,
		func() *cobra.Command { return newVersionCommand(common) },
	} {
		root.AddCommand(command())
	}
	return root
}
