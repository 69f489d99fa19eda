// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoCgroup tells that there is no cgroup v2 hierarchy.
var ErrNoCgroup = errors.New("no cgroup v2 is mounted: mount one (mount -t cgroup2 none /sys/fs/cgroup), boot with " +
	"systemd.unified_cgroup_hierarchy=1, or set --cgroup-root")

// CgroupRoot returns the cgroup that programs are attached to: the given one, which must be of cgroup v2, or the
// root of the hierarchy as the caller sees it mounted.
func CgroupRoot(override string) (string, error) {
	if override != "" {
		return override, checkCgroup(override)
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find the cgroup root: %w", err)
	}
	defer f.Close()
	return findCgroup(f)
}

func checkCgroup(path string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return fmt.Errorf("find cgroup %s: %w: correct --cgroup-root", path, err)
	}
	if stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%s is not a directory of cgroup v2: correct --cgroup-root", path)
	}
	return nil
}

// findCgroup reads a mountinfo. A mount of the whole hierarchy is better than one of a part of it (a container's own
// cgroup, bind-mounted), and a later one hides an earlier one at the same place.
func findCgroup(mountinfo io.Reader) (string, error) {
	var whole, part string
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		// 35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
		mount, source, found := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(mount)
		if !found || len(fields) < 5 || !strings.HasPrefix(source, "cgroup2 ") {
			continue
		}
		path := unescape(fields[4])
		if fields[3] == "/" {
			whole = path
		} else {
			part = path
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("read mountinfo: %w", err)
	}
	switch {
	case whole != "":
		return whole, nil
	case part != "":
		return part, nil
	}
	return "", fmt.Errorf("find the cgroup root: %w", ErrNoCgroup)
}

// unescape undoes the kernel's octal escapes of blanks and backslashes in paths.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// cgroupID returns the id that the kernel knows a cgroup by: its inode number.
func cgroupID(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, fmt.Errorf("find cgroup %s: %w", path, err)
	}
	return stat.Ino, nil
}
