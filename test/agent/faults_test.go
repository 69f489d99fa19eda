// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
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
	w := newWorld(t)
	a, b := serve(w.node, "a"), serve(w.node, "b")
	pod := w.node.Pod(lab.PodOptions{}).Process()
	w.write("one", simple("one", "10.96.3.1", ready(a)...)...)
	w.write("two", simple("two", "10.96.3.2", ready(a)...)...)
	w.startAgent()
	w.awaitReached(pod, tcp, at("10.96.3.2:80"), "a")
	for _, row := range []struct {
		name, manifest string
		reported       []string
	}{
		{"broken YAML", "spec: {ports: [", []string{"one.yaml"}},
		{"an unknown field", service("one", "{clusterIP: 10.96.3.1, ports: [{port: 80, portt: 1}]}"), []string{"portt"}},
		{"a wrong type", service("one", "{clusterIP: 10.96.3.1, ports: [{port: eighty}]}"), []string{"port"}},
		{"port 70000", service("one", "{clusterIP: 10.96.3.1, ports: [{port: 70000}]}"), []string{"70000"}},
		{"port 0", service("one", "{clusterIP: 10.96.3.1, ports: [{port: 0}]}"), []string{"spec.ports[0].port"}},
		{"an invalid address", service("one", "{clusterIP: 10.96.3.300, ports: [{port: 80}]}"), []string{"10.96.3.300"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			before := len(w.logText())
			w.write("one", row.manifest)
			w.eventually("the fault is reported", func() (bool, string) {
				said := w.logText()[before:]
				ok := strings.Contains(said, "one.yaml")
				for _, text := range row.reported {
					ok = ok && strings.Contains(said, text)
				}
				return ok, said
			})
			if got := reach(pod, tcp, at("10.96.3.1:80")); got != "a" {
				t.Errorf("the Service whose file broke reaches %s, want its last good state", got)
			}
			if got := reach(pod, tcp, at("10.96.3.2:80")); got != "a" {
				t.Errorf("another Service reaches %s", got)
			}
		})
	}
	w.write("two", simple("two", "10.96.3.2", ready(b)...)...)
	w.awaitReached(pod, tcp, at("10.96.3.2:80"), "b")
	w.write("one", simple("one", "10.96.3.1", ready(b)...)...)
	w.awaitReached(pod, tcp, at("10.96.3.1:80"), "b")
	w.remove("one")
	w.awaitErrno(pod, tcp, at("10.96.3.1:80"), "ENETUNREACH")
}

func TestADirectoryThatGoesAndReturnsLosesNothing(t *testing.T) {
	w := newWorld(t)
	a, b := serve(w.node, "a"), serve(w.node, "b")
	pod := w.node.Pod(lab.PodOptions{}).Process()
	address := at("10.96.3.3:80")
	w.write("one", simple("one", "10.96.3.3", ready(a)...)...)
	w.startAgent()
	w.awaitReached(pod, tcp, address, "a")
	away := w.manifests + ".away"
	before := len(w.logText())
	w.must(os.Rename(w.manifests, away))
	w.eventually("the loss of the directory is reported", func() (bool, string) {
		said := w.logText()[before:]
		return strings.Contains(said, w.manifests), said
	})
	if got := reach(pod, tcp, address); got != "a" {
		t.Errorf("without the directory the Service reaches %s", got)
	}
	w.must(os.Rename(away, w.manifests))
	w.write("one", simple("one", "10.96.3.3", ready(b)...)...)
	w.awaitReached(pod, tcp, address, "b")
}

func TestTwoServicesThatClaimOneAddressAreReportedAndTheOlderHasIt(t *testing.T) {
	w := newWorld(t)
	a, b := serve(w.node, "a"), serve(w.node, "b")
	pod := w.node.Pod(lab.PodOptions{}).Process()
	for name, server := range map[string]*lab.Process{"first": a, "second": b} {
		manifests := simple(name, "10.96.3.4", ready(server)...)
		created := map[string]string{"first": "2024-01-01T00:00:00Z", "second": "2025-01-01T00:00:00Z"}[name]
		manifests[0] = strings.Replace(manifests[0], "metadata: {", "metadata: {creationTimestamp: '"+created+"', ", 1)
		w.write(name, manifests...)
	}
	w.startAgent()
	w.awaitReached(pod, tcp, at("10.96.3.4:80"), "a")
	w.eventually("a warning names both", func() (bool, string) {
		said := w.logText()
		return strings.Contains(said, "default/first") && strings.Contains(said, "default/second"), said
	})
	if result := pod.Connects(tcp, at("10.96.3.4:80"), 20); result.Servers["a"] != 20 {
		t.Errorf("20 connects: %v %v, want all at the older Service's", result.Servers, result.Errnos)
	}
}

func TestTheAgentSaysWhyItCannotStart(t *testing.T) {
	w := newWorld(t)
	w.startAgent()
	expect := func(t *testing.T, words []string, flags ...string) {
		t.Helper()
		before := len(w.logText())
		second := w.node.Start("second-agent", w.agentCommand(flags...))
		if err := second.Wait(); err == nil {
			t.Error("the agent ended with status 0")
		}
		said := w.logText()[before:]
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
		w.agent.Kill()
		expect(t, []string{w.node.File("")}, "--cgroup-root="+w.node.File(""))
	})
	t.Run("state of another layout", func(t *testing.T) {
		w.agent.Kill()
		w.must(changeLayout(filepath.Join(w.node.BPFFS, "shunt")))
		expect(t, []string{"layout", "shunt cleanup"})
	})
}
