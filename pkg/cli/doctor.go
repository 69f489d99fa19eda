// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/doctor"
)

func newDoctorCommand(common *commonFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this kernel and node offer, what is missing, and who else translates Services here",
		Long: "Check what this kernel and node offer, what is missing, and who else translates Services here. Nothing is\n" +
			"changed. The exit status is 0 when no check fails; warnings do not count.",
		Args: cobra.NoArgs,
	}
	health := cmd.Flags().String("healthz-address", "127.0.0.1:10256", "IP:port of the agent's health server")
	output := addFormat(cmd, formatText, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		report := doctor.Examine(common.env.gather(cmd.Context(), doctor.Options{
			Proc: "/proc", BPFFS: common.bpffs, Pins: common.pins(), HealthURL: "http://" + *health + "/livez",
		}))
		var err error
		if output.value == formatText {
			err = report.WriteText(cmd.OutOrStdout())
		} else {
			err = printDocument(cmd.OutOrStdout(), output.value, report)
		}
		if err != nil {
			return writeError(err)
		}
		switch n := report.Failures(); n {
		case 0:
			return nil
		case 1:
			return fmt.Errorf("1 check failed: see FAIL above")
		default:
			return fmt.Errorf("%d checks failed: see FAIL above", n)
		}
	}
	return cmd
}

// gatherFacts is the type of doctor.Gather.
type gatherFacts func(context.Context, doctor.Options) doctor.Facts
