// SPDX-License-Identifier: Apache-2.0

// Package differential makes the same objects and the same connections with the real kube-proxy and with shunt, and
// compares what a client can see of it: which servers may answer, whether it is refused or left waiting, and as whom
// the servers see it.
//
// The cases are tables, one file for each chapter of what kube-proxy does; each names the section that it proves. A
// case says what kube-proxy does, so that two proxies that do nothing are not taken for equal. Where shunt is meant to
// do something else, the check names the entry of docs/differences.md.
package differential

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/cluster/probe"
	"github.com/shunt-lb/shunt/test/cluster/world"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

var referenceOnly = flag.Bool("reference-only", false, "ask kube-proxy alone: to write new cases")

func TestMain(m *testing.M) {
	lab.Main(probe.Operations())
	flag.Parse()
	// Cases wait for timeouts and for the API server more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// suite is the cluster and the two worlds that are compared.
type suite struct {
	*world.Cluster
	reference, subject *world.World
	shunt              string // the binary
}

func (s *suite) worlds() []*world.World {
	if *referenceOnly {
		return []*world.World{s.reference}
	}
	return []*world.World{s.reference, s.subject}
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	cluster, err := world.NewCluster(lab.New(t))
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{Cluster: cluster, shunt: filepath.Join(t.TempDir(), "shunt")}
	if err := binaries.BuildShunt(s.shunt); !*referenceOnly && err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		name string
		into **world.World
	}{{"kube-proxy", &s.reference}, {"shunt", &s.subject}} {
		if *one.into, err = world.New(lab.New(t), one.name, cluster.Control); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { s.printLogs(t) })
	return s
}

// start starts both proxies as a cluster has them by default.
func (s *suite) start(t *testing.T) {
	t.Helper()
	s.startProxy(t, s.reference, func() (*exec.Cmd, error) { return world.KubeProxy(s.reference, s.Cluster, world.DetectPods...) })
	s.startProxy(t, s.subject, func() (*exec.Cmd, error) { return world.Shunt(s.subject, s.Cluster, s.shunt) })
	s.awaitZone(t)
}

// startWith starts both with the same KubeProxyConfiguration.
func (s *suite) startWith(t *testing.T, configuration ...string) {
	t.Helper()
	s.startProxy(t, s.reference, func() (*exec.Cmd, error) { return world.KubeProxy(s.reference, s.Cluster, configuration...) })
	s.startProxy(t, s.subject, func() (*exec.Cmd, error) {
		return world.ShuntAsKubeProxy(s.subject, s.Cluster, s.shunt, configuration...)
	})
	if _, err := s.Settle(t.Context(), s.worlds()...); err != nil {
		t.Fatal(err)
	}
}

func (s *suite) startProxy(t *testing.T, w *world.World, make func() (*exec.Cmd, error)) {
	t.Helper()
	if w == s.subject && *referenceOnly {
		return
	}
	command, err := make()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.StartProxy(command); err != nil {
		t.Fatal(err)
	}
}

// awaitZone starts kube-proxy again until it knows the zone of its node: 1.37.2 may lose it when it starts, because
// the first event of the Node can come before the one who wants to hear it.
func (s *suite) awaitZone(t *testing.T) {
	t.Helper()
	e := s.newEnv(t)
	e.service("zone", handwritten)
	e.slice("zone", endpoint("local-1", zoneHints(here)), endpoint("remote-1", zoneHints(there)))
	const attempts = 5
	for range attempts {
		if _, err := s.Settle(t.Context(), s.worlds()...); err != nil {
			t.Fatal(err)
		}
		request := probe.Request{Network: process.TCP, To: clusterIP("zone", 4, 80)(e), Count: 40, Timeout: 4 * time.Second}
		if e.dial(s.reference, "client", request) == "local-1 as own" {
			return
		}
		s.startProxy(t, s.reference, func() (*exec.Cmd, error) { return world.KubeProxy(s.reference, s.Cluster, world.DetectPods...) })
	}
	t.Fatalf("kube-proxy has not learnt its zone in %d starts", attempts)
}

// printLogs shows what the proxies wrote, for a run that failed.
func (s *suite) printLogs(t *testing.T) {
	if !t.Failed() {
		return
	}
	for _, w := range s.worlds() {
		const most = 20000
		content, err := os.ReadFile(w.LogFile())
		if len(content) > most {
			content = content[len(content)-most:]
		}
		t.Logf("the end of the log of %s (%v):\n%s", w.Name, err, content)
	}
}
