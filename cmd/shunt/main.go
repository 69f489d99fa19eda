// SPDX-License-Identifier: Apache-2.0

// Command shunt translates Kubernetes Service addresses in the kernel of a node.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/shunt-lb/shunt/pkg/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
