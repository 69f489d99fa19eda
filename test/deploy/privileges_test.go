// SPDX-License-Identifier: Apache-2.0

// Package deploy proves that the privileges in deploy/base/daemonset.yaml are enough and that each is needed: the agent
// runs with what a container of that DaemonSet has (capabilities, no new privileges, process ids of its own, the
// namespaces of pods below /run/netns) and with one capability less.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/shunt-lb/shunt/pkg/cli"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// The test binary is also the container's runtime and then shunt itself.
const (
	asContainer = "as-container"
	asShunt     = "as-shunt"
)

const (
	patience = 20 * time.Second
	pause    = 10 * time.Millisecond
)

var capabilities = map[string]uintptr{
	"BPF": unix.CAP_BPF, "NET_ADMIN": unix.CAP_NET_ADMIN, "PERFMON": unix.CAP_PERFMON, "SYS_ADMIN": unix.CAP_SYS_ADMIN,
}

func TestMain(m *testing.M) {
	lab.Main()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case asContainer:
			fmt.Fprintln(os.Stderr, "start container:", enterContainer(os.Args[2], os.Args[3], os.Args[4:]))
			os.Exit(1)
		case asShunt:
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			status := cli.Run(ctx, os.Args[2:], os.Stdout, os.Stderr)
			stop()
			os.Exit(status)
		}
	}
	os.Exit(m.Run())
}

// enterContainer becomes shunt in what a container is to it. It returns only when that fails.
func enterContainer(granted, podNamespace string, arguments []string) error {
	runtime.LockOSThread() // capabilities belong to the thread that will be the program
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("leave the mount namespace: %w", err)
	}
	pod, err := os.Open(podNamespace) // before /proc is that of the container
	if err != nil {
		return err
	}
	defer pod.Close()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	for _, mount := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
	} {
		if err := unix.Mount(mount.source, mount.target, mount.kind, mount.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", mount.target, err)
		}
	}
	if err := os.Mkdir("/run/netns", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile("/run/netns/pod", nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", pod.Fd()), "/run/netns/pod", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind the pod's network namespace: %w", err)
	}
	// The kernels that shunt runs on account maps to the cgroup: the limit must not matter.
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("allow no locked memory: %w", err)
	}
	if err := dropCapabilities(strings.Split(granted, ",")); err != nil {
		return err
	}
	return unix.Exec(fmt.Sprintf("/proc/self/fd/%d", self.Fd()), append([]string{"shunt", asShunt}, arguments...), os.Environ())
}

// dropCapabilities leaves root with the granted ones, from the next exec on, and no way to get others.
func dropCapabilities(granted []string) error {
	var keep []uintptr
	for _, name := range granted {
		number, ok := capabilities[name]
		if !ok {
			return fmt.Errorf("unknown capability %q", name)
		}
		keep = append(keep, number)
	}
	for number := uintptr(0); number <= unix.CAP_LAST_CAP; number++ {
		if slices.Contains(keep, number) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, number, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EINVAL) { // a kernel that is older than the list
			return fmt.Errorf("drop capability %d: %w", number, err)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// granted are the capabilities of the DaemonSet.
func granted(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("../../deploy/base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(data, &set); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range set.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add {
		names = append(names, string(c))
	}
	return names
}

func TestTheCapabilitiesOfTheDaemonSetAreEnoughAndEachIsNeeded(t *testing.T) {
	all := granted(t)
	if lost := whatIsLost(t, all); lost != "" {
		t.Errorf("with %v: %s", all, lost)
	}
	for _, without := range all {
		lost := whatIsLost(t, except(all, without))
		if lost == "" {
			t.Errorf("without %s everything works", without)
		}
		t.Logf("without %s: %s", without, lost)
	}
}

// The chart's endPodSockets: false.
func TestWithoutSysAdminOnlyTheSocketsOfPodsAreLost(t *testing.T) {
	const onlyThat = "needs CAP_SYS_ADMIN"
	all := []string{"BPF", "NET_ADMIN", "PERFMON"}
	if lost := whatIsLost(t, all); !strings.Contains(lost, onlyThat) {
		t.Errorf("with %v: %s", all, lost)
	}
	for _, without := range all {
		lost := whatIsLost(t, except(all, without))
		if lost == "" || strings.Contains(lost, onlyThat) {
			t.Errorf("without %s nothing else is lost", without)
		}
		if !strings.Contains(lost, "no permission: run this as root, or with") || !strings.Contains(lost, "CAP_"+without) {
			t.Errorf("without %s the agent does not name it: %s", without, lost)
		}
		t.Logf("without %s: %s", without, lost)
	}
}

func except(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}

const (
	service = `{apiVersion: v1, kind: Service, metadata: {name: dns, namespace: default},
spec: {clusterIP: 10.96.0.10, ports: [{name: tcp, port: 80, protocol: TCP}, {name: udp, port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {name: dns-1, namespace: default,
labels: {kubernetes.io/service-name: dns}}, ports: [{name: tcp, port: 8080, protocol: TCP}, {name: udp, port: 8080, protocol: UDP}],
endpoints: [{addresses: ['%s'], conditions: {ready: true}}]}
`
	frontend = "10.96.0.10"
)

// whatIsLost runs the agent with some capabilities and returns what does not work with them, empty when all does:
// translating a connection, and ending a UDP socket in a pod whose backend goes.
func whatIsLost(t *testing.T, names []string) string {
	l := lab.New(t)
	node := l.Node(lab.NodeOptions{})
	client := node.Pod(lab.PodOptions{Name: "client"})
	clientProcess := client.Process()
	var servers []netip.Addr
	for _, name := range []string{"first", "second"} {
		pod := node.Pod(lab.PodOptions{Name: name}).Process()
		pod.Listen(process.TCP, netip.AddrPortFrom(pod.Address4, 8080), name)
		pod.Listen(process.UDP, netip.AddrPortFrom(pod.Address4, 8080), name)
		servers = append(servers, pod.Address4)
	}
	manifests := node.File("manifests")
	write := func(backend netip.Addr) {
		temporary := filepath.Join(manifests, ".new")
		err := os.WriteFile(temporary, fmt.Appendf(nil, service, backend), 0o600)
		if err == nil {
			err = os.Rename(temporary, filepath.Join(manifests, "dns.yaml"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	write(servers[0])
	log, err := os.Create(node.File("agent.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	logText := func() string {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	command := exec.Command("/proc/self/exe", asContainer, strings.Join(names, ","),
		fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), client.Namespace.Fd()),
		"agent", "--manifests", manifests, "--node-name", node.Name, "--cgroup-root", node.CgroupRoot, "--bpffs", node.BPFFS,
		"--max-services=512", "--max-backends=1024", "--max-slots=4096", "--max-affinity=1024", "--max-source-ranges=64")
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	agent := node.Start("agent", command)

	// until polls; it returns what went wrong instead.
	until := func(what string, done func() bool) string {
		deadline := time.Now().Add(patience)
		for !done() {
			select {
			case <-agent.Done():
				return "the agent ends: " + logText()
			default:
			}
			for line := range strings.Lines(logText()) {
				if strings.Contains(line, "level=WARN") && strings.Contains(line, "UDP sockets") {
					return line
				}
			}
			if time.Now().After(deadline) {
				return what + ": not within " + patience.String() + ": " + logText()
			}
			time.Sleep(pause)
		}
		return ""
	}
	address := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(frontend), port) }
	lost := until("a connection to the Service", func() bool {
		socket := clientProcess.Dial(process.TCP, address(80))
		defer socket.Close()
		return socket.OK() && socket.Exchange("who").Server == "first"
	})
	if lost != "" {
		return lost
	}
	socket := clientProcess.Dial(process.UDP, address(53))
	defer socket.Close()
	if answer := socket.Exchange("who"); answer.Server != "first" {
		return fmt.Sprintf("UDP is answered by %q, errno %s", answer.Server, answer.Errno)
	}
	write(servers[1])
	return until("the end of the UDP socket of the backend that went", func() bool {
		return socket.Inspect().PeerErrno != ""
	})
}
