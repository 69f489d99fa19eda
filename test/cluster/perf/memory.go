// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/cluster/perf/traffic"
	"github.com/shunt-lb/shunt/test/lab"
)

const endpointsOfService = 10

// memoryCost is what the agent needs for many endpoints, from manifests.
type memoryCost struct {
	startCost
	peak      int // MB
	services  int
	benchmark []string // lines of Go's benchmarks of the writer
}

// measureMemory starts an agent on a directory of many Services and sees what it takes.
func measureMemory(ctx context.Context, helper []string, settings settings) (memoryCost, error) {
	cost := memoryCost{services: settings.endpoints / endpointsOfService}
	err := lab.Run(ctx, helper, func(l *lab.Lab) error {
		w := &world{node: l.Node(lab.NodeOptions{Name: testedNode})}
		manifests := w.node.File("manifests")
		if err := writeManifests(manifests, cost.services); err != nil {
			return err
		}
		begin := time.Now()
		agent, err := w.start("proxy", exec.Command(settings.shunt, "agent", "--manifests="+manifests, "--node-name="+testedNode,
			"--cgroup-root="+w.node.CgroupRoot, "--bpffs="+w.node.BPFFS, "--oom-score-adj=0"))
		if err != nil {
			return err
		}
		if err := w.awaitReady(agent, begin.Add(programPatience)); err != nil {
			return fmt.Errorf("%w\n%s", err, lastLines(w.logFile("proxy")))
		}
		cost.Elapsed = time.Since(begin)
		if err := awaitQuiet(agent.PID()); err != nil {
			return err
		}
		if cost.CPU, err = traffic.CPUTime(agent.PID()); err != nil {
			return err
		}
		if cost.peak, err = peakMB(agent.PID()); err != nil {
			return err
		}
		cost.Memory, err = residentMB(agent.PID())
		return err
	})
	if err != nil {
		return cost, fmt.Errorf("measure the agent with %d endpoints: %w", settings.endpoints, err)
	}
	cost.benchmark, err = writerBenchmark(ctx, settings)
	return cost, err
}

// writeManifests writes Services in files of a few hundred.
func writeManifests(directory string, services int) error {
	if err := os.Mkdir(directory, 0o755); err != nil {
		return err
	}
	const perFile = 250
	for first := 0; first < services; first += perFile {
		var content bytes.Buffer
		encoder := json.NewEncoder(&content)
		for i := first; i < min(first+perFile, services); i++ {
			s := filler(i)
			for len(s.backends) < endpointsOfService {
				number := i*endpointsOfService + len(s.backends)
				s.backends = append(s.backends, backend{
					address4: netip.AddrFrom4([4]byte{10, 128 | byte(number>>16), byte(number >> 8), byte(number)}), node: "node-100",
				})
			}
			s.backends = s.backends[:endpointsOfService]
			service, slice := s.object(), s.slice("IPv4")
			service.APIVersion, service.Kind = "v1", "Service"
			slice.APIVersion, slice.Kind = "discovery.k8s.io/v1", "EndpointSlice"
			for _, object := range []any{service, slice} {
				content.WriteString("---\n")
				if err := encoder.Encode(object); err != nil {
					return fmt.Errorf("encode manifest: %w", err)
				}
			}
		}
		file := filepath.Join(directory, fmt.Sprintf("services-%05d.yaml", first))
		if err := os.WriteFile(file, content.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until the agent says that all is programmed.
func (w *world) awaitReady(agent *lab.Program, deadline time.Time) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (connection net.Conn, err error) {
			err = w.node.Do(func() error {
				connection, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return connection, err
		},
	}}
	for {
		response, err := client.Get("http://127.0.0.1:10256/readyz")
		if err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("it answers %s", response.Status)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wait for the agent: %w", err)
		}
		select {
		case <-agent.Done():
			return fmt.Errorf("the agent has ended: %v", agent.Wait())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// writerBenchmark runs the benchmarks of plan, writer and maps, without the agent around them.
func writerBenchmark(ctx context.Context, settings settings) ([]string, error) {
	if settings.endpoints < fullSettings().endpoints {
		return nil, nil
	}
	root, err := binaries.Root()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, "go", "test", "-run=^$", "-bench=^Benchmark(Program|Change|ReadBack)$", "-benchtime=3x",
		"./test/maps")
	command.Dir = root
	output, err := command.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("run the benchmarks of the writer: %w\n%s", err, output)
	}
	var lines []string
	for line := range strings.Lines(string(output)) {
		if strings.HasPrefix(line, "Benchmark") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines, nil
}
