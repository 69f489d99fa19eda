// SPDX-License-Identifier: Apache-2.0

// Package stream changes objects in the ways that clusters do, and then compares what the agent has programmed with
// what an agent programs that never saw the changes but only their result. Meanwhile connections to Services that
// have endpoints throughout must not fail.
package stream

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/cluster/probe"
	"github.com/shunt-lb/shunt/test/cluster/programmed"
	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab"
)

func TestMain(m *testing.M) {
	lab.Main(probe.Operations())
	os.Exit(m.Run())
}

// suite is a cluster, the world whose agent sees all changes, and one for agents that come late.
type suite struct {
	*world.Cluster
	subject, fresh *world.World
	shunt          string
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	cluster, err := world.NewCluster(lab.New(t))
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{Cluster: cluster, shunt: filepath.Join(t.TempDir(), "shunt")}
	if err := binaries.BuildShunt(s.shunt); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		name string
		into **world.World
	}{{"subject", &s.subject}, {"fresh", &s.fresh}} {
		if *one.into, err = world.New(lab.New(t), one.name, cluster.Control); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { s.printLog(t) })
	s.startAgent(t, s.subject)
	if _, err := s.Settle(t.Context(), s.subject); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *suite) startAgent(t *testing.T, w *world.World) {
	t.Helper()
	command, err := world.Shunt(w, s.Cluster, s.shunt)
	if err == nil {
		err = w.StartProxy(command)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (s *suite) printLog(t *testing.T) {
	if !t.Failed() {
		return
	}
	output, err := exec.Command("tail", "-n", "60", s.subject.LogFile()).CombinedOutput()
	t.Logf("the end of the agent's log (%v):\n%s", err, output)
}

// compare proves that the kernel is as a fresh agent would program it. The subject is given time for what it gives
// up late: elements that a program may still be reading.
func (s *suite) compare(t *testing.T) {
	t.Helper()
	begin := time.Now()
	want := s.programFresh(t)
	const patience = 30 * time.Second
	deadline := time.Now().Add(patience)
	for {
		have, err := programmed.Read(s.subject.Maps())
		if err != nil {
			t.Fatal(err)
		}
		difference := want.Difference(have)
		if difference == "" {
			t.Logf("%d lines compared after %s", len(want), time.Since(begin).Round(time.Millisecond))
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("programmed (+) is not what a fresh agent programs (-):\n%s", difference)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// programFresh starts an agent on a node that has nothing, and reads what it programs.
func (s *suite) programFresh(t *testing.T) programmed.State {
	t.Helper()
	s.fresh.StopProxy()
	if err := os.RemoveAll(s.fresh.Maps()); err != nil {
		t.Fatal(fmt.Errorf("remove what the last fresh agent has pinned: %w", err))
	}
	s.startAgent(t, s.fresh)
	if _, err := s.Settle(t.Context(), s.subject, s.fresh); err != nil {
		t.Fatal(err)
	}
	return withoutMarker(t, s.fresh)
}

// withoutMarker reads what is programmed when nothing of the markers is left in it.
func withoutMarker(t *testing.T, w *world.World) programmed.State {
	t.Helper()
	const patience = 30 * time.Second
	deadline := time.Now().Add(patience)
	for {
		state, err := programmed.Read(w.Maps())
		if err != nil {
			t.Fatal(err)
		}
		if !state.Mentions(world.MarkerNamespace + "/") {
			return state
		}
		if time.Now().After(deadline) {
			t.Fatalf("the agent of %s keeps a marker", w.Name)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
