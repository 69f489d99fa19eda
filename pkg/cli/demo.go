// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/demo"
	"github.com/shunt-lb/shunt/test/lab"
)

const labHelper = "lab-helper"

func newDemoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a whole node in network namespaces on this machine: no cluster needed",
		Long: "Make a node with pods in network namespaces, run the real agent on manifests of its own, and tell the\n" +
			"story of a Service from what the kernel says. Every claim is checked; the exit status is 0 only if all\n" +
			"were true. Needs root. Nothing outside the namespaces is touched, and everything is removed at the end.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Run(cmd.Context(), demo.Options{
				Output: cmd.OutOrStdout(),
				Color:  isTerminal(cmd.OutOrStdout()) && os.Getenv("NO_COLOR") == "",
				Helper: []string{cmd.Name(), labHelper},
			})
		},
	}
	// The demo runs this program again as the processes of its pods.
	cmd.AddCommand(&cobra.Command{
		Use:                labHelper,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return lab.Helper(args) },
	})
	return cmd
}

func isTerminal(output any) bool {
	file, ok := output.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
