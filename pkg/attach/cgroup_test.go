// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"strings"
	"testing"
)

func TestTheWholeHierarchyIsFoundInAMountinfo(t *testing.T) {
	const (
		proc    = "22 26 0:20 / /proc rw,nosuid - proc proc rw\n"
		old     = "30 25 0:26 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu\n"
		unified = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
		hybrid  = "35 24 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		part    = "36 24 0:30 /kubepods/pod1 /mnt/own rw - cgroup2 none rw\n"
		blank   = `37 24 0:30 / /run/my\040cgroup rw - cgroup2 none rw` + "\n"
	)
	rows := []struct {
		name, mountinfo, want string
	}{
		{"systemd's", proc + unified, "/sys/fs/cgroup"},
		{"hybrid", proc + old + hybrid, "/sys/fs/cgroup/unified"},
		{"a part before the whole", part + hybrid, "/sys/fs/cgroup/unified"},
		{"a part after the whole", hybrid + part, "/sys/fs/cgroup/unified"},
		{"nothing but a part", proc + part, "/mnt/own"},
		{"a blank in the path", blank, "/run/my cgroup"},
		{"version 1 alone", proc + old, ""},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			got, err := findCgroup(strings.NewReader(row.mountinfo))
			if got != row.want || (row.want == "") != errors.Is(err, ErrNoCgroup) {
				t.Errorf("found %q, %v", got, err)
			}
		})
	}
}
