// SPDX-License-Identifier: Apache-2.0

// Package demo is `shunt demo`: two nodes in network namespaces on this machine, with pods, servers and the real agent
// on one of them, a client outside the cluster, and the story of a Service told from what the kernel and the processes
// themselves say. It needs root and neither a cluster nor a compiler.
//
// It prints nothing that it did not just see, and each claim is checked: one that is not true ends the demo with an
// error. What it makes goes when it ends, however it ends (package lab).
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/shunt-lb/shunt/test/lab"
)

// Options say where the story goes and how this program runs itself.
type Options struct {
	Output io.Writer
	Color  bool
	// Helper is the command line, after the program's name, that runs lab.Helper.
	Helper []string
}

// ErrInterrupted is the end of a demo that was stopped from outside.
var ErrInterrupted = errors.New("the demo was interrupted; everything it made is removed")

// Run tells the whole story. The error is nil only if every claim was true and everything was removed.
func Run(ctx context.Context, options Options) error {
	if os.Geteuid() != 0 {
		return errors.New("make network namespaces and load BPF programs: permission denied: run shunt demo as root")
	}
	begin := time.Now()
	t := newTeller(options.Output, options.Color)
	t.opening()
	err := lab.Run(ctx, options.Helper, func(l *lab.Lab) error {
		s := &story{teller: t, lab: l}
		if err := s.tell(); err != nil {
			return errors.Join(err, s.agentLog())
		}
		return nil
	})
	switch {
	case errors.Is(err, context.Canceled):
		return ErrInterrupted
	case err != nil:
		return fmt.Errorf("run demo: %w", err)
	}
	t.closing(time.Since(begin))
	return nil
}

// story is the node and what has happened on it so far.
type story struct {
	*teller
	*world
	lab *lab.Lab
}

// tell runs the chapters in their order; each begins where the one before left the node.
func (s *story) tell() error {
	world, err := newWorld(s.lab)
	if err != nil {
		return err
	}
	s.world = world
	for _, chapter := range []struct {
		title string
		tell  func() error
	}{
		{"A node, its pods, and nothing but shunt", s.setTheScene},
		{"The address that nobody has", s.nobodyHasTheAddress},
		{"One connection, seen from every side", s.oneConnection},
		{"A thousand connections", s.manyConnections},
		{"An endpoint turns unready, then leaves", s.endpointLeaves},
		{"No endpoints, and a port that nobody declared", s.refused},
		{"Session affinity", s.affinity},
		{"UDP: the reply comes from the address that was asked", s.datagrams},
		{"A headless Service is left alone", s.headless},
		{"A client outside the cluster dials a node port", s.dialNodePort},
		{"The same, but the pod is on the other node", s.podElsewhere},
		{"An external IP, and a load balancer's", s.publicAddresses},
		{"Open flows, and what they carry", s.openFlows},
		{"The agent is killed", s.agentKilled},
		{"What shunt does not do: ping", s.ping},
	} {
		s.chapter(chapter.title)
		if err := chapter.tell(); err != nil {
			return err
		}
		if err := s.verdict(); err != nil {
			return err
		}
	}
	return nil
}
