// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// finder finds network namespaces by their inode number.
type finder struct {
	// patterns of paths that are, or lead to, namespaces.
	patterns []string
}

// hostFinder looks at every process that the agent sees, and where container runtimes keep the namespaces of pods.
func hostFinder() finder {
	return finder{patterns: []string{
		"/run/netns/*",
		"/var/run/netns/*",
		"/run/docker/netns/*",
		"/proc/[0-9]*/ns/net",
	}}
}

// find returns a path for each wanted inode that it can find.
func (f finder) find(wanted map[uint32][]Stale) map[uint32]string {
	found := map[uint32]string{}
	for _, pattern := range f.patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			continue // a malformed pattern matches nothing; the patterns are constants
		}
		for _, path := range paths {
			if len(found) == len(wanted) {
				return found
			}
			inode, err := inodeOf(path)
			if err != nil {
				continue // the process has ended, or is not ours to look at
			}
			if _, ok := wanted[inode]; ok {
				found[inode] = path
			}
		}
	}
	return found
}

func inodeOf(path string) (uint32, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, err
	}
	return uint32(stat.Ino), nil
}

// inNetns runs f on a thread that is in the namespace at path, if that is still the one with this inode.
func inNetns(path string, inode uint32, f func()) error {
	target, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer target.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(target.Fd()), &stat); err != nil {
		return fmt.Errorf("look at network namespace %s: %w", path, err)
	}
	if uint32(stat.Ino) != inode {
		return fmt.Errorf("network namespace %s: %w", path, os.ErrNotExist) // the pid is another process's now
	}
	done := make(chan error, 1)
	go func() {
		// Not unlocked unless the thread is back: the runtime ends a thread whose goroutine ends locked.
		runtime.LockOSThread()
		own, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("look at the agent's network namespace: %w", err)
			return
		}
		defer own.Close()
		if err := netns.Set(netns.NsHandle(target.Fd())); err != nil {
			if errors.Is(err, unix.EPERM) {
				err = fmt.Errorf("needs CAP_SYS_ADMIN: %w", err)
			}
			done <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		f()
		if netns.Set(own) == nil {
			runtime.UnlockOSThread()
		}
		done <- nil
	}()
	return <-done
}
