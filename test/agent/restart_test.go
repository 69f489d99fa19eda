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
	"github.com/shunt-lb/shunt/test/lab"
)

// manifests are those of the group's Service with these of its servers.
func (g *group) manifests(servers ...int) []string {
	var pods []*lab.Process
	for _, i := range servers {
		pods = append(pods, g.pods[i])
	}
	return simple(g.name, g.address.Addr().String(), ready(pods...)...)
}

func TestAgentsKilledDuringChangesAreFollowedByOneThatMakesGood(t *testing.T) {
	w := newWorld(t)
	stable, changing := newGroup(w.node, 1), newGroup(w.node, 2)
	w.write(stable.name, stable.manifests(0, 1)...)
	w.write(changing.name, changing.manifests(0)...)
	w.startAgent()
	client := w.node.Pod(lab.PodOptions{}).Process()
	stop := hammer(t, w.node, steady, stable, changing)
	for round := range 6 {
		kept, added := round%4, (round+1)%4
		w.write(changing.name, changing.manifests(kept, added)...)
		for i := range 20 {
			if i == 4*round {
				w.agent.Kill() // the rest is written while nobody looks
			}
			w.write(fmt.Sprintf("more-%d", i), simple(fmt.Sprintf("more-%d", i), fmt.Sprintf("10.96.4.%d", 1+i),
				ready(changing.pods[added])...)...)
		}
		w.agent.Kill() // where it still lives: at whatever it is doing
		w.startAgent()
		w.awaitReached(client, tcp, at("10.96.4.20:80"), changing.pods[added].Name)
		checkReached(t, client, changing, changing.having(kept, added))
		w.write(changing.name, changing.manifests(added)...)
		w.eventually("only the new server is left", func() (bool, string) {
			result := client.Connects(tcp, changing.address, 20)
			return result.Servers[changing.pods[added].Name] == 20, fmt.Sprint(result.Servers, result.Errnos)
		})
	}
	stop()
}

func TestAnAgentThatIsToldToEndLeavesItsWorkInPlace(t *testing.T) {
	w := newWorld(t)
	g := newGroup(w.node, 1)
	w.write(g.name, g.manifests(0, 1)...)
	w.startAgent()
	stop := hammer(t, w.node, steady, g)
	w.agent.Signal(unix.SIGTERM)
	if err := w.agent.Wait(); err != nil {
		t.Errorf("an agent that is told to end ends with %v", err)
	}
	client := w.node.Pod(lab.PodOptions{}).Process()
	checkReached(t, client, g, g.having(0, 1))
	w.startAgent()
	checkReached(t, client, g, g.having(0, 1))
	stop()
}

func TestTheCommandsReadWithoutAnAgentAndCleanupLeavesNothing(t *testing.T) {
	w := newWorld(t)
	g := newGroup(w.node, 1)
	w.write(g.name, g.manifests(0, 1)...)
	w.startAgent()
	client := w.node.Pod(lab.PodOptions{}).Process()
	checkReached(t, client, g, g.having(0, 1))
	if _, stderr, err := w.tryShunt("cleanup"); err == nil || !strings.Contains(stderr, "agent") {
		t.Errorf("cleanup beside a running agent: %v, %q", err, stderr)
	}
	w.agent.Kill()
	for _, row := range []struct {
		command []string
		shows   string
	}{
		{[]string{"services"}, g.address.String()},
		{[]string{"backends", "default/" + g.name}, g.ports[1].String()},
		{[]string{"explain", g.address.String(), "--from", client.Address4.String()}, "TRANSLATED"},
	} {
		if output := w.shunt(row.command...); !strings.Contains(output, row.shows) {
			t.Errorf("shunt %v shows nothing of %q:\n%s", row.command, row.shows, output)
		}
	}
	w.shunt("cleanup")
	// The kernel lets go of a link that nobody holds a moment later.
	w.awaitErrno(client, tcp, g.address, "ENETUNREACH")
	if _, err := os.Stat(filepath.Join(w.node.BPFFS, loader.DirectoryName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cleanup leaves the pins (%v)", err)
	}
}
