// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/doctor"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// hostEnvironment is this machine.
func hostEnvironment() environment {
	return environment{
		openMaps:    openMaps,
		monotonic:   monotonic,
		netnsCookie: netnsCookie,
		gather:      doctor.Gather,
		clean:       hostCleaner(),
	}
}

func monotonic() uint64 {
	var t unix.Timespec
	// The clock exists and the pointer is good: no other failure is defined.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint64(t.Nano())
}

func netnsCookie(pid int) (uint64, error) {
	if pid == 0 {
		return currentNetnsCookie()
	}
	target, err := netns.GetFromPid(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("find the network namespace of process %d: there is no such process", pid)
	}
	if err != nil {
		return 0, fmt.Errorf("find the network namespace of process %d: %w: run as root", pid, err)
	}
	defer target.Close()
	type result struct {
		cookie uint64
		err    error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread ends with the goroutine and takes the foreign namespace with it.
		runtime.LockOSThread()
		if err := netns.Set(target); err != nil {
			done <- result{err: fmt.Errorf("enter the network namespace of process %d: %w: run as root", pid, err)}
			return
		}
		cookie, err := currentNetnsCookie()
		done <- result{cookie, err}
	}()
	r := <-done
	return r.cookie, r.err
}

func currentNetnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket to identify the network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, errors.New("identify the network namespace: this kernel is too old, Linux 5.14 or later is needed")
	}
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return cookie, nil
}

func openMaps(dir string) (maps.Reader, func(), error) {
	k, err := maps.Open(dir, maps.Options{ReadOnly: true})
	if err != nil {
		return nil, nil, err
	}
	return k, k.Close, nil
}
