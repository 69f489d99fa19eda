// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const runPrefix = "shunt-lab"

// runName names a run so that another run can tell whether its maker is alive: the process id alone is not enough,
// because ids are used again and mean nothing in another PID namespace.
type runName struct {
	pidNamespace uint64
	pid          int
	startTime    uint64
	token        string
}

func newRunName() (runName, error) {
	namespace, err := pidNamespace()
	if err != nil {
		return runName{}, err
	}
	start, err := processStart(os.Getpid())
	if err != nil {
		return runName{}, err
	}
	token := make([]byte, 4)
	if _, err := rand.Read(token); err != nil {
		return runName{}, fmt.Errorf("read random bytes: %w", err)
	}
	return runName{pidNamespace: namespace, pid: os.Getpid(), startTime: start, token: hex.EncodeToString(token)}, nil
}

func (i runName) String() string {
	return fmt.Sprintf("%s.%d.%d.%d.%s", runPrefix, i.pidNamespace, i.pid, i.startTime, i.token)
}

// parseRunName is the reverse of String; false for a name that no lab made.
func parseRunName(name string) (runName, bool) {
	fields := strings.Split(name, ".")
	if len(fields) != 5 || fields[0] != runPrefix {
		return runName{}, false
	}
	namespace, err1 := strconv.ParseUint(fields[1], 10, 64)
	pid, err2 := strconv.Atoi(fields[2])
	start, err3 := strconv.ParseUint(fields[3], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || pid <= 0 {
		return runName{}, false
	}
	return runName{pidNamespace: namespace, pid: pid, startTime: start, token: fields[4]}, true
}

// dead says that the maker is certainly gone. A run of another PID namespace is never called dead.
func (i runName) dead() bool {
	namespace, err := pidNamespace()
	if err != nil || namespace != i.pidNamespace {
		return false
	}
	start, err := processStart(i.pid)
	if os.IsNotExist(err) {
		return true
	}
	return err == nil && start != i.startTime
}

func pidNamespace() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &stat); err != nil {
		return 0, fmt.Errorf("read the PID namespace: %w", err)
	}
	return stat.Ino, nil
}

// processStart is field 22 of /proc/PID/stat. The command name before it is in parentheses and may hold anything.
func processStart(pid int) (uint64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(content[strings.LastIndexByte(string(content), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 20 {
		return 0, fmt.Errorf("read start of process %d: unexpected content of stat", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}
