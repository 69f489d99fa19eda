// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	settlePatience = 20 * time.Second
	settlePause    = 20 * time.Millisecond
	quotedLogLines = 15
)

func (w *world) agentFlags() []string {
	return []string{
		"--manifests=" + w.manifests, "--node-name=" + w.node.Name,
		"--cgroup-root=" + w.node.CgroupRoot, "--bpffs=" + w.node.BPFFS,
		"--packet-path", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
	}
}

func (w *world) agentLogFile() string { return w.node.File("agent.log") }

// startAgent runs the agent on the node: host network, a cgroup of its own below the one it attaches to.
func (w *world) startAgent() error {
	log, err := os.OpenFile(w.agentLogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	defer log.Close()
	command := exec.Command("/proc/self/exe", append([]string{"agent"}, w.agentFlags()...)...)
	command.Stdout, command.Stderr = log, log
	w.agent = w.node.Start("shunt-agent", command)
	return nil
}

// agentLog is the end of the agent's log as an error, for a demo that failed.
func (s *story) agentLog() error {
	if s.world == nil {
		return nil
	}
	content, err := os.ReadFile(s.agentLogFile())
	if errors.Is(err, fs.ErrNotExist) || len(content) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	lines = lines[max(0, len(lines)-quotedLogLines):]
	return fmt.Errorf("the agent's log ends with:\n%s", strings.Join(lines, "\n"))
}

// shunt runs a command of shunt on the node and returns what it printed.
func (w *world) shunt(arguments ...string) (string, error) {
	var output, failure bytes.Buffer
	command := exec.Command("/proc/self/exe", append(arguments, "--bpffs", w.node.BPFFS)...)
	command.Stdout, command.Stderr = &output, &failure
	if err := w.node.Start("shunt", command).Wait(); err != nil {
		return "", fmt.Errorf("run shunt %s: %w: %s", strings.Join(arguments, " "), err, failure.String())
	}
	return output.String(), nil
}

// quoteShunt runs a command of shunt and shows it with what it said.
func (s *story) quoteShunt(arguments ...string) error {
	output, err := s.shunt(arguments...)
	if err != nil {
		return err
	}
	s.quote("$ shunt "+strings.Join(arguments, " "), output)
	return nil
}

// programmed is an element of `shunt services -o json`.
type programmed struct {
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	Address   netip.Addr `json:"address"`
	Internal  struct {
		Backends int `json:"backends"`
	} `json:"internal"`
	Packets packets `json:"packets"`
}

// packets are the counters of the packet path.
type packets struct {
	Flows        uint64 `json:"flows"`
	Forward      uint64 `json:"packetsForward"`
	BytesForward uint64 `json:"bytesForward"`
	Reply        uint64 `json:"packetsReply"`
	BytesReply   uint64 `json:"bytesReply"`
}

func (w *world) programmed() ([]programmed, error) {
	output, err := w.shunt("services", "-o", "json")
	if err != nil {
		return nil, err
	}
	var services []programmed
	if err := json.Unmarshal([]byte(output), &services); err != nil {
		return nil, fmt.Errorf("read shunt services: %w", err)
	}
	return services, nil
}

// await waits until every frontend of the service has so many backends in the kernel.
func (w *world) await(s *service, backends int) error {
	deadline := time.Now().Add(settlePatience)
	for {
		services, err := w.programmed()
		found := 0
		for _, frontend := range services {
			if frontend.Name == s.name && frontend.Internal.Backends == backends {
				found++
			}
		}
		if err == nil && found == s.frontends() {
			return nil
		}
		select {
		case <-w.agent.Done():
			return fmt.Errorf("wait for Service %s: the agent has ended: %w", s.name, w.agent.Wait())
		default:
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("wait for Service %s to have %d backends: not after %s",
				s.name, backends, settlePatience), err)
		}
		time.Sleep(settlePause)
	}
}
