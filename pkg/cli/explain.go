// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/maps"
)

func newExplainCommand(common *commonFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain ADDRESS:PORT[/PROTOCOL] | NAMESPACE/NAME[:PORT][/PROTOCOL]",
		Short: "Tell what happens to a connection, step by step, from the live maps",
		Long: "Tell what happens to a connection to an address, step by step, from the live maps. Nothing is sent.\n\n" +
			"--from tells who dials: node (a process of this node), a pod's address, pid:PID (any process in the pod),\n" +
			"netns:COOKIE (as shunt affinity shows it), or external (a client outside the node).",
		Example: "  shunt explain 10.96.0.10:53/udp\n" +
			"  shunt explain [fd00:10:96::a]:443 --from 10.244.1.5\n" +
			"  shunt explain default/web:http\n" +
			"  shunt explain 127.0.0.1:30080",
		Args: cobra.ExactArgs(1),
	}
	from := cmd.Flags().String("from", string(explain.Node),
		"who dials: node, external, a pod's address, pid:PID or netns:COOKIE")
	output := addFormat(cmd, formatText, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		target, err := explain.ParseTarget(args[0])
		if err != nil {
			return err
		}
		client, err := common.client(*from)
		if err != nil {
			return err
		}
		datapath, err := common.env.datapath(common.bpffs)
		if err != nil {
			return err
		}
		return common.withMaps(func(r maps.Reader) error {
			e := explain.Explainer{Reader: r, Datapath: datapath, Now: common.env.monotonic}
			answers, err := e.Explain(target, client)
			if err != nil {
				return err
			}
			return printAnswers(cmd.OutOrStdout(), output.value, answers)
		})
	}
	return cmd
}

// client reads --from and looks into the network namespace that is given by a process.
func (c *commonFlags) client(from string) (explain.Client, error) {
	client, err := explain.ParseClient(from)
	if err != nil || client.PID == 0 {
		return client, err
	}
	client.NetnsCookie, client.Addresses, err = c.env.netns(client.PID)
	return client, err
}

func printAnswers(out io.Writer, f format, answers []explain.Answer) error {
	if f != formatText {
		return printDocument(out, f, answers)
	}
	for i, a := range answers {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := a.WriteText(out); err != nil {
			return writeError(err)
		}
	}
	return nil
}
