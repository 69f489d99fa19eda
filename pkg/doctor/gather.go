// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/kubeproxy"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// Options tell where to look.
type Options struct {
	// Proc is where /proc is mounted.
	Proc string
	// BPFFS is where the BPF file system should be, Pins shunt's directory in it.
	BPFFS, Pins string
	// HealthURL is the agent's health server.
	HealthURL string
}

// Gather reads the node.
func Gather(ctx context.Context, o Options) Facts {
	f := Facts{BPFFS: o.BPFFS, Pins: o.Pins, Features: probeFeatures(), BTFErr: probeBTF()}
	f.Capabilities, f.CapabilitiesErr = readCapabilities(o.Proc)
	f.Kernel = readVersion()
	f.CgroupRoot, f.CgroupErr = attach.CgroupRoot("")
	f.BPFFSMounted, f.BPFFSErr = isBPFFS(o.BPFFS)
	f.Holder, f.HolderErr = lockHolder(o.Proc, o.Pins)
	if f.Holder != 0 {
		f.Health = askHealth(ctx, o.HealthURL)
	}
	f.Usage, f.MapsErr = readUsage(o.Pins)
	f.Links, f.LinksErr = readLinks(o.BPFFS, f.CgroupRoot)
	f.Packets, f.PacketsErr = attach.ListPackets(o.BPFFS)
	f.KubeProxyPIDs = processesNamed(o.Proc, "kube-proxy")
	f.KubeProxy, f.KubeProxyErr = kubeproxy.Find(o.Proc)
	f.Foreign, f.ForeignErr = foreignPrograms(f.CgroupRoot, f.Links)
	return f
}

// readCapabilities reads this process's effective capabilities.
func readCapabilities(proc string) (Capabilities, error) {
	b, err := os.ReadFile(proc + "/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return Capabilities(n), err
		}
	}
	return 0, fmt.Errorf("%s/self/status has no line CapEff", proc)
}

func readVersion() Version {
	var u unix.Utsname
	// The pointer is good: no other failure is defined.
	_ = unix.Uname(&u)
	return parseVersion(unix.ByteSliceToString(u.Release[:]))
}

// parseVersion takes the first two numbers of a release such as 6.12.9-amd64.
func parseVersion(release string) Version {
	v := Version{Release: release}
	if n, _ := fmt.Sscanf(release, "%d.%d", &v.Major, &v.Minor); n < 1 {
		return Version{Release: release}
	}
	return v
}

func isBPFFS(path string) (bool, error) {
	var s unix.Statfs_t
	err := unix.Statfs(path, &s)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return uint64(s.Type) == unix.BPF_FS_MAGIC, nil
}

// lockHolder finds who holds the agent's lock on a directory. It only reads the kernel's list: a trial lock could make
// an agent that is just starting believe that another one runs.
func lockHolder(proc, dir string) (int, error) {
	var s unix.Stat_t
	err := unix.Stat(dir, &s)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at %s: %w", dir, err)
	}
	b, err := os.ReadFile(proc + "/locks")
	if err != nil {
		return 0, err
	}
	return findLock(string(b), unix.Major(s.Dev), unix.Minor(s.Dev), s.Ino), nil
}

// findLock finds the holder of a flock in the text of /proc/locks.
func findLock(locks string, major, minor uint32, inode uint64) int {
	device := fmt.Sprintf("%02x:%02x:%d", major, minor, inode)
	for line := range strings.Lines(locks) {
		// 1: FLOCK  ADVISORY  WRITE 1234 00:1b:5678 0 EOF
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != device {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil {
			return pid
		}
	}
	return 0
}

// healthTimeout bounds the wait for an agent that does not answer.
const healthTimeout = 2 * time.Second

func askHealth(ctx context.Context, url string) Health {
	h := Health{URL: url}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		h.Err = err
		return h
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		h.Err = errors.Unwrap(err) // without the method and the URL
		return h
	}
	answer.Body.Close()
	h.Status = answer.StatusCode
	return h
}

func readUsage(pins string) (map[string]maps.Usage, error) {
	k, err := maps.Open(pins, maps.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer k.Close()
	return k.Usage()
}

// processesNamed lists the processes with a command name. Those that end meanwhile do not count.
func processesNamed(proc, name string) []int {
	files, _ := filepath.Glob(proc + "/[0-9]*/comm") // the pattern is good
	var pids []int
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(b)) != name {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
