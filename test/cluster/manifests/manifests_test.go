// SPDX-License-Identifier: Apache-2.0

// Package manifests gives what deploy/ has to the real API server, which checks it as it would when it is installed.
package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/cluster/controlplane"
	"github.com/shunt-lb/shunt/test/lab"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

func TestTheAPIServerTakesTheManifests(t *testing.T) {
	node := lab.New(t).Node(lab.NodeOptions{Name: "control-plane"})
	reference, err := binaries.BuildReference()
	if err != nil {
		t.Fatal(err)
	}
	control, err := controlplane.Start(node, reference)
	if err != nil {
		t.Fatal(err)
	}
	for _, directory := range kustomizations(t) {
		t.Run(filepath.Base(directory), func(t *testing.T) {
			apply(t, control, "", "-k", directory)
		})
	}
	t.Run("chart", func(t *testing.T) {
		if testing.Short() {
			t.Skip("building helm takes minutes")
		}
		apply(t, control, renderChart(t), "-n", "kube-system", "-f", "-")
	})
}

// apply asks the server to do everything but to keep the objects, and to refuse fields that it does not know.
func apply(t *testing.T, control *controlplane.ControlPlane, input string, arguments ...string) {
	t.Helper()
	output, err := control.Kubectl(input, append([]string{"apply", "--dry-run=server", "--validate=strict"}, arguments...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(output)
	if strings.Contains(output, "Warning:") {
		t.Error("the API server warns")
	}
	for _, wanted := range []string{"daemonset.apps/shunt", "clusterrole.rbac.authorization.k8s.io/", "serviceaccount/shunt"} {
		if !strings.Contains(output, wanted) {
			t.Errorf("%s is not among the objects", wanted)
		}
	}
}

// kustomizations are the base and the overlays.
func kustomizations(t *testing.T) []string {
	t.Helper()
	base, err := binaries.Deploy("base")
	if err != nil {
		t.Fatal(err)
	}
	overlays, err := filepath.Glob(filepath.Join(filepath.Dir(base), "overlays", "*"))
	if err != nil || len(overlays) == 0 {
		t.Fatalf("find overlays: %v, %v", overlays, err)
	}
	return append(overlays, base)
}

func renderChart(t *testing.T) string {
	t.Helper()
	chart, err := binaries.Deploy("chart")
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("go", "tool", "helm", "template", "shunt", chart, "--namespace", "kube-system",
		"--kube-version", binaries.Version)
	command.Dir = filepath.Join(filepath.Dir(filepath.Dir(chart)), "tools", "deploy")
	home := t.TempDir()
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("render the chart: %v", err)
	}
	return string(output)
}
