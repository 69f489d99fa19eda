// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const removePatience = 10 * time.Second

// janitor is the process that removes what the kernel does not remove by itself. It knows the end of its maker by the
// end of a pipe, whatever the end was, so there is one way of cleaning and each run takes it.
type janitor struct {
	command *exec.Cmd
	pipe    io.Closer
}

func startJanitor(helper []string, directory, cgroup string) (*janitor, error) {
	arguments := append(append([]string{}, helper...), roleJanitor, directory, cgroup)
	command := exec.Command("/proc/self/exe", arguments...)
	command.Stderr = os.Stderr
	// A session of its own: an interrupt from the terminal does not reach it.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start janitor: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start janitor: %w", err)
	}
	return &janitor{command: command, pipe: pipe}, nil
}

// finish lets the janitor clean and waits for it.
func (j *janitor) finish() error {
	j.pipe.Close()
	if err := j.command.Wait(); err != nil {
		return fmt.Errorf("remove what the lab made (the janitor says why above): %w", err)
	}
	return nil
}

// runJanitor is the janitor's own main.
func runJanitor(arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("run lab janitor: wants a directory and a cgroup")
	}
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return removeRun(arguments[0], arguments[1])
}

// removeRun removes the processes, cgroups, mounts and files of one run.
func removeRun(directory, cgroup string) error {
	return errors.Join(removeCgroup(cgroup, removePatience), unmountBelow(directory), os.RemoveAll(directory))
}

// unmountBelow detaches every mount below the directory, the deepest first.
func unmountBelow(directory string) error {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var targets []string
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) >= 5 && strings.HasPrefix(fields[4], directory+"/") {
			targets = append(targets, fields[4])
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(targets)))
	for _, target := range targets {
		err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
	return nil
}

// removeStale removes runs whose maker and janitor were both killed.
func removeStale(cgroups string) error {
	var failures []error
	names := map[string]bool{}
	for _, parent := range []string{os.TempDir(), cgroups} {
		found, err := filepath.Glob(filepath.Join(parent, runPrefix+".*"))
		failures = append(failures, err)
		for _, path := range found {
			names[filepath.Base(path)] = true
		}
	}
	for name := range names {
		if run, ok := parseRunName(name); ok && run.dead() {
			failures = append(failures, removeRun(filepath.Join(os.TempDir(), name), filepath.Join(cgroups, name)))
		}
	}
	return errors.Join(failures...)
}
