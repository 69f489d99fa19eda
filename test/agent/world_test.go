// SPDX-License-Identifier: Apache-2.0

// Package agent proves `shunt agent` as a whole: the real command on real manifests on a node of the lab, and real
// sockets in its pods.
package agent

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/cli"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const (
	tcp   = process.TCP
	udp   = process.UDP
	mptcp = process.MPTCP

	patience = 20 * time.Second
	pause    = 10 * time.Millisecond
)

// asShunt makes the test binary shunt itself, so that no other binary is needed.
const asShunt = "as-shunt"

func TestMain(m *testing.M) {
	lab.Main(programOperations())
	if len(os.Args) > 1 && os.Args[1] == asShunt {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		status := cli.Run(ctx, os.Args[2:], os.Stdout, os.Stderr)
		stop()
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// world is a node with the agent, a neighbour without, and a directory of manifests.
type world struct {
	t         *testing.T
	lab       *lab.Lab
	node      *lab.Node
	neighbour *lab.Node
	manifests string
	agent     *lab.Program
	log       *os.File
}

func newWorld(t *testing.T) *world {
	t.Helper()
	l := lab.New(t)
	w := &world{t: t, lab: l, node: l.Node(lab.NodeOptions{}), neighbour: l.Node(lab.NodeOptions{})}
	w.manifests = w.node.File("manifests")
	w.must(os.Mkdir(w.manifests, 0o755))
	var err error
	w.log, err = os.Create(w.node.File("agent.log"))
	w.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's log:\n%s", w.logText())
		}
		w.log.Close()
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) logText() string {
	content, err := os.ReadFile(w.log.Name())
	w.must(err)
	return string(content)
}

func (w *world) agentCommand(flags ...string) *exec.Cmd {
	arguments := []string{
		asShunt, "agent", "--manifests", w.manifests, "--node-name", w.node.Name,
		"--cgroup-root", w.node.CgroupRoot, "--bpffs", w.node.BPFFS,
		"--max-services=512", "--max-backends=1024", "--max-slots=4096", "--max-affinity=1024", "--max-source-ranges=64",
	}
	command := exec.Command("/proc/self/exe", append(arguments, flags...)...)
	command.Stdout, command.Stderr = w.log, w.log
	return command
}

// startAgent starts the agent and waits until it has programmed what it found.
func (w *world) startAgent(flags ...string) {
	w.t.Helper()
	w.agent = w.node.Start("agent", w.agentCommand(flags...))
	w.awaitAgent()
}

// awaitAgent waits until the agent says that it has programmed what it found.
func (w *world) awaitAgent() {
	w.t.Helper()
	host := w.node.Process()
	defer host.Kill()
	w.eventually("the agent is ready", func() (bool, string) {
		select {
		case <-w.agent.Done():
			w.t.Fatalf("the agent has ended: %v", w.agent.Wait())
		default:
		}
		socket := host.Dial(tcp, at("127.0.0.1:10256"))
		defer socket.Close()
		if !socket.OK() {
			return false, socket.Errno
		}
		socket.Send(netip.AddrPort{}, "GET /readyz HTTP/1.0\r\n\r\n")
		answer := socket.Receive(time.Second).Data
		return strings.Contains(answer, " 200 OK"), answer
	})
}

// shunt runs a command of shunt on the node; it must succeed.
func (w *world) shunt(arguments ...string) string {
	w.t.Helper()
	output, stderr, err := w.tryShunt(arguments...)
	if err != nil {
		w.t.Fatalf("shunt %s: %v: %s", strings.Join(arguments, " "), err, stderr)
	}
	return output
}

func (w *world) tryShunt(arguments ...string) (output, stderr string, err error) {
	var out, errors bytes.Buffer
	command := exec.Command("/proc/self/exe", append(append([]string{asShunt}, arguments...), "--bpffs", w.node.BPFFS)...)
	command.Stdout, command.Stderr = &out, &errors
	err = w.node.Start("shunt", command).Wait()
	return out.String(), errors.String(), err
}

// write puts a manifest into the directory at once.
func (w *world) write(name string, documents ...string) {
	w.t.Helper()
	w.must(w.tryWrite(name, documents...))
}

func (w *world) tryWrite(name string, documents ...string) error {
	temporary := filepath.Join(w.manifests, "."+name+".new")
	if err := os.WriteFile(temporary, []byte(strings.Join(documents, "\n---\n")), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(w.manifests, name+".yaml"))
}

func (w *world) remove(name string) {
	w.t.Helper()
	w.must(os.Remove(filepath.Join(w.manifests, name+".yaml")))
}

// eventually waits for a condition; tell says what was seen instead.
func (w *world) eventually(what string, condition func() (ok bool, seen string)) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		ok, seen := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: not within %s; last seen: %s", what, patience, seen)
		}
		time.Sleep(pause)
	}
}

// awaitReached waits until a connection from the client ends at one of the servers.
func (w *world) awaitReached(client *lab.Process, network string, address netip.AddrPort, servers ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s %s reaches %v", network, address, servers), func() (bool, string) {
		seen := reach(client, network, address)
		for _, server := range servers {
			if seen == server {
				return true, seen
			}
		}
		return false, seen
	})
}

// awaitErrno waits until connections end with the errno.
func (w *world) awaitErrno(client *lab.Process, network string, address netip.AddrPort, errno string) {
	w.t.Helper()
	w.awaitReached(client, network, address, errno)
}

// reach is the server that answers at the address, or the errno.
func reach(client *lab.Process, network string, address netip.AddrPort) string {
	socket := client.Dial(network, address)
	if !socket.OK() {
		return socket.Errno
	}
	defer socket.Close()
	answered := socket.Exchange("who")
	if !answered.OK() {
		return answered.Errno
	}
	return answered.Server
}

// serve adds a pod that serves on TCP (MPTCP included) and UDP port 8080, both families, under its own name.
func serve(node *lab.Node, name string) *lab.Process {
	pod := node.Pod(lab.PodOptions{Name: name}).Process()
	for _, address := range []netip.Addr{pod.Address4, pod.Address6} {
		pod.Listen(mptcp, netip.AddrPortFrom(address, 8080), name)
		pod.Listen(udp, netip.AddrPortFrom(address, 8080), name)
	}
	return pod
}

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

// service is the manifest of a Service; spec is YAML in flow style.
func service(name, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default}\nspec: %s", name, spec)
}

// endpoint is an entry of a slice; conditions is YAML in flow style.
type endpoint struct {
	address    netip.Addr
	node       string
	conditions string
}

func ready(pods ...*lab.Process) []endpoint {
	var endpoints []endpoint
	for _, pod := range pods {
		endpoints = append(endpoints, endpoint{address: pod.Address4, conditions: "{ready: true}"})
	}
	return endpoints
}

func (e endpoint) yaml() string {
	node := ""
	if e.node != "" {
		node = ", nodeName: " + e.node
	}
	return fmt.Sprintf("- {addresses: ['%s'], conditions: %s%s}\n", e.address, e.conditions, node)
}

// slice is the manifest of an EndpointSlice; ports is YAML in flow style.
func slice(service, name, ports string, endpoints ...endpoint) string {
	family := "IPv4"
	if len(endpoints) > 0 && endpoints[0].address.Is6() {
		family = "IPv6"
	}
	text := fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s\n"+
		"  namespace: default\n  labels: {kubernetes.io/service-name: %s}\naddressType: %s\nports: %s\nendpoints:\n",
		name, service, family, ports)
	if len(endpoints) == 0 {
		return strings.TrimSuffix(text, "\n") + " []\n"
	}
	for _, e := range endpoints {
		text += e.yaml()
	}
	return text
}

// simple is a Service with one TCP port and its slice.
func simple(name, clusterIP string, endpoints ...endpoint) []string {
	return []string{
		service(name, fmt.Sprintf("{clusterIP: %s, ports: [{port: 80, protocol: TCP}]}", clusterIP)),
		slice(name, name+"-a", "[{name: '', port: 8080, protocol: TCP}]", endpoints...),
	}
}
