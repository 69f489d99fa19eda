// SPDX-License-Identifier: Apache-2.0

// Package agentlab is a node of the lab with the real `shunt agent` on a directory of manifests, and the words that
// tests of it have in common: writing manifests, and what is reached by whom.
package agentlab

import (
	"bytes"
	"context"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/cli"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const (
	// Patience is how long a test waits for what must happen: an emulated processor takes its time to load the programs.
	Patience = 45 * time.Second
	pause    = 10 * time.Millisecond
)

// AsShunt is the first argument that makes the test binary shunt itself, so that no other binary is needed.
const AsShunt = "as-shunt"

// Main belongs into TestMain. Operations extend what the lab's processes can do.
func Main(m *testing.M, operations ...process.Operations) {
	lab.Main(operations...)
	if len(os.Args) > 1 && os.Args[1] == AsShunt {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		status := cli.Run(ctx, os.Args[2:], os.Stdout, os.Stderr)
		stop()
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// Parallel lets so many tests run beside each other, unless the command line says how many. It belongs before Main.
func Parallel(tests int) {
	given := slices.ContainsFunc(os.Args[1:], func(argument string) bool {
		return strings.HasPrefix(strings.TrimLeft(argument, "-"), "test.parallel")
	})
	if given {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(tests)); err != nil {
		panic(err) // package testing has the flag
	}
}

// World is a node with the agent, a neighbour without, and a directory of manifests.
type World struct {
	T         testing.TB
	Lab       *lab.Lab
	Node      *lab.Node
	Neighbour *lab.Node
	Manifests string
	Agent     *lab.Program

	log *os.File
}

// New makes the two nodes. No agent runs yet.
func New(t testing.TB) *World {
	t.Helper()
	return NewLayout(t, lab.Routed)
}

// NewLayout is New with another way to connect the pods.
func NewLayout(t testing.TB, layout lab.Layout) *World {
	t.Helper()
	l := lab.New(t)
	w := &World{T: t, Lab: l, Node: l.Node(lab.NodeOptions{Layout: layout}), Neighbour: l.Node(lab.NodeOptions{Layout: layout})}
	for _, node := range []*lab.Node{w.Node, w.Neighbour} {
		w.Must(persist(node))
	}
	w.Manifests = w.Node.File("manifests")
	w.Must(os.Mkdir(w.Manifests, 0o755))
	var err error
	w.log, err = os.Create(w.Node.File("agent.log"))
	w.Must(err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's log:\n%s", w.LogText())
		}
		w.log.Close()
	})
	return w
}

// persist makes a node ask its neighbours longer than three times: on a machine under load they answer late, and what
// follows, EHOSTUNREACH, has nothing to do with what is tested.
func persist(node *lab.Node) error {
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, setting := range []string{"mcast_solicit", "ucast_solicit"} {
			if err := node.Set(family+"/neigh/eth0/"+setting, "20"); err != nil {
				return err
			}
		}
	}
	return nil
}

// Run is testing.T.Run for a part of a test that goes on with this World.
func (w *World) Run(name string, body func(*testing.T)) {
	w.T.Helper()
	whole, ok := w.T.(*testing.T)
	if !ok {
		w.T.Fatalf("run %s: only a test has parts", name)
	}
	whole.Run(name, func(part *testing.T) {
		w.T = part
		defer func() { w.T = whole }()
		body(part)
	})
}

// Must ends the test with an error.
func (w *World) Must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// LogText is what the agents have logged so far.
func (w *World) LogText() string {
	content, err := os.ReadFile(w.log.Name())
	w.Must(err)
	return string(content)
}

// Pins is the directory of the pinned maps.
func (w *World) Pins() string { return filepath.Join(w.Node.BPFFS, loader.DirectoryName) }

// AgentCommand is the command line of the agent; flags come last and so override what is there.
func (w *World) AgentCommand(flags ...string) *exec.Cmd {
	arguments := []string{
		AsShunt, "agent", "--manifests", w.Manifests, "--node-name", w.Node.Name,
		"--cgroup-root", w.Node.CgroupRoot, "--bpffs", w.Node.BPFFS,
		"--max-services=512", "--max-backends=1024", "--max-slots=4096", "--max-affinity=1024", "--max-source-ranges=64",
	}
	command := exec.Command("/proc/self/exe", append(arguments, flags...)...)
	command.Stdout, command.Stderr = w.log, w.log
	return command
}

// StartAgent starts the agent and waits until it has programmed what it found.
func (w *World) StartAgent(flags ...string) {
	w.T.Helper()
	w.Agent = w.Node.Start("agent", w.AgentCommand(flags...))
	w.AwaitAgent()
}

// AwaitAgent waits until the agent says that it has programmed what it found.
func (w *World) AwaitAgent() {
	w.T.Helper()
	host := w.Node.Process()
	defer host.Kill()
	w.Eventually("the agent is ready", func() (bool, string) {
		select {
		case <-w.Agent.Done():
			w.T.Fatalf("the agent has ended: %v", w.Agent.Wait())
		default:
		}
		answer := HTTPGet(host, At("127.0.0.1:10256"), "/readyz")
		return strings.Contains(answer, " 200 OK"), answer
	})
}

// HTTPGet is an HTTP server's first line of answer, or the errno.
func HTTPGet(client *lab.Process, address netip.AddrPort, path string) string {
	socket := client.Dial(process.TCP, address)
	defer socket.Close()
	if !socket.OK() {
		return socket.Errno
	}
	socket.Send(netip.AddrPort{}, "GET "+path+" HTTP/1.0\r\n\r\n")
	return socket.Receive(time.Second).Data
}

// Shunt runs a command of shunt on the node; it must succeed.
func (w *World) Shunt(arguments ...string) string {
	w.T.Helper()
	output, stderr, err := w.TryShunt(arguments...)
	if err != nil {
		w.T.Fatalf("shunt %s: %v: %s", strings.Join(arguments, " "), err, stderr)
	}
	return output
}

// TryShunt runs a command of shunt on the node. Flags among the arguments override the node's own.
func (w *World) TryShunt(arguments ...string) (output, stderr string, err error) {
	var out, errors bytes.Buffer
	command := exec.Command("/proc/self/exe", append([]string{AsShunt, "--bpffs", w.Node.BPFFS}, arguments...)...)
	command.Stdout, command.Stderr = &out, &errors
	err = w.Node.Start("shunt", command).Wait()
	return out.String(), errors.String(), err
}

// Write puts a manifest into the directory at once.
func (w *World) Write(name string, documents ...string) {
	w.T.Helper()
	w.Must(w.TryWrite(name, documents...))
}

// TryWrite is Write for other goroutines than the test's.
func (w *World) TryWrite(name string, documents ...string) error {
	temporary := filepath.Join(w.Manifests, "."+name+".new")
	if err := os.WriteFile(temporary, []byte(strings.Join(documents, "\n---\n")), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(w.Manifests, name+".yaml"))
}

// Remove takes a manifest out of the directory.
func (w *World) Remove(name string) {
	w.T.Helper()
	w.Must(os.Remove(filepath.Join(w.Manifests, name+".yaml")))
}

// Eventually waits for a condition; seen says what was there instead.
func (w *World) Eventually(what string, condition func() (ok bool, seen string)) {
	w.T.Helper()
	deadline := time.Now().Add(Patience)
	for {
		ok, seen := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			w.T.Fatalf("%s: not within %s; last seen: %s", what, Patience, seen)
		}
		time.Sleep(pause)
	}
}
