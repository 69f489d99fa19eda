// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const (
	churnRate    = 100 // changes a second
	churnWorkers = 4
	churnPause   = 400 * time.Millisecond // between two measured changes during the churn
	// singlePause is longer than kube-proxy's usual pause between two syncs, so that it does not wait for that.
	singlePause    = 1200 * time.Millisecond
	changePatience = 30 * time.Second
	sampled        = 100 // Services that are asked at the start
)

// result is one proxy with one number of Services. Zero where it was given up.
type result struct {
	proxy     string
	gaveUp    bool
	start     time.Duration // from its start until all Services answer
	startCPU  time.Duration
	peakBytes uint64
	single    []time.Duration // from a change until it shows, alone
	churned   []time.Duration // and among 100 changes a second
	changeCPU time.Duration   // of one of those
}

// measure starts a proxy in a world of its own.
func (b *bench) measure(ctx context.Context, p proxy, size int) (result, error) {
	measured := result{proxy: p.name}
	err := lab.Run(ctx, []string{helperArgument}, func(l *lab.Lab) error {
		w, err := world.New(l, p.name, b.cluster.Control)
		if err != nil {
			return err
		}
		defer w.Relay.Close()
		if err := serveAll(w); err != nil {
			return err
		}
		if err := b.measureStart(w, p, size, &measured); err != nil || measured.gaveUp {
			return err
		}
		if err := b.measureSingle(ctx, w, &measured); err != nil {
			return err
		}
		return b.measureChurn(ctx, w, size, &measured)
	})
	return measured, err
}

// serveAll lets a process of the far node answer for every endpoint.
func serveAll(w *world.World) error {
	handle := w.Far.Netlink()
	loopback, err := handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	const localTable = 255
	every := &netlink.Route{
		LinkIndex: loopback.Attrs().Index, Table: localTable, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		Dst: &net.IPNet{IP: endpointRange.Addr().AsSlice(), Mask: net.CIDRMask(endpointRange.Bits(), 32)},
	}
	if err := handle.RouteAdd(every); err != nil {
		return fmt.Errorf("make all endpoints local: %w", err)
	}
	server := w.Far.Process()
	server.Listen(process.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), serverPort), serverName)
	server.Listen(process.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), doublePort), doubleName)
	return w.Node.AddRoute(endpointRange, "eth0", w.Far.Address4)
}

func (b *bench) measureStart(w *world.World, p proxy, size int, measured *result) error {
	command, err := p.command(b, w)
	if err != nil {
		return err
	}
	var sample []netip.AddrPort
	for i := range min(size, sampled) {
		sample = append(sample, netip.AddrPortFrom(serviceAddress(i*(size-1)/max(min(size, sampled)-1, 1)), 80))
	}
	begin := monotonic()
	if err := w.StartProxy(command); err != nil {
		return err
	}
	answer := <-awaitServer(w.Client, awaitRequest{To: sample, Server: serverName, Patience: b.patience})
	if answer.Missing > 0 {
		measured.gaveUp = true
		return nil
	}
	if answer.err != nil {
		return answer.err
	}
	measured.start = answer.Monotonic - begin
	if measured.startCPU, err = cpuOf(w); err != nil {
		return err
	}
	if measured.peakBytes, err = peakOf(w.Proxy()); err != nil {
		return err
	}
	// Once, outside of the measurement: the sample has not hidden that others are missing.
	var all []netip.AddrPort
	for i := range size {
		all = append(all, netip.AddrPortFrom(serviceAddress(i), 80))
	}
	return (<-awaitServer(w.Client, awaitRequest{To: all, Server: serverName, Patience: b.patience})).err
}

func (b *bench) measureSingle(ctx context.Context, w *world.World, measured *result) error {
	for range b.changes {
		latency, err := b.changeOnce(ctx, w)
		if err != nil {
			return err
		}
		measured.single = append(measured.single, latency)
		time.Sleep(singlePause)
	}
	return nil
}

// changeOnce changes the probed Service and says when a client saw it, counted from when the API server had answered.
func (b *bench) changeOnce(ctx context.Context, w *world.World) (time.Duration, error) {
	b.flipped = !b.flipped
	port, server := int32(serverPort), serverName
	if b.flipped {
		port, server = doublePort, doubleName
	}
	to := []netip.AddrPort{netip.AddrPortFrom(serviceAddress(mostServices), 80)}
	answer := awaitServer(w.Client, awaitRequest{To: to, Server: server, Patience: changePatience})
	if err := b.change(ctx, probed, mostServices, port); err != nil {
		return 0, err
	}
	begin := monotonic()
	seen := <-answer
	return max(seen.Monotonic-begin, 0), seen.err
}

// measureChurn measures changes among many, and what one of the many costs.
func (b *bench) measureChurn(ctx context.Context, w *world.World, size int, measured *result) error {
	before, err := cpuOf(w)
	if err != nil {
		return err
	}
	var made churned
	ctx, cancel := context.WithTimeout(ctx, b.churn)
	defer cancel()
	failed := make(chan error, churnWorkers)
	for worker := range churnWorkers {
		go func() { failed <- b.churnServices(ctx, worker, size, &made) }()
	}
	for ctx.Err() == nil {
		latency, err := b.changeOnce(context.WithoutCancel(ctx), w)
		if err != nil {
			return err
		}
		measured.churned = append(measured.churned, latency)
		time.Sleep(churnPause)
	}
	for range churnWorkers {
		err = errors.Join(err, <-failed)
	}
	// What the proxy has still to do for them is part of their cost.
	if _, last := b.changeOnce(context.WithoutCancel(ctx), w); last != nil {
		err = errors.Join(err, last)
	}
	after, cpuErr := cpuOf(w)
	if made.changes > 0 {
		measured.changeCPU = (after - before) / time.Duration(made.changes)
	}
	return errors.Join(err, cpuErr, b.restore(context.WithoutCancel(ctx), made.services))
}

// churned counts changes, and the Services from the first to the last that was changed.
type churned struct {
	mutex             sync.Mutex
	changes, services int
}

func (c *churned) add(number int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.changes++
	c.services = max(c.services, number+1)
}

// churnServices changes its share of the Services in turn, forth and back.
func (b *bench) churnServices(ctx context.Context, worker, size int, made *churned) error {
	ticker := time.NewTicker(time.Second * churnWorkers / churnRate)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		number := (worker + i*churnWorkers) % size
		port := int32(serverPort)
		if (worker+i*churnWorkers)/size%2 == 0 {
			port = doublePort
		}
		// Not ended with ctx: a request that is cut off may have been carried out.
		if err := b.change(context.WithoutCancel(ctx), name(number), number, port); err != nil {
			return err
		}
		made.add(number)
	}
}

// cpuOf is the processor time of the proxy's cgroup: of its children as well.
func cpuOf(w *world.World) (time.Duration, error) {
	membership, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", w.Proxy().PID()))
	if err != nil {
		return 0, fmt.Errorf("find the proxy's cgroup (has it ended?): %w", err)
	}
	_, unified, _ := strings.Cut(string(membership), "0::")
	unified, _, _ = strings.Cut(unified, "\n")
	_, below, _ := strings.Cut(unified, "/"+w.Node.Name+"/")
	content, err := os.ReadFile(filepath.Join(w.Node.CgroupRoot, below, "cpu.stat"))
	if err != nil {
		return 0, fmt.Errorf("read the proxy's processor time: %w", err)
	}
	value, err := field(content, "usage_usec")
	return time.Duration(value) * time.Microsecond, err
}

// peakOf is the most memory that a program has had resident, without its children.
func peakOf(p *lab.Program) (uint64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("read the proxy's memory: %w", err)
	}
	kilobytes, err := field(content, "VmHWM:")
	return kilobytes << 10, err
}

func field(content []byte, name string) (uint64, error) {
	for line := range bytes.Lines(content) {
		if fields := strings.Fields(string(line)); len(fields) > 1 && fields[0] == name {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("find %s: not there", name)
}

// quantile of latencies; q of 0.99 is the slowest of fewer than a hundred.
func quantile(latencies []time.Duration, q float64) time.Duration {
	if len(latencies) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(latencies))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
