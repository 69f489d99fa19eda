// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

// manifests are those of the group's Service with these of its servers.
func (g *group) manifests(servers ...int) []string {
	var pods []*lab.Process
	for _, i := range servers {
		pods = append(pods, g.pods[i])
	}
	return agentlab.Simple(g.name, g.address.Addr().String(), agentlab.Ready(pods...)...)
}

func TestAgentsKilledDuringChangesAreFollowedByOneThatMakesGood(t *testing.T) {
	w := agentlab.New(t)
	stable, changing := newGroup(w.Node, 1), newGroup(w.Node, 2)
	w.Write(stable.name, stable.manifests(0, 1)...)
	w.Write(changing.name, changing.manifests(0)...)
	w.StartAgent()
	client := w.Node.Pod(lab.PodOptions{}).Process()
	stop := hammer(t, w.Node, steady, stable, changing)
	for round := range 6 {
		kept, added := round%4, (round+1)%4
		w.Write(changing.name, changing.manifests(kept, added)...)
		for i := range 20 {
			if i == 4*round {
				w.Agent.Kill() // the rest is written while nobody looks
			}
			w.Write(fmt.Sprintf("more-%d", i), agentlab.Simple(fmt.Sprintf("more-%d", i), fmt.Sprintf("10.96.4.%d", 1+i),
				agentlab.Ready(changing.pods[added])...)...)
		}
		w.Agent.Kill() // where it still lives: at whatever it is doing
		w.StartAgent()
		w.AwaitReached(client, tcp, agentlab.At("10.96.4.20:80"), changing.pods[added].Name)
		checkReached(t, client, changing, changing.having(kept, added))
		w.Write(changing.name, changing.manifests(added)...)
		w.Eventually("only the new server is left", func() (bool, string) {
			result := client.Connects(tcp, changing.address, 20)
			return result.Servers[changing.pods[added].Name] == 20, fmt.Sprint(result.Servers, result.Errnos)
		})
	}
	stop()
}

func TestAnAgentThatIsToldToEndLeavesItsWorkInPlace(t *testing.T) {
	w := agentlab.New(t)
	g := newGroup(w.Node, 1)
	w.Write(g.name, g.manifests(0, 1)...)
	w.StartAgent()
	stop := hammer(t, w.Node, steady, g)
	w.Agent.Signal(unix.SIGTERM)
	if err := w.Agent.Wait(); err != nil {
		t.Errorf("an agent that is told to end ends with %v", err)
	}
	client := w.Node.Pod(lab.PodOptions{}).Process()
	checkReached(t, client, g, g.having(0, 1))
	w.StartAgent()
	checkReached(t, client, g, g.having(0, 1))
	stop()
}

func TestTheCommandsReadWithoutAnAgentAndCleanupLeavesNothing(t *testing.T) {
	w := agentlab.New(t)
	g := newGroup(w.Node, 1)
	w.Write(g.name, g.manifests(0, 1)...)
	w.StartAgent()
	client := w.Node.Pod(lab.PodOptions{}).Process()
	checkReached(t, client, g, g.having(0, 1))
	if _, stderr, err := w.TryShunt("cleanup"); err == nil || !strings.Contains(stderr, "agent") {
		t.Errorf("cleanup beside a running agent: %v, %q", err, stderr)
	}
	w.Agent.Kill()
	for _, row := range []struct {
		command []string
		shows   string
	}{
		{[]string{"services"}, g.address.String()},
		{[]string{"backends", "default/" + g.name}, g.ports[1].String()},
		{[]string{"explain", g.address.String(), "--from", client.Address4.String()}, "TRANSLATED"},
	} {
		if output := w.Shunt(row.command...); !strings.Contains(output, row.shows) {
			t.Errorf("shunt %v shows nothing of %q:\n%s", row.command, row.shows, output)
		}
	}
	w.Shunt("cleanup")
	// The kernel lets go of a link that nobody holds a moment later.
	w.AwaitReached(client, tcp, g.address, "ENETUNREACH")
	if _, err := os.Stat(filepath.Join(w.Node.BPFFS, loader.DirectoryName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cleanup leaves the pins (%v)", err)
	}
}
