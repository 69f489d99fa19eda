// SPDX-License-Identifier: Apache-2.0

// Package traffic is what the processes of the benchmark do: a server, and a client that repeats one kind of operation
// a fixed number of times. Both use blocking system calls on one thread, so that what is measured is the kernel's work
// and not a runtime's. Server and client share one CPU: all that the kernel does for an operation happens there, in
// their context, and no sleeping CPU has to be woken, which on a virtual machine costs more than the operation.
package traffic

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// Kind is an operation.
type Kind string

// Kinds.
const (
	Connect  Kind = "connect"                // a TCP connection, ended by a reset so that no port stays taken
	Exchange Kind = "connect-request-close"  // a TCP connection, a request, its response, and an orderly end
	Request  Kind = "request on an open one" // a request and its response on one TCP connection
	Flow     Kind = "new UDP flow"           // a UDP socket, a datagram and its answer
	Stream   Kind = "UDP datagram"           // a datagram of one flow; each window is acknowledged
	Bulk     Kind = "TCP megabyte"           // a megabyte on one TCP connection
)

// UDP says that the operation speaks UDP.
func (k Kind) UDP() bool { return k == Flow || k == Stream }

const (
	messageSize = 64
	window      = 64 // datagrams on their way before the client waits: the server's buffer holds them
	megabyte    = 1 << 20
	chunk       = 128 << 10
	patience    = time.Minute

	serveOperation   = "perf-serve"
	runOperation     = "perf-run"
	prepareOperation = "perf-prepare"
)

// Work is a number of operations.
type Work struct {
	Kind  Kind           `json:"kind"`
	To    netip.AddrPort `json:"to"`
	Count int            `json:"count"`
	// Patience is the time for all of it.
	Patience time.Duration `json:"patience"`
}

// Done is what the client measured.
type Done struct {
	CPU     time.Duration `json:"cpu"` // of the client alone
	Elapsed time.Duration `json:"elapsed"`
	// Median and Slow (the 99th percentile) of one operation; of Request alone.
	Median time.Duration `json:"median"`
	Slow   time.Duration `json:"slow"`
}

// Operations add client and server to the processes of a lab.
func Operations() process.Operations {
	return process.Operations{
		prepareOperation: process.Typed(prepare),
		serveOperation:   process.Typed(serve),
		runOperation:     process.Typed(run),
	}
}

// Prepare puts a process on one CPU.
func Prepare(p *lab.Process, cpu int) error { return p.Call(prepareOperation, cpu, nil) }

// Serve starts a TCP and a UDP server at an address, for the life of the process.
func Serve(p *lab.Process, at netip.AddrPort) error { return p.Call(serveOperation, at, nil) }

// Run lets the process do the work.
func Run(p *lab.Process, work Work) (Done, error) {
	if work.Patience == 0 {
		work.Patience = patience
	}
	var done Done
	err := p.Call(runOperation, work, &done)
	return done, err
}

// prepare binds the process to the CPU and keeps the runtime's own work small.
func prepare(cpu int) (struct{}, error) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(1000)
	var set unix.CPUSet
	set.Set(cpu)
	err := forThreads(func(thread int) error { return unix.SchedSetaffinity(thread, &set) })
	if err != nil {
		return struct{}{}, fmt.Errorf("bind to CPU %d: %w", cpu, err)
	}
	return struct{}{}, nil
}

// RaisePriority lets this process go before others.
func RaisePriority() error {
	const highest = -20
	err := forThreads(func(thread int) error { return unix.Setpriority(unix.PRIO_PROCESS, thread, highest) })
	if err != nil {
		return fmt.Errorf("raise priority: %w", err)
	}
	return nil
}

// forThreads does something to all threads, of which those that they will make inherit it.
func forThreads(do func(thread int) error) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		if err := do(id); err != nil {
			return err
		}
	}
	return nil
}

// CPUTime is what a process has used so far: the kernel's work in its context included.
func CPUTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: in nanoseconds, as the scheduler counts
	return readClock(int32(^pid<<3 | scheduled))
}

func readClock(clock int32) (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		return 0, fmt.Errorf("read CPU clock: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

func address(at netip.AddrPort) (family int, out unix.Sockaddr) {
	if at.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}
