// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"

	"github.com/shunt-lb/shunt/test/lab/process"
)

// A program that uses the lab also runs as the lab's own processes, so that no other binary is needed.
const (
	helperArgument = "shunt-lab-helper"
	roleJanitor    = "janitor"
	roleProcess    = "process"
)

// Main belongs at the top of TestMain: where the test binary was started as a process of the lab, it runs that and
// does not return. Operations extend what the processes can do, see [Process.Call].
func Main(operations ...process.Operations) {
	if len(os.Args) < 2 || os.Args[1] != helperArgument {
		return
	}
	if err := Helper(os.Args[2:], operations...); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Helper runs one of the lab's own processes until it ends: what follows the helper command line given to [Run].
func Helper(arguments []string, operations ...process.Operations) error {
	if len(arguments) == 0 {
		return errors.New("run lab helper: it is started by the lab, not by hand")
	}
	switch arguments[0] {
	case roleJanitor:
		return runJanitor(arguments[1:])
	case roleProcess:
		return process.Serve(os.Stdin, os.Stdout, operations...)
	}
	return fmt.Errorf("run lab helper: unknown role %q", arguments[0])
}
