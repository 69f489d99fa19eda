// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/test/cluster/perf/traffic"
)

// kernelThread is the thread that takes over the packets of a CPU when there are many: what it uses belongs to the
// operation. Zero: not seen from here.
type kernelThread int

func findKernelThread(cpu int) (kernelThread, error) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		if strings.TrimSpace(string(content)) == fmt.Sprintf("ksoftirqd/%d", cpu) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return kernelThread(pid), err
		}
	}
	return 0, nil
}

func (k kernelThread) used() (time.Duration, error) {
	if k == 0 {
		return 0, nil
	}
	return traffic.CPUTime(int(k))
}

// awaitQuiet waits until a process has nothing more to do.
func awaitQuiet(pid int) error {
	const interval, most = 500 * time.Millisecond, 0.1
	deadline := time.Now().Add(programPatience)
	for {
		before, err := traffic.CPUTime(pid)
		if err != nil {
			return err
		}
		time.Sleep(interval)
		after, err := traffic.CPUTime(pid)
		switch {
		case err != nil:
			return err
		case float64(after-before) < most*float64(interval):
			return nil
		case time.Now().After(deadline):
			return errors.New("the proxy does not come to rest")
		}
	}
}

// residentMB is the memory that a process has.
func residentMB(pid int) (int, error) { return statusMB(pid, "VmRSS:") }

// peakMB is the most memory that a process has had.
func peakMB(pid int) (int, error) { return statusMB(pid, "VmHWM:") }

func statusMB(pid int, field string) (int, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory of process: %w", err)
	}
	_, after, _ := strings.Cut(string(content), field)
	var kB int
	if _, err := fmt.Sscan(after, &kB); err != nil {
		return 0, fmt.Errorf("read memory of process: %w", err)
	}
	return kB >> 10, nil
}

// describeMachine is a line about the machine for the report.
func describeMachine() string {
	var name unix.Utsname
	_ = unix.Uname(&name)
	return fmt.Sprintf("%s, %d CPUs, Linux %s", processor(), runtime.NumCPU(), unix.ByteSliceToString(name.Release[:]))
}

func processor() string {
	content, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(content)) {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// loadAverage is how busy the machine is with other things.
func loadAverage() float64 {
	content, _ := os.ReadFile("/proc/loadavg")
	var load float64
	_, _ = fmt.Sscan(string(content), &load)
	return load
}

func lastLines(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	const most = 3000
	return string(content[max(0, len(content)-most):])
}
