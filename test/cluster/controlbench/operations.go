// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/test/cluster/probe"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const (
	awaitOperation = "await"
	// A probe that asks without a pause would take the processor from what it measures.
	awaitPause = 300 * time.Microsecond
)

// awaitRequest asks addresses until each is answered by one server.
type awaitRequest struct {
	To       []netip.AddrPort `json:"to"`
	Server   string           `json:"server"`
	Patience time.Duration    `json:"patience"`
}

// awaitResult has the time of the last answer that was missing, on the clock that all processes share.
type awaitResult struct {
	Monotonic time.Duration `json:"monotonic"`
	Missing   int           `json:"missing"`
}

func operations() process.Operations {
	return process.Operations{awaitOperation: process.Typed(await)}
}

// monotonic is CLOCK_MONOTONIC.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // the clock exists
	}
	return time.Duration(now.Nano())
}

func await(in awaitRequest) (awaitResult, error) {
	deadline := monotonic() + in.Patience
	missing := in.To
	for {
		var still []netip.AddrPort
		for _, address := range missing {
			server, err := probe.Ask(address, 200*time.Millisecond)
			if err != nil || server != in.Server {
				still = append(still, address)
			}
		}
		now := monotonic()
		if missing = still; len(missing) == 0 || now > deadline {
			return awaitResult{Monotonic: now, Missing: len(missing)}, nil
		}
		time.Sleep(awaitPause)
	}
}

// awaitServer lets a process of the lab ask, in the background.
func awaitServer(p *lab.Process, request awaitRequest) <-chan awaited {
	answer := make(chan awaited, 1)
	go func() {
		var a awaited
		a.err = p.Call(awaitOperation, request, &a.awaitResult)
		if a.err == nil && a.Missing > 0 {
			a.err = fmt.Errorf("wait for %s: %d of %d addresses do not answer after %s", request.Server, a.Missing,
				len(request.To), request.Patience)
		}
		answer <- a
	}()
	return answer
}

type awaited struct {
	awaitResult
	err error
}
