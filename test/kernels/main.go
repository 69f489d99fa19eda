// SPDX-License-Identifier: Apache-2.0

// Command kernels runs test packages on Debian's cloud kernels under qemu: `make test-kernels`. It downloads the kernels'
// packages with apt-get, compiles the tests, packs both with an init of its own into a memory file system, and boots
// that. It needs qemu-system-x86, xz-utils and Debian's package archive.
//
// qemu emulates the processor, so everything takes about ten times as long: this suite is apart from `make test`, and
// proves what no test on the developer's kernel can, that the programs load and work on the oldest kernels supported.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// kernels are the metapackages of the kernels to test on; apt knows the newest package of each.
var kernels = []string{"linux-image-cloud-amd64", "linux-image-6.12-cloud-amd64"}

// packages are the tests that say something about the kernel.
var packages = []string{"./test/maps", "./test/sock", "./test/prog"}

// bootTimeout is for the slowest of it all, on an emulated processor.
const bootTimeout = 40 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only := flag.String("kernel", "", "run on the kernels whose metapackage contains this")
	run := flag.String("run", "", "run the tests that match, as go test -run")
	list := flag.String("packages", strings.Join(packages, ","), "the packages to test, comma between")
	flag.Parse()
	if err := all(ctx, *only, *run, strings.Split(*list, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		stop()
		os.Exit(1)
	}
}

// all runs the packages on each kernel, and says at the end which failed.
func all(ctx context.Context, only, run string, packages []string) error {
	work, err := os.MkdirTemp("", "shunt-kernels-")
	if err != nil {
		return fmt.Errorf("make work directory: %w", err)
	}
	defer os.RemoveAll(work)
	tests, err := build(ctx, work, packages)
	if err != nil {
		return err
	}
	passed := 0
	var failed []string
	for _, name := range kernels {
		if !strings.Contains(name, only) {
			continue
		}
		k, err := fetch(ctx, work, name)
		if err != nil {
			return err
		}
		ok, err := boot(ctx, work, k, tests, run)
		if err != nil {
			return fmt.Errorf("%s: %w", k.version, err)
		}
		if !ok {
			failed = append(failed, k.version)
			continue
		}
		passed++
	}
	fmt.Printf("%d passed, %d failed\n", passed, len(failed))
	if len(failed) > 0 {
		return fmt.Errorf("tests failed on %s", strings.Join(failed, ", "))
	}
	if passed == 0 {
		return errors.New("no kernel was chosen")
	}
	return nil
}

// build compiles the init and the test binaries; it returns their paths by the name they get in the machine.
func build(ctx context.Context, work string, packages []string) (map[string]string, error) {
	files := map[string]string{"init": filepath.Join(work, "init")}
	commands := [][]string{{"go", "build", "-o", files["init"], "./test/kernels/init"}}
	for _, p := range packages {
		name := "tests/" + filepath.Base(p)
		files[name] = filepath.Join(work, filepath.Base(p)+".test")
		commands = append(commands, []string{"go", "test", "-c", "-o", files[name], p})
	}
	for _, command := range commands {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return files, nil
}

// boot runs the tests on one kernel and reports whether all passed.
func boot(ctx context.Context, work string, k kernel, tests map[string]string, run string) (bool, error) {
	initrd := filepath.Join(work, k.version+".cpio")
	if err := writeImage(initrd, tests, k.modules); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	fmt.Printf("=== %s\n", k.version)
	line := "console=ttyS0 quiet panic=-1 cgroup_no_v1=all lockdown=none"
	if run != "" {
		line += " shunt.run=" + run
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3072",
		"-kernel", k.image, "-initrd", initrd, "-append", line, "-nographic", "-no-reboot", "-nic", "none", "-monitor", "none")
	result := &console{out: os.Stdout}
	cmd.Stdout, cmd.Stderr = result, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return false, fmt.Errorf("run qemu: %w", err)
	}
	return result.passed, nil
}

// verdict is what the init prints at last, when every test binary has passed. It is printed by nothing else.
const verdict = "shunt-kernels: all passed"

// console passes the machine's output on and looks for the verdict in it.
type console struct {
	out    *os.File
	line   strings.Builder
	passed bool
}

func (c *console) Write(p []byte) (int, error) {
	for _, b := range p {
		if b == '\r' {
			continue
		}
		c.line.WriteByte(b)
		if b == '\n' {
			c.passed = c.passed || strings.TrimSpace(c.line.String()) == verdict
			c.line.Reset()
		}
	}
	return c.out.Write(p)
}
