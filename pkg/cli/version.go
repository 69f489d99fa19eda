// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/version"
)

func newVersionCommand(*commonFlags) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Tell which build this is", Args: cobra.NoArgs}
	output := addFormat(cmd, formatText, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		info := version.Get()
		if output.value != formatText {
			return printDocument(cmd.OutOrStdout(), output.value, info)
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), info)
		return writeError(err)
	}
	return cmd
}
