// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inside is set in the process that runs the tests.
const inside = "SHUNT_TEST_MAPS_INSIDE"

// TestMain runs the tests in a mount namespace of their own: what they mount is gone with them, however they end.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=1")
	again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Unshareflags makes all mounts private as well.
	again.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := again.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "run tests in a mount namespace:", err)
		os.Exit(1)
	}
	os.Exit(again.ProcessState.ExitCode())
}
