// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DirectoryName is the pin directory's name in the bpffs.
const DirectoryName = "shunt"

// The errors that a caller may want to tell apart.
var (
	ErrLocked     = errors.New("another agent is running on this node")
	ErrNoBPFFS    = errors.New("not a BPF file system")
	ErrPermission = errors.New("no permission: run this as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")
)

// Directory is the pin directory, locked: one process at a time changes what is in it.
type Directory struct {
	Path string
	file *os.File
}

// Lock opens the pin directory of a bpffs, makes it if need be, and locks it until Close. It does not wait: ErrLocked
// tells that another process has the lock.
func Lock(bpffs string) (*Directory, error) {
	if err := checkBPFFS(bpffs); err != nil {
		return nil, err
	}
	path := filepath.Join(bpffs, DirectoryName)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make directory %s: %w", path, permission(err))
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open pin directory: %w", permission(err))
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w%s", path, ErrLocked, lockHolder(file))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Directory{Path: path, file: file}, nil
}

// InPlace returns an error when the directory is not at its path any more: removed, or its bpffs unmounted. The lock is
// then one that nobody else meets.
func (d *Directory) InPlace() error {
	var held, there unix.Stat_t
	if err := unix.Fstat(int(d.file.Fd()), &held); err != nil {
		return fmt.Errorf("look at pin directory: %w", err)
	}
	err := unix.Stat(d.Path, &there)
	if err == nil && (held.Ino != there.Ino || held.Dev != there.Dev) {
		err = errors.New("another one is in its place")
	}
	if err != nil {
		return fmt.Errorf("pin directory %s was removed under this agent: %w: start the agent again", d.Path, err)
	}
	return nil
}

// Close releases the lock.
func (d *Directory) Close() error { return d.file.Close() }

func checkBPFFS(path string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return fmt.Errorf("find bpffs %s: %w: make the directory and mount one there (mount -t bpf bpf %s), or set "+
			"--bpffs", path, err, path)
	}
	if stat.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s is %w: mount one there (mount -t bpf bpf %s), or set --bpffs", path, ErrNoBPFFS, path)
	}
	return nil
}

// lockHolder tells who has the lock, as far as the kernel shows: a holder in another PID namespace it does not.
func lockHolder(file *os.File) string {
	var stat unix.Stat_t
	if unix.Fstat(int(file.Fd()), &stat) != nil {
		return ""
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return ""
	}
	defer locks.Close()
	where := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4242 00:1c:5678 0 EOF
		fields := strings.Fields(lines.Text())
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[5] == where && fields[4] != "0" && fields[4] != "-1" {
			return " (pid " + fields[4] + ")"
		}
	}
	return ""
}

// permission replaces the kernel's words for a missing privilege by what to do.
func permission(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (%w)", ErrPermission, err)
	}
	return err
}
