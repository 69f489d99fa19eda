// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
)

// bare finds what no user should be shown: a crash, or the kernel's word for an error without anything around it.
var bare = regexp.MustCompile(`(?m)panic:|goroutine \d|^(shunt: |Error: )?` +
	`(operation not permitted|permission denied|no such file or directory|invalid argument)\.?$`)

func expectSaid(t *testing.T, what, said string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(said, word) {
			t.Errorf("%s says %q: nothing of %q", what, said, word)
		}
	}
	if found := bare.FindString(said); found != "" {
		t.Errorf("%s says %q", what, said)
	}
}

// Whoever may not, is told so and what to do, by every command.
func TestWithoutPrivilegesEveryCommandSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	w.StartAgent()
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	w.Must(os.Chmod(w.Node.File(""), 0o755))
	self, err := os.Executable()
	w.Must(err)
	reachable := filepath.Join(w.Node.File(""), "shunt") // where also nobody may look
	w.Must(exec.Command("cp", self, reachable).Run())
	for _, arguments := range [][]string{
		{"agent", "--manifests", w.Manifests, "--node-name", w.Node.Name, "--cgroup-root", w.Node.CgroupRoot},
		{"services"}, {"backends"}, {"affinity"}, {"explain", "10.96.0.1:80"}, {"cleanup"}, {"cleanup", "--force"},
	} {
		command := exec.Command(reachable, append([]string{agentlab.AsShunt}, append(arguments, "--bpffs", w.Node.BPFFS)...)...)
		command.SysProcAttr = &syscall.SysProcAttr{Credential: nobody}
		var said strings.Builder
		command.Stdout, command.Stderr = &said, &said
		if err := w.Node.Start("nobody", command).Wait(); err == nil {
			t.Errorf("%v succeeds without privileges: %s", arguments, said.String())
		}
		expectSaid(t, fmt.Sprint(arguments), said.String(), "root")
	}
}

// A command on a node without what it reads says what is missing, and where to look.
func TestWhatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	plain := w.Node.File("plain")
	w.Must(os.Mkdir(plain, 0o755))
	for _, row := range []struct {
		name, bpffs string
		words       []string
	}{
		{"no such directory", "/nowhere", []string{"/nowhere", "--bpffs"}},
		{"not a bpffs", plain, []string{plain, "--bpffs"}},
		{"nothing pinned", w.Node.BPFFS, []string{w.Node.BPFFS, "--bpffs"}},
	} {
		for _, arguments := range [][]string{{"services"}, {"backends"}, {"affinity"}, {"explain", "10.96.0.1:80"}} {
			_, said, err := w.TryShunt(append(arguments, "--bpffs", row.bpffs)...)
			if err == nil {
				t.Errorf("%s: %v succeeds", row.name, arguments)
			}
			expectSaid(t, fmt.Sprintf("%s: %v", row.name, arguments), said, row.words...)
		}
	}
	for _, row := range []struct {
		name, flag string
		words      []string
	}{
		{"no bpffs", "--bpffs=/nowhere", []string{"/nowhere", "mount -t bpf"}},
		{"a directory that is no bpffs", "--bpffs=" + plain, []string{plain, "mount -t bpf"}},
		{"no cgroup", "--cgroup-root=/nowhere", []string{"/nowhere", "cgroup"}},
		{"a directory that is no cgroup", "--cgroup-root=" + plain, []string{plain, "cgroup"}},
		{"an unknown way to choose", "--algorithm=best", []string{"best", "random"}},
		{"an unknown switch", "--socket-lb=maybe", []string{"maybe", "host"}},
		{"an invalid address range", "--nodeport-addresses=10.0.0.0/33", []string{"10.0.0.0/33"}},
		{"a blank name", "--node-name= ", []string{"node"}},
	} {
		mark := len(w.LogText())
		if err := w.Node.Start("agent", w.AgentCommand(row.flag)).Wait(); err == nil {
			t.Errorf("%s: the agent ends with status 0", row.name)
		}
		expectSaid(t, row.name, w.LogText()[mark:], row.words...)
	}
}

// One node has one agent; the second one is told who is there, and the first one does not notice.
func TestASecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a := agentlab.Serve(w.Node, "a")
	w.Write("web", both("web", 95, "", isReady, a)...)
	w.StartAgent()
	mark := len(w.LogText())
	if err := w.Node.Start("second", w.AgentCommand()).Wait(); err == nil {
		t.Error("the second agent ends with status 0")
	}
	expectSaid(t, "the second agent", w.LogText()[mark:], "another agent is running on this node",
		fmt.Sprintf("pid %d", w.Agent.PID()))
	for _, client := range clients(w) {
		for _, to := range forms(95, 80) {
			expectReached(t, client, tcp, to, "a")
		}
	}
	w.Write("web", both("web", 95, "", isReady)...)
	w.AwaitReached(clients(w)[0], tcp, forms(95, 80)[0], refused)
}

// A directory of manifests that is not there yet is waited for; nothing is taken away meanwhile.
func TestADirectoryThatIsNotThereAtTheStartIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a := agentlab.Serve(w.Node, "a")
	client := clients(w)[0]
	w.Write("web", both("web", 96, "", isReady, a)...)
	w.StartAgent()
	w.Agent.Kill()
	away := w.Manifests + ".away"
	w.Must(os.Rename(w.Manifests, away))
	mark := len(w.LogText())
	w.Agent = w.Node.Start("agent", w.AgentCommand())
	awaitLog(w, mark, w.Manifests, "no such file or directory")
	expectOnly(t, client, tcp, forms(96, 80)[0], "a")
	answer := agentlab.HTTPGet(w.Node.Process(), agentlab.At("127.0.0.1:10256"), "/readyz")
	if strings.Contains(answer, "200") {
		t.Errorf("ready without having read anything: %s", answer)
	}
	w.Must(os.Rename(away, w.Manifests))
	w.AwaitAgent()
	expectOnly(t, client, tcp, forms(96, 80)[0], "a")
}

// A slice of a family that its Service lacks is reported, and the rest of the Service works.
func TestASliceOfAnotherFamilyIsReportedAndNotUsed(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a := agentlab.Serve(w.Node, "a")
	w.StartAgent()
	mark := len(w.LogText())
	w.Write("web", agentlab.Service("web", "{clusterIP: 10.96.0.97, ports: "+bothPorts+"}"),
		agentlab.Slice("web", "web-4", bothTargets, agentlab.Ready(a)...),
		agentlab.Slice("web", "web-6", bothTargets, agentlab.Ready6(a)...))
	awaitLog(w, mark, "default/web", "web-6", "IPv6")
	awaitFrontends(w, "10.96.0.97:80/TCP ClusterIP web 1", "10.96.0.97:80/UDP ClusterIP web 1")
	expectOnly(t, clients(w)[0], tcp, agentlab.At("10.96.0.97:80"), "a")
	mark = len(w.LogText())
	text := agentlab.Slice("web", "web-4", bothTargets, agentlab.Ready(a)...)
	w.Write("web", agentlab.Service("web", "{clusterIP: 10.96.0.97, ports: "+bothPorts+"}"),
		strings.Replace(text, "endpoints:\n", "endpoints:\n"+"- {addresses: ['fd00::1'], conditions: {ready: true}}\n", 1))
	awaitLog(w, mark, "web-4", "fd00::1")
	expectOnly(t, clients(w)[0], tcp, agentlab.At("10.96.0.97:80"), "a")
}
