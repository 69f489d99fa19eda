// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/config"
)

// settings are the kernel's, in memory.
type settings map[string]string

func (s settings) ReadFile(name string) ([]byte, error) {
	text, ok := s[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return []byte(text), nil
}

func (s settings) WriteFile(name string, data []byte) error {
	s[name] = string(data)
	return nil
}

// agentEnvironment fails the test when the agent itself is run.
func agentEnvironment(t *testing.T) environment {
	return environment{agent: func(context.Context, *config.Config, func(context.Context) error, *slog.Logger) error {
		t.Error("the agent was run")
		return nil
	}}
}

const closeWait = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"

func TestInitOnlyMakesTheSettingsAndEnds(t *testing.T) {
	t.Parallel()
	env := agentEnvironment(t)
	kernel := settings{closeWait: "60\n"}
	env.settings = kernel
	line := []string{"agent", "--init-only", "--node-name", "n", "--conntrack-tcp-timeout-close-wait", "1h"}
	_, stderr, status := invoke(t, env, line...)
	if status != 0 || kernel[closeWait] != "3600" {
		t.Errorf("status %d, stderr %q, the kernel has %q", status, stderr, kernel)
	}
	env.settings = settings{}
	_, stderr, status = invoke(t, env, line...)
	if status != 1 || !strings.Contains(stderr, "apply --conntrack-tcp-timeout-close-wait") {
		t.Errorf("without the file: status %d, stderr %q", status, stderr)
	}
}

func TestWriteConfigToWritesWhatConfigReads(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shunt.yaml")
	stdout, stderr, status := invoke(t, agentEnvironment(t), "agent", "--node-name", "n", "--max-services", "777",
		"--write-config-to", file)
	if status != 0 || stdout != "" {
		t.Fatalf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	var read *config.Config
	env := environment{agent: func(_ context.Context, cfg *config.Config, _ func(context.Context) error,
		_ *slog.Logger) error {
		read = cfg
		return nil
	}}
	if _, stderr, status := invoke(t, env, "agent", "--config", file); status != 0 {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	if read.NodeName != "n" || read.MaxServices != 777 {
		t.Errorf("read back node %q, maxServices %d", read.NodeName, read.MaxServices)
	}
	_, stderr, status = invoke(t, agentEnvironment(t), "agent", "--write-config-to", filepath.Join(file, "below"))
	if status != 1 || !strings.Contains(stderr, "write configuration") {
		t.Errorf("to no place: status %d, stderr %q", status, stderr)
	}
}

func TestAgentCleanupIsCleanup(t *testing.T) {
	t.Parallel()
	env := agentEnvironment(t)
	env.clean.shunt = func(bpffs string, force bool) error {
		if bpffs != "/run/bpf" || force {
			t.Errorf("bpffs %s, force %v", bpffs, force)
		}
		return nil
	}
	stdout, stderr, status := invoke(t, env, "agent", "--cleanup", "--node-name", "n", "--bpffs", "/run/bpf")
	if status != 0 || stdout != "removed shunt's programs and maps from /run/bpf/shunt\n" {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}

func TestTheAgentsErrorIsTheCommands(t *testing.T) {
	t.Parallel()
	env := environment{agent: func(context.Context, *config.Config, func(context.Context) error, *slog.Logger) error {
		return errors.New("no cgroup v2")
	}}
	_, stderr, status := invoke(t, env, "agent", "--node-name", "n")
	if status != 1 || !strings.Contains(stderr, "shunt: run the agent: no cgroup v2") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}
