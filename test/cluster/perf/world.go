// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"github.com/shunt-lb/shunt/test/cluster/perf/traffic"
	"github.com/shunt-lb/shunt/test/lab"
)

const (
	programPatience = 10 * time.Minute
	probePatience   = 300 * time.Millisecond
)

// world is one copy of the nodes, pods and the client outside, and what translates Services on node-1:
//
//	client pod, local server ── node-1 ──┬── node-2 ── remote server
//	                                     └── outside client
//
// Node-2 has no proxy, and nothing that tracks connections.
type world struct {
	variant variant
	node    *lab.Node
	far     *lab.Node
	client  *lab.Process
	local   *lab.Process
	remote  *lab.Process
	outside *lab.Process
	proxy   *lab.Program
	started startCost
}

// startCost is what it took the proxy to program all Services from empty.
type startCost struct {
	Elapsed time.Duration
	CPU     time.Duration
	Memory  int // MB resident when it has settled
}

// newWorld makes a world; its API server goes with serving.
func newWorld(ctx, serving context.Context, l *lab.Lab, v variant, settings settings) (*world, error) {
	w := &world{variant: v}
	w.node = l.Node(lab.NodeOptions{Name: testedNode})
	w.far = l.Node(lab.NodeOptions{})
	outside := l.Client(lab.ClientOptions{Name: "outside"})
	w.client = w.node.Pod(lab.PodOptions{Name: "client"}).Process()
	w.local = w.node.Pod(lab.PodOptions{Name: "local"}).Process()
	w.remote = w.far.Pod(lab.PodOptions{Name: "remote"}).Process()
	w.outside = outside.Process()
	for _, node := range []*lab.Node{w.node, w.far} { // so that pods can be dialled without a Service
		err := errors.Join(outside.AddRoute(node.Pods4, outside.Device, node.Address4),
			outside.AddRoute(node.Pods6, outside.Device, node.Address6))
		if err != nil {
			return nil, err
		}
	}
	if err := w.prepare(settings.cpu); err != nil {
		return nil, err
	}
	if v.command == nil {
		return w, nil
	}
	host := l.Client(lab.ClientOptions{Name: "api"})
	return w, w.startProxy(ctx, serving, host, settings)
}

func (w *world) prepare(cpu int) error {
	for _, p := range []*lab.Process{w.client, w.outside, w.local, w.remote} {
		if err := traffic.Prepare(p, cpu); err != nil {
			return err
		}
	}
	for _, server := range []*lab.Process{w.local, w.remote} {
		for _, at := range []netip.Addr{server.Address4, server.Address6} {
			if err := traffic.Serve(server, netip.AddrPortFrom(at, serverPort)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *world) startProxy(ctx, serving context.Context, host *lab.Client, settings settings) error {
	o := newObjects(testedNodeObject(w.node), w.variant.services,
		backend{w.local.Address4, w.local.Address6, w.node.Name}, backend{w.remote.Address4, w.remote.Address6, w.far.Name})
	server, err := startAPI(serving, host, o)
	if err != nil {
		return err
	}
	kubeconfig := w.node.File("kubeconfig")
	if err := server.kubeconfig(kubeconfig); err != nil {
		return err
	}
	command, err := w.variant.command(w, settings, kubeconfig)
	if err != nil {
		return err
	}
	if w.proxy, err = w.start("proxy", command); err != nil {
		return err
	}
	begin := time.Now()
	if err := w.awaitProgrammed(ctx); err != nil {
		return fmt.Errorf("%s: %w\n%s", w.variant.name(), err, lastLines(w.logFile("proxy")))
	}
	w.started.Elapsed = time.Since(begin)
	if err := awaitQuiet(w.proxy.PID()); err != nil {
		return fmt.Errorf("%s: %w", w.variant.name(), err)
	}
	if w.started.CPU, err = traffic.CPUTime(w.proxy.PID()); err != nil {
		return err
	}
	w.started.Memory, err = residentMB(w.proxy.PID())
	return err
}

func (w *world) logFile(name string) string { return w.node.File(name + ".log") }

// start runs a program on the tested node, its output in a file.
func (w *world) start(name string, command *exec.Cmd) (*lab.Program, error) {
	log, err := os.Create(w.logFile(name))
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	return w.node.Start(name, command), nil
}

// awaitProgrammed waits until each path is open, and the last of the other Services too.
func (w *world) awaitProgrammed(ctx context.Context) error {
	last := lastFiller(w.variant.services)
	deadline := time.Now().Add(programPatience)
	for _, family := range families {
		for _, path := range paths {
			for _, kind := range []traffic.Kind{traffic.Exchange, traffic.Flow} {
				client, to := path.client(w), path.service(w, family)
				if err := w.await(ctx, client, traffic.Work{Kind: kind, To: to}, deadline); err != nil {
					return fmt.Errorf("wait for %s: %w", path.name, err)
				}
			}
		}
		work := traffic.Work{Kind: traffic.Exchange, To: netip.AddrPortFrom(family.of(last.address4, last.address6), dialedPort)}
		if err := w.await(ctx, w.client, work, deadline); err != nil {
			return fmt.Errorf("wait for the last Service: %w", err)
		}
	}
	return nil
}

func (w *world) await(ctx context.Context, client *lab.Process, work traffic.Work, deadline time.Time) error {
	work.Count, work.Patience = 1, probePatience
	for {
		_, err := traffic.Run(client, work)
		switch {
		case err == nil:
			return nil
		case time.Now().After(deadline):
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.proxy.Done():
			return fmt.Errorf("the proxy has ended: %v", w.proxy.Wait())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// measure has a client do the work and tells what it cost client, server and the kernel's own thread together.
func (w *world) measure(client, server *lab.Process, work traffic.Work, kernel kernelThread) (sample, error) {
	before, err := cpuOf(server, kernel)
	if err != nil {
		return sample{}, err
	}
	done, err := traffic.Run(client, work)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", w.variant.name(), err)
	}
	after, err := cpuOf(server, kernel)
	if err != nil {
		return sample{}, err
	}
	count := float64(work.Count)
	return sample{
		CPU:    float64((done.CPU + after - before).Nanoseconds()) / count,
		Rate:   count / done.Elapsed.Seconds(),
		Median: done.Median, Slow: done.Slow,
	}, nil
}

func cpuOf(server *lab.Process, kernel kernelThread) (time.Duration, error) {
	used, err := traffic.CPUTime(server.PID())
	if err != nil {
		return 0, err
	}
	inKernel, err := kernel.used()
	return used + inKernel, err
}
