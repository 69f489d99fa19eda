// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

// changeLayout makes the pinned maps those of another version.
func changeLayout(pins string) error {
	kernel, err := maps.Open(pins, maps.Options{})
	if err != nil {
		return err
	}
	defer kernel.Close()
	return kernel.PutMeta(maps.Meta{LayoutVersion: maps.LayoutVersion + 1, NextBackendID: 1})
}

func TestABrokenManifestIsReportedAndAllElseGoesOn(t *testing.T) {
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b")
	pod := w.Node.Pod(lab.PodOptions{}).Process()
	w.Write("one", agentlab.Simple("one", "10.96.3.1", agentlab.Ready(a)...)...)
	w.Write("two", agentlab.Simple("two", "10.96.3.2", agentlab.Ready(a)...)...)
	w.StartAgent()
	w.AwaitReached(pod, tcp, agentlab.At("10.96.3.2:80"), "a")
	for _, row := range []struct {
		name, manifest string
		reported       []string
	}{
		{"broken YAML", "spec: {ports: [", []string{"one.yaml"}},
		{"an unknown field", agentlab.Service("one", "{clusterIP: 10.96.3.1, ports: [{port: 80, portt: 1}]}"), []string{"portt"}},
		{"a wrong type", agentlab.Service("one", "{clusterIP: 10.96.3.1, ports: [{port: eighty}]}"), []string{"port"}},
		{"port 70000", agentlab.Service("one", "{clusterIP: 10.96.3.1, ports: [{port: 70000}]}"), []string{"70000"}},
		{"port 0", agentlab.Service("one", "{clusterIP: 10.96.3.1, ports: [{port: 0}]}"), []string{"spec.ports[0].port"}},
		{"an invalid address", agentlab.Service("one", "{clusterIP: 10.96.3.300, ports: [{port: 80}]}"), []string{"10.96.3.300"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := len(w.LogText())
			w.Write("one", row.manifest)
			w.Eventually("the fault is reported", func() (bool, string) {
				said := w.LogText()[before:]
				ok := strings.Contains(said, "one.yaml")
				for _, text := range row.reported {
					ok = ok && strings.Contains(said, text)
				}
				return ok, said
			})
			if got := agentlab.Reach(pod, tcp, agentlab.At("10.96.3.1:80")); got != "a" {
				t.Errorf("the Service whose file broke reaches %s, want its last good state", got)
			}
			if got := agentlab.Reach(pod, tcp, agentlab.At("10.96.3.2:80")); got != "a" {
				t.Errorf("another Service reaches %s", got)
			}
		})
	}
	w.Write("two", agentlab.Simple("two", "10.96.3.2", agentlab.Ready(b)...)...)
	w.AwaitReached(pod, tcp, agentlab.At("10.96.3.2:80"), "b")
	w.Write("one", agentlab.Simple("one", "10.96.3.1", agentlab.Ready(b)...)...)
	w.AwaitReached(pod, tcp, agentlab.At("10.96.3.1:80"), "b")
	w.Remove("one")
	w.AwaitReached(pod, tcp, agentlab.At("10.96.3.1:80"), "ENETUNREACH")
}

func TestADirectoryThatGoesAndReturnsLosesNothing(t *testing.T) {
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b")
	pod := w.Node.Pod(lab.PodOptions{}).Process()
	address := agentlab.At("10.96.3.3:80")
	w.Write("one", agentlab.Simple("one", "10.96.3.3", agentlab.Ready(a)...)...)
	w.StartAgent()
	w.AwaitReached(pod, tcp, address, "a")
	away := w.Manifests + ".away"
	before := len(w.LogText())
	w.Must(os.Rename(w.Manifests, away))
	w.Eventually("the loss of the directory is reported", func() (bool, string) {
		said := w.LogText()[before:]
		return strings.Contains(said, w.Manifests), said
	})
	if got := agentlab.Reach(pod, tcp, address); got != "a" {
		t.Errorf("without the directory the Service reaches %s", got)
	}
	w.Must(os.Rename(away, w.Manifests))
	w.Write("one", agentlab.Simple("one", "10.96.3.3", agentlab.Ready(b)...)...)
	w.AwaitReached(pod, tcp, address, "b")
}

func TestTwoServicesThatClaimOneAddressAreReportedAndTheOlderHasIt(t *testing.T) {
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Node, "b")
	pod := w.Node.Pod(lab.PodOptions{}).Process()
	for name, server := range map[string]*lab.Process{"first": a, "second": b} {
		manifests := agentlab.Simple(name, "10.96.3.4", agentlab.Ready(server)...)
		created := map[string]string{"first": "2024-01-01T00:00:00Z", "second": "2025-01-01T00:00:00Z"}[name]
		manifests[0] = strings.Replace(manifests[0], "metadata: {", "metadata: {creationTimestamp: '"+created+"', ", 1)
		w.Write(name, manifests...)
	}
	w.StartAgent()
	w.AwaitReached(pod, tcp, agentlab.At("10.96.3.4:80"), "a")
	w.Eventually("a warning names both", func() (bool, string) {
		said := w.LogText()
		return strings.Contains(said, "default/first") && strings.Contains(said, "default/second"), said
	})
	if result := pod.Connects(tcp, agentlab.At("10.96.3.4:80"), 20); result.Servers["a"] != 20 {
		t.Errorf("20 connects: %v %v, want all at the older Service's", result.Servers, result.Errnos)
	}
}

func TestTheAgentSaysWhyItCannotStart(t *testing.T) {
	w := agentlab.New(t)
	w.StartAgent()
	expect := func(t *testing.T, words []string, flags ...string) {
		t.Helper()
		before := len(w.LogText())
		second := w.Node.Start("second-agent", w.AgentCommand(flags...))
		if err := second.Wait(); err == nil {
			t.Error("the agent ended with status 0")
		}
		said := w.LogText()[before:]
		for _, word := range words {
			if !strings.Contains(said, word) {
				t.Errorf("the agent says %q: nothing of %q", said, word)
			}
		}
		if strings.Contains(said, "panic") || strings.Contains(said, "goroutine") {
			t.Errorf("the agent panics: %s", said)
		}
	}
	t.Run("another agent runs", func(t *testing.T) { expect(t, []string{"another"}) })
	t.Run("no bpffs", func(t *testing.T) {
		expect(t, []string{"/nowhere", "mount"}, "--bpffs=/nowhere")
	})
	t.Run("a cgroup that is none", func(t *testing.T) {
		w.Agent.Kill()
		expect(t, []string{w.Node.File("")}, "--cgroup-root="+w.Node.File(""))
	})
	t.Run("state of another layout", func(t *testing.T) {
		w.Agent.Kill()
		w.Must(changeLayout(filepath.Join(w.Node.BPFFS, "shunt")))
		expect(t, []string{"layout", "shunt cleanup"})
	})
}
