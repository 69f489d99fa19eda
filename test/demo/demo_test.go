// SPDX-License-Identifier: Apache-2.0

// Package demo runs `shunt demo` as a user does, and stops it as a user does. The test binary is shunt itself when it
// is started with anything but flags of a test, so no other binary is needed.
package demo

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/cli"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		status := cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(status)
	}
	os.Exit(m.Run())
}

func demo(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the demo makes namespaces and loads programs: run as root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, "/proc/self/exe", "demo")
}

func TestTheDemoTellsItsStoryAndEveryClaimIsTrue(t *testing.T) {
	output, err := demo(t).CombinedOutput()
	if err != nil {
		t.Fatalf("shunt demo: %v\n%s", err, output)
	}
	for _, evidence := range []string{
		`who-has 10\.96\.0\.10 +no answer`,
		`the kernel dialled +10\.244\.\d\.\d+:8080`,
		`the client, as it saw it +10\.244\.1\.2:\d+`,
		`getpeername\(2\) says +10\.96\.0\.10:80`,
		`connections +1000 in .*, 0 failed`,
		`web-3 is unready: .* none fails`,
		`connect to 10\.96\.0\.30:80 +ECONNREFUSED`,
		`shop-frontend stays with one backend`,
		`recvfrom\(2\) says: from +10\.96\.0\.53:53`,
		`there is nothing of it in the kernel's maps`,
		`172\.20\.0\.10:30080/TCP, dialled by a client outside the node: TRANSLATED`,
		`packets at customer +172\.20\.0\.10 > 172\.20\.0\.101: [1-9]`,
		`shopfront-1 answered, and saw customer's own address`,
		`reports-1 answered, and saw node-1's address`,
		`packets at reports-1 +fd00:172:20::a > fd00:10:244:2::\d+: [1-9]`,
		`recvfrom\(2\) says: from +172\.20\.0\.10:30053`,
		`connect\(2\) asked for +203\.0\.113\.10:80`,
		`connect\(2\) asked for +203\.0\.113\.20:80`,
		`Service reports, since then +1 flow`,
		`172\.20\.0\.101:\d+ +172\.20\.0\.10:30090 +10\.244\.2\.\d+:8080 +established`,
		`The agent is dead, and 200 new connections succeed`,
		`The agent is dead: the two connections that customer opened from outside go on`,
		`With the new agent: the two connections that customer opened from outside go on`,
		`ping 10\.96\.0\.10 +no answer`,
		`(?m)^\d\d claims, all true`,
	} {
		if !regexp.MustCompile(evidence).Match(output) {
			t.Errorf("the demo shows nothing like %q", evidence)
		}
	}
	if bytes.ContainsAny(output, "\x1b\r") {
		t.Error("the demo sends terminal codes into a pipe")
	}
	if t.Failed() {
		t.Logf("%s", output)
	}
	expectNothingLeft(t, string(output))
}

func TestInterruptedDemoCleansUpAndFails(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			command := demo(t)
			var stderr bytes.Buffer
			command.Stderr = &stderr
			stdout, err := command.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			var output strings.Builder
			lines := bufio.NewScanner(stdout)
			for lines.Scan() {
				output.WriteString(lines.Text() + "\n")
				if strings.Contains(lines.Text(), "A thousand connections") {
					_ = command.Process.Signal(signal)
				}
			}
			if err := command.Wait(); err == nil {
				t.Error("an interrupted demo ends with status 0")
			}
			if !strings.Contains(stderr.String(), "interrupted") {
				t.Errorf("an interrupted demo says %q", stderr.String())
			}
			if strings.Contains(output.String(), "all true") {
				t.Error("the demo went on to its end")
			}
			expectNothingLeft(t, output.String())
		})
	}
}

// expectNothingLeft looks for what the run with this output made: its name is in the agent's command line.
func expectNothingLeft(t *testing.T, output string) {
	t.Helper()
	agent := regexp.MustCompile(`--manifests=(\S+?)/node-1/\S+[\s\S]*?--cgroup-root=(\S+?)/node-1`)
	found := agent.FindStringSubmatch(output)
	if found == nil {
		t.Fatalf("the demo does not show the agent's command line:\n%s", output)
	}
	for _, path := range found[1:] {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("left behind: %s (%v)", path, err)
		}
	}
	name := filepath.Base(found[1])
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), name) {
		t.Errorf("left behind: a mount of %s", name)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range commands {
		if content, err := os.ReadFile(path); err == nil && bytes.Contains(content, []byte(name)) {
			t.Errorf("left behind: process %s", path)
		}
	}
}
