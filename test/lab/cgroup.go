// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupMount finds where cgroup v2 is mounted: /sys/fs/cgroup, or beside v1 hierarchies wherever the system put it.
func cgroupMount() (string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		before, after, found := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if found && len(fields) >= 5 && strings.HasPrefix(after, "cgroup2 ") {
			return fields[4], nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	return "", errors.New("find cgroup v2: it is not mounted here (mount -t cgroup2 none /sys/fs/cgroup)")
}

// removeCgroup ends every process in the subtree and removes it. A subtree that does not exist is no error.
func removeCgroup(path string, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		err := tryRemoveCgroup(path)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func tryRemoveCgroup(path string) error {
	var directories []string
	err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			directories = append(directories, name)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list cgroups below %s: %w", path, err)
	}
	if len(directories) == 0 {
		return nil
	}
	killCgroup(directories)
	slices.Reverse(directories) // children before parents
	for _, directory := range directories {
		if err := unix.Rmdir(directory); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", directory, err)
		}
	}
	return nil
}

// killCgroup uses cgroup.kill (Linux 5.14), and the process ids one by one below that.
func killCgroup(directories []string) {
	if os.WriteFile(filepath.Join(directories[0], "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	for _, directory := range directories {
		content, err := os.ReadFile(filepath.Join(directory, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(content)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}
