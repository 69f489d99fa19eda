// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/kubeproxy"
	"github.com/shunt-lb/shunt/pkg/loader"
)

// cleaner is what cleanup does to the machine.
type cleaner struct {
	// shunt removes shunt's links and pins below a bpffs.
	shunt func(bpffs string, force bool) error
	// kubeProxy removes kube-proxy's rules and reports each thing done.
	kubeProxy func(ctx context.Context, report func(string)) error
}

func hostCleaner() cleaner {
	return cleaner{
		shunt: removeShunt,
		kubeProxy: func(ctx context.Context, report func(string)) error {
			return kubeproxy.Remove(ctx, "/proc", report)
		},
	}
}

func newCleanupCommand(common *commonFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what shunt, or kube-proxy, has left in this node's kernel",
		Long: "Remove shunt's programs and maps from this node's kernel: new connections to Service addresses are then no\n" +
			"longer translated. Connections that were translated in their sockets go on, for their packets are not\n" +
			"translated; those of clients outside the cluster, which shunt conntrack lists, end. It is refused while an\n" +
			"agent runs, and it may be repeated.\n\n" +
			"With --kube-proxy, remove kube-proxy's rules instead: its nftables tables, its iptables chains and its IPVS\n" +
			"device. Do that once kube-proxy no longer runs on this node. What belongs to kubelet stays.",
		Args: cobra.NoArgs,
	}
	proxy := cmd.Flags().Bool("kube-proxy", false, "remove kube-proxy's rules instead of shunt's state")
	force := cmd.Flags().Bool("force", false, "remove shunt's state even while an agent runs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *proxy {
			return cleanKubeProxy(cmd.Context(), common.env.clean, cmd.OutOrStdout())
		}
		return cleanShunt(common, *force, cmd.OutOrStdout())
	}
	return cmd
}

func cleanKubeProxy(ctx context.Context, clean cleaner, out io.Writer) error {
	done := 0
	err := clean.kubeProxy(ctx, func(what string) {
		done++
		fmt.Fprintln(out, what)
	})
	if err == nil && done == 0 {
		fmt.Fprintln(out, "kube-proxy has left nothing here")
	}
	return err
}

func cleanShunt(common *commonFlags, force bool, out io.Writer) error {
	err := common.env.clean.shunt(common.bpffs, force)
	switch {
	case errors.Is(err, errNothingPinned):
		fmt.Fprintf(out, "shunt has left nothing in %s\n", common.pins())
		return nil
	case errors.Is(err, loader.ErrLocked):
		return fmt.Errorf("clean up: %w: stop it first (or use --force)", err)
	case err != nil:
		return fmt.Errorf("clean up: %w", err)
	}
	fmt.Fprintf(out, "removed shunt's programs and maps from %s\n", common.pins())
	return nil
}

// errNothingPinned tells that there is nothing to remove.
var errNothingPinned = errors.New("nothing is pinned")

// removeShunt removes links first, so that no program works on maps that are half gone.
func removeShunt(bpffs string, force bool) error {
	pins := bpffs + "/" + loader.DirectoryName
	if _, err := os.Stat(pins); errors.Is(err, fs.ErrNotExist) {
		return errNothingPinned
	}
	err := attach.Cleanup(bpffs)
	if !force || !errors.Is(err, loader.ErrLocked) {
		return err
	}
	unlocked := &loader.Directory{Path: pins}
	if err := attach.DetachAll(unlocked); err != nil {
		return err
	}
	return loader.RemovePins(unlocked)
}
