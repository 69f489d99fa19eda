// SPDX-License-Identifier: Apache-2.0

// Command init is the first and only program of the machine that test/kernels boots: it mounts what a node has, loads
// the modules, runs each test binary, prints the verdict and switches the machine off.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// verdict is what the runner looks for.
const verdict = "shunt-kernels: all passed"

func main() {
	if err := run(); err != nil {
		fmt.Println("shunt-kernels: failed:", err)
	} else {
		fmt.Println(verdict)
	}
	unix.Sync()
	// The kernel panics when its first program ends, so this is the only way out.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	if err := prepare(); err != nil {
		return err
	}
	tests, err := filepath.Glob("/tests/*")
	if err != nil {
		return err
	}
	failed := 0
	for _, test := range tests {
		fmt.Printf("--- %s\n", test)
		arguments := []string{"-test.v=false", "-test.timeout=35m"}
		if pattern := parameter("shunt.run="); pattern != "" {
			arguments = append(arguments, "-test.run="+pattern)
		}
		cmd := exec.Command(test, arguments...)
		cmd.Dir = "/tmp"
		cmd.Env = []string{"PATH=/", "HOME=/tmp", "TMPDIR=/tmp"}
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
		if err := cmd.Run(); err != nil {
			fmt.Printf("%s: %v\n", test, err)
			failed++
		}
	}
	if failed > 0 || len(tests) == 0 {
		return fmt.Errorf("%d of %d test binaries", failed, len(tests))
	}
	return nil
}

// prepare mounts the file systems and loads the modules.
func prepare() error {
	for _, m := range []struct{ kind, path string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
		{"cgroup2", "/sys/fs/cgroup"}, {"bpf", "/sys/fs/bpf"},
	} {
		if err := unix.Mount(m.kind, m.path, m.kind, 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.path, err)
		}
	}
	modules, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, path := range modules {
		module, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := unix.InitModule(module, ""); err != nil && err != unix.EEXIST {
			return fmt.Errorf("load module %s: %w", path, err)
		}
	}
	return nil
}

// parameter returns the value of a parameter on the kernel's command line.
func parameter(prefix string) string {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	for word := range strings.FieldsSeq(string(line)) {
		if value, ok := strings.CutPrefix(word, prefix); ok {
			return value
		}
	}
	return ""
}
