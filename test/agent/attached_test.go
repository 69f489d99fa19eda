// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// TestWhatIsRemovedFromTheBPFFSIsMadeAgain: scripts that "clean" /sys/fs/bpf exist on many nodes.
func TestWhatIsRemovedFromTheBPFFSIsMadeAgain(t *testing.T) {
	w := agentlab.New(t)
	w.Write("web", agentlab.Simple("web", "10.96.0.10", agentlab.Ready(agentlab.Serve(w.Node, "server"))...)...)
	client := agentlab.Serve(w.Node, "client")
	w.StartAgent()
	w.AwaitReached(client, process.TCP, agentlab.At("10.96.0.10:80"), "server")

	links := filepath.Join(w.Pins(), attach.LinksName)
	before, err := attach.List(w.Node.BPFFS)
	w.Must(err)
	for _, a := range before {
		w.Must(os.Remove(filepath.Join(links, a.Name)))
	}
	w.Eventually("all programs are attached again", func() (bool, string) {
		now, err := attach.List(w.Node.BPFFS)
		return err == nil && len(now) == len(before), fmt.Sprint(now, err)
	})
	w.AwaitReached(client, process.TCP, agentlab.At("10.96.0.10:80"), "server")

	w.Must(os.RemoveAll(w.Pins()))
	if err := w.Agent.Wait(); err == nil {
		t.Error("the agent ended without an error")
	}
	if text := w.LogText(); !strings.Contains(text, "was removed under this agent") {
		t.Error("the log does not say that the pin directory was removed")
	}
	w.StartAgent()
	w.AwaitReached(client, process.TCP, agentlab.At("10.96.0.10:80"), "server")
}
