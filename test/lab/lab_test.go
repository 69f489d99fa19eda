// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/test/lab/process"
)

func TestMain(m *testing.M) {
	Main(process.Operations{
		"cgroup": process.Typed(func(struct{}) (string, error) {
			content, err := os.ReadFile("/proc/self/cgroup")
			return string(content), err
		}),
		"make-lab": process.Typed(makeLab),
		"panic":    process.Typed(func(struct{}) (struct{}, error) { panic("a bug in a test") }),
	})
	os.Exit(m.Run())
}

// exchange dials, asks and compares: the server must see the client's own address.
func exchange(t *testing.T, network string, client *Process, address netip.AddrPort, server string) {
	t.Helper()
	socket := client.Dial(network, address)
	if !socket.OK() {
		t.Fatalf("%s %s from %s: %s", network, address, client.Name, socket.Errno)
	}
	defer socket.Close()
	answer := socket.Exchange("hello")
	if answer.Server != server || answer.Text != "hello" {
		t.Fatalf("%s %s from %s: answered %+v, want %s", network, address, client.Name, answer, server)
	}
	seen := answer.Peer.Addr()
	if seen != client.Address4 && seen != client.Address6 {
		t.Errorf("%s %s from %s: server saw %s", network, address, client.Name, seen)
	}
	inspected := socket.Inspect()
	if network != process.MPTCP && inspected.KernelRemote != address {
		t.Errorf("%s %s from %s: the kernel dialled %s", network, address, client.Name, inspected.KernelRemote)
	}
	if inspected.Peer != address {
		t.Errorf("%s %s from %s: getpeername says %s", network, address, client.Name, inspected.Peer)
	}
}

func TestEveryoneReachesPodsInBothFamilies(t *testing.T) {
	l := New(t)
	first, second := l.Node(NodeOptions{Layout: Routed}), l.Node(NodeOptions{Layout: Bridged, MTU: 1400})
	client := l.Client(ClientOptions{})
	for _, node := range []*Node{first, second} {
		for _, route := range []struct {
			pods    netip.Prefix
			gateway netip.Addr
		}{{node.Pods4, node.Address4}, {node.Pods6, node.Address6}} {
			if err := client.AddRoute(route.pods, client.Device, route.gateway); err != nil {
				t.Fatal(err)
			}
		}
	}
	servers := []*Process{
		first.Pod(PodOptions{Name: "routed"}).Process(), first.Process(),
		second.Pod(PodOptions{Name: "bridged"}).Process(), second.Process(),
	}
	clients := []*Process{
		first.Pod(PodOptions{}).Process(), second.Pod(PodOptions{MTU: 1280}).Process(), client.Process(),
	}
	for _, server := range servers {
		for _, network := range []string{process.TCP, process.UDP, process.MPTCP} {
			for _, address := range []netip.Addr{server.Address4, server.Address6} {
				listening := server.Listen(network, netip.AddrPortFrom(address, 0), server.Name)
				for _, client := range clients {
					exchange(t, network, client, listening, server.Name)
				}
			}
		}
	}
}

func TestUnconnectedUDPNamesTheSourceOfEachAnswer(t *testing.T) {
	node := New(t).Node(NodeOptions{})
	server, client := node.Pod(PodOptions{}).Process(), node.Pod(PodOptions{}).Process()
	for _, row := range []struct {
		address netip.Addr
		family  int
	}{{server.Address4, 4}, {server.Address6, 6}, {netip.AddrFrom16(server.Address4.As16()), 6}} {
		listening := server.Listen(process.UDP, netip.AddrPortFrom(row.address.Unmap(), 0), "udp")
		wanted := netip.AddrPortFrom(row.address, listening.Port())
		socket := client.Open(process.SocketRequest{Network: process.UDP, Family: row.family})
		if answer := socket.ExchangeWith(wanted, "hello"); answer.Server != "udp" || answer.From != wanted {
			t.Errorf("sendto %s: answered %+v", wanted, answer)
		}
	}
}

func TestConnectToClosedPortIsRefusedWithItsErrno(t *testing.T) {
	node := New(t).Node(NodeOptions{})
	server, client := node.Pod(PodOptions{}).Process(), node.Pod(PodOptions{}).Process()
	socket := client.Dial(process.TCP, netip.AddrPortFrom(server.Address4, 9))
	if socket.Errno != "ECONNREFUSED" {
		t.Errorf("connect to a closed port: %q, want ECONNREFUSED", socket.Errno)
	}
	if result := client.Connects(process.TCP, netip.AddrPortFrom(server.Address4, 9), 3); result.Failed() != 3 {
		t.Errorf("three connects to a closed port: %+v", result)
	}
}

func TestConnectsCountServers(t *testing.T) {
	node := New(t).Node(NodeOptions{})
	server, client := node.Pod(PodOptions{}).Process(), node.Pod(PodOptions{}).Process()
	address := server.Listen(process.TCP, netip.AddrPortFrom(server.Address4, 0), "counted")
	if result := client.Connects(process.TCP, address, 200); result.Servers["counted"] != 200 || result.Failed() != 0 {
		t.Errorf("200 connects: %+v", result)
	}
	series := client.StartConnects(process.ConnectsRequest{Network: process.TCP, Address: address, Workers: 2})
	client.Connects(process.TCP, address, 50) // requests run beside each other
	if result := series.Stop(); result.Total() == 0 || result.Failed() != 0 {
		t.Errorf("series of connects: %+v", result)
	}
}

func TestProcessesRunInTheirCgroup(t *testing.T) {
	l := New(t)
	node := l.Node(NodeOptions{})
	for _, row := range []struct {
		process *Process
		below   string
	}{
		{node.Pod(PodOptions{Name: "web"}).Process(), node.Name + "/kubepods/web"},
		{node.Process(), node.Name + "/system/process-1"},
		{l.Client(ClientOptions{Name: "laptop"}).Process(), "clients/laptop"},
	} {
		var cgroup string
		if err := row.process.Call("cgroup", struct{}{}, &cgroup); err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(l.Name(), row.below) + "\n"; !strings.HasSuffix(cgroup, want) {
			t.Errorf("%s is in cgroup %q, want %q", row.process.Name, cgroup, want)
		}
	}
}

func TestARPAndPing(t *testing.T) {
	l := New(t)
	node := l.Node(NodeOptions{})
	client := l.Client(ClientOptions{}).Process()
	nobody := netip.MustParseAddr("172.20.0.77")
	if result := client.ARP("eth0", node.Address4, time.Second); !result.Answered {
		t.Errorf("ARP for %s: %+v, want the node's answer", node.Address4, result)
	}
	if result := client.ARP("eth0", nobody, 100*time.Millisecond); result.Answered {
		t.Errorf("ARP for %s: %+v, want silence", nobody, result)
	}
	for _, address := range []netip.Addr{node.Address4, node.Address6} {
		if result := client.Ping(address, time.Second); !result.Answered {
			t.Errorf("ping %s: %+v, want an answer", address, result)
		}
	}
	if result := client.Ping(nobody, 100*time.Millisecond); result.Answered {
		t.Errorf("ping %s: %+v, want silence", nobody, result)
	}
}

func TestCaptureCountsPacketsByTheirAddresses(t *testing.T) {
	node := New(t).Node(NodeOptions{})
	server, client := node.Pod(PodOptions{}).Process(), node.Pod(PodOptions{}).Process()
	for _, address := range []netip.Addr{server.Address4, server.Address6} {
		own := client.Address4
		if address.Is6() {
			own = client.Address6
		}
		listening := server.Listen(process.UDP, netip.AddrPortFrom(address, 0), "udp")
		capture := client.Capture("eth0")
		const total = 3
		for range total {
			client.Dial(process.UDP, listening).Exchange("hello")
		}
		counts := map[process.Captured]int{}
		for _, pair := range capture.Stop() {
			counts[process.Captured{Source: pair.Source, Destination: pair.Destination}] = pair.Packets
		}
		if there := counts[process.Captured{Source: own, Destination: address}]; there < total {
			t.Errorf("%d packets to %s captured, want %d", there, address, total)
		}
		if back := counts[process.Captured{Source: address, Destination: own}]; back < total {
			t.Errorf("%d packets from %s captured, want %d", back, address, total)
		}
	}
}

func TestNoNamespaceHasAWayOut(t *testing.T) {
	l := New(t)
	node := l.Node(NodeOptions{})
	processes := []*Process{
		node.Pod(PodOptions{}).Process(), node.Process(),
		l.Node(NodeOptions{Layout: Bridged}).Pod(PodOptions{}).Process(),
		l.Client(ClientOptions{}).Process(),
	}
	for _, process := range processes {
		socket := process.Dial("tcp", netip.MustParseAddrPort("192.0.2.1:80"))
		if socket.Errno != "ENETUNREACH" {
			t.Errorf("connect from %s to an outside address: %q, want ENETUNREACH", process.Name, socket.Errno)
		}
	}
}

func TestKilledProcessIsAnErrorOfItsCalls(t *testing.T) {
	pod := New(t).Node(NodeOptions{}).Pod(PodOptions{}).Process()
	pod.Kill()
	if err := pod.Call("ping", process.ProbeRequest{}, nil); err == nil {
		t.Error("a call to a killed process succeeded")
	}
}

// leftovers lists what a run left on the machine.
func leftovers(t *testing.T, name string) []string {
	t.Helper()
	cgroups, err := cgroupMount()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range []string{filepath.Join(os.TempDir(), name), filepath.Join(cgroups, name)} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			found = append(found, path)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), name) {
		found = append(found, "a mount")
	}
	return found
}

func TestClosedLabLeavesNothing(t *testing.T) {
	var name string
	var pids []int
	t.Run("lab", func(t *testing.T) {
		l := New(t)
		name = l.Name()
		node := l.Node(NodeOptions{})
		sleeper := node.Start("sleeper", exec.Command("/proc/self/exe", "-test.run=^TestSleepUntilKilled$"))
		pids = append(pids, node.Pod(PodOptions{}).Process().PID(), node.Process().PID(), sleeper.PID())
		if len(leftovers(t, name)) != 3 {
			t.Error("the lab has no directory, cgroup or mount to leave")
		}
	})
	if found := leftovers(t, name); len(found) > 0 {
		t.Errorf("left behind: %v", found)
	}
	for _, pid := range pids {
		if running(pid) {
			t.Errorf("process %d still runs", pid)
		}
	}
}

// TestSleepUntilKilled is the program of TestClosedLabLeavesNothing; by itself it has nothing to do.
func TestSleepUntilKilled(t *testing.T) {
	content, err := os.ReadFile("/proc/self/cgroup")
	if err == nil && strings.Contains(string(content), runPrefix) {
		select {}
	}
}

type madeLab struct {
	Name    string `json:"name"`
	PIDs    []int  `json:"pids"`
	Janitor int    `json:"janitor"`
}

// makeLab makes a lab inside a helper process and goes on using it for ever.
func makeLab(struct{}) (madeLab, error) {
	made := make(chan madeLab)
	failed := make(chan error)
	go func() {
		failed <- Run(context.Background(), []string{helperArgument}, func(l *Lab) error {
			pod := l.Node(NodeOptions{}).Pod(PodOptions{}).Process()
			made <- madeLab{Name: l.Name(), PIDs: []int{pod.PID()}, Janitor: l.janitor.command.Process.Pid}
			select {}
		})
	}()
	select {
	case lab := <-made:
		return lab, nil
	case err := <-failed:
		return madeLab{}, err
	}
}

func TestEndOfTheContextEndsTheLab(t *testing.T) {
	requireRoot(t)
	ctx, cancel := context.WithCancel(context.Background())
	var name string
	err := Run(ctx, []string{helperArgument}, func(l *Lab) error {
		name = l.Name()
		pod := l.Node(NodeOptions{}).Pod(PodOptions{}).Process()
		cancel()
		<-pod.Done()
		pod.Ping(pod.Address4, time.Second)
		return errors.New("a killed process answered")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted lab: %v", err)
	}
	if found := leftovers(t, name); len(found) > 0 {
		t.Errorf("left behind: %v", found)
	}
}

func TestLabOfAProgramThatEndsBadlyLeavesNothing(t *testing.T) {
	requireRoot(t)
	for _, row := range []struct {
		how string
		end func(*exec.Cmd, io.Writer) error
	}{
		{"killed", func(command *exec.Cmd, _ io.Writer) error { return command.Process.Kill() }},
		{"terminated", func(command *exec.Cmd, _ io.Writer) error { return command.Process.Signal(syscall.SIGTERM) }},
		{"panicking", func(_ *exec.Cmd, input io.Writer) error { return request(input, "panic") }},
	} {
		t.Run(row.how, func(t *testing.T) {
			command, input, made := startMaker(t)
			if err := row.end(command, input); err != nil {
				t.Fatal(err)
			}
			if err := command.Wait(); err == nil {
				t.Error("the program ended well")
			}
			awaitNothing(t, made)
		})
	}
}

func TestTheNextLabRemovesWhatADeadOneLeft(t *testing.T) {
	requireRoot(t)
	command, _, made := startMaker(t)
	if err := errors.Join(syscall.Kill(made.Janitor, syscall.SIGKILL), command.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait()
	New(t) // another test's lab may have been faster
	awaitNothing(t, made)
}

// startMaker starts a program that makes a lab.
func startMaker(t *testing.T) (*exec.Cmd, io.Writer, madeLab) {
	t.Helper()
	command := exec.Command("/proc/self/exe", helperArgument, roleProcess)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if err := request(input, "make-lab"); err != nil {
		t.Fatal(err)
	}
	var response process.Response
	if err := json.NewDecoder(output).Decode(&response); err != nil {
		t.Fatal(err)
	}
	var made madeLab
	if err := json.Unmarshal(response.Body, &made); err != nil {
		t.Fatalf("%v: %s", err, response.Error)
	}
	return command, input, made
}

func request(input io.Writer, operation string) error {
	return json.NewEncoder(input).Encode(process.Request{Number: 1, Operation: operation, Body: []byte("{}")})
}

func awaitNothing(t *testing.T, left madeLab) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		found := leftovers(t, left.Name)
		for _, pid := range left.PIDs {
			if running(pid) {
				found = append(found, fmt.Sprintf("process %d", pid))
			}
		}
		if len(found) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", found)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// running does not count a process that is dead and waits for a parent to look at it.
func running(pid int) bool {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(content), ") Z ")
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
