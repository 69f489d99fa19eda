// SPDX-License-Identifier: Apache-2.0

// Package deploy_test proves the manifests without a cluster: they are what the API takes, what they tell the agent is
// what the agent takes, and they ask for no more privileges than they say why. tools/deploy renders the overlays and
// the chart and compares them.
package deploy_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/shunt-lb/shunt/pkg/config"
)

// decode returns the objects of a file, and fails the test for an unknown field, a doubled one, or one of the wrong type.
func decode(t *testing.T, file string) []runtime.Object {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
	defer documents.Close()
	var objects []runtime.Object
	buffer := make([]byte, len(data)+1)
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		object, _, err := decoder.Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects = append(objects, object)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("glob %s = %v, %v", pattern, files, err)
	}
	return files
}

// base returns the objects of the base of type T.
func base[T runtime.Object](t *testing.T) []T {
	t.Helper()
	var found []T
	for _, file := range glob(t, "base/*.yaml") {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		for _, object := range decode(t, file) {
			if x, ok := object.(T); ok {
				found = append(found, x)
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("the base has no %T", *new(T))
	}
	return found
}

// load parses a command line of the agent beside a configuration file.
func load(t *testing.T, args []string, file string) (*config.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	configured := config.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	configured.ConfigFile = path
	cfg, _, err := configured.Load()
	return cfg, err
}

func TestTheAgentTakesItsArgumentsAndTheConfigurationOfEachOverlay(t *testing.T) {
	container := base[*appsv1.DaemonSet](t)[0].Spec.Template.Spec.Containers[0]
	if container.Args[0] != "agent" {
		t.Fatalf("arguments %q", container.Args)
	}
	for _, file := range append(glob(t, "overlays/*/configmap.yaml"), "base/configmap.yaml") {
		text := decode(t, file)[0].(*corev1.ConfigMap).Data["config.yaml"]
		cfg, err := load(t, container.Args[1:], text)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if cfg.CgroupRoot != "/host/cgroup" {
			t.Errorf("%s: cgroup root %q", file, cfg.CgroupRoot)
		}
		if complete := len(cfg.APIServers) > 0 && len(cfg.ClusterCIDRs) > 0; !complete && !strings.HasPrefix(file, "base/") {
			t.Errorf("%s: API servers %q, pod ranges %q: an overlay is complete", file, cfg.APIServers, cfg.ClusterCIDRs)
		}
	}
}

func TestTheAgentHasNoMorePrivilegesThanTwoCapabilities(t *testing.T) {
	pod := base[*appsv1.DaemonSet](t)[0].Spec.Template.Spec
	if pod.HostPID || pod.HostIPC || len(pod.InitContainers) > 0 || len(pod.Containers) != 1 {
		t.Errorf("pod %+v", pod)
	}
	security := pod.Containers[0].SecurityContext
	if *security.Privileged || *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem {
		t.Errorf("security context %+v", security)
	}
	capabilities := security.Capabilities
	if !slices.Equal(capabilities.Drop, []corev1.Capability{"ALL"}) ||
		!slices.Equal(capabilities.Add, []corev1.Capability{"NET_ADMIN", "SYS_ADMIN"}) {
		t.Errorf("capabilities %v", capabilities)
	}
	data, err := os.ReadFile("base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "                - ") && !strings.HasPrefix(strings.TrimSpace(lines[i-1]), "#") {
			t.Errorf("daemonset.yaml does not say why there is capability %s", strings.TrimSpace(line))
		}
	}
	for _, mount := range pod.Containers[0].VolumeMounts {
		if !mount.ReadOnly && mount.Name != "bpffs" {
			t.Errorf("volume %s can be written", mount.Name)
		}
	}
}

func TestTheProbesAskWhatTheAgentServes(t *testing.T) {
	container := base[*appsv1.DaemonSet](t)[0].Spec.Template.Spec.Containers[0]
	for path, probe := range map[string]*corev1.Probe{"/livez": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
		if probe.HTTPGet.Path != path || probe.HTTPGet.Port.IntValue() != config.HealthzPort {
			t.Errorf("probe %+v, want %s at %d", probe.HTTPGet, path, config.HealthzPort)
		}
	}
}

// The role is that of kube-proxy (system:node-proxier) without what shunt does not need.
func TestTheRoleAllowsWhatTheAgentDoesAndNothingElse(t *testing.T) {
	role := base[*rbacv1.ClusterRole](t)[0]
	got := map[string]string{}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				got[group+"/"+resource] = strings.Join(rule.Verbs, " ")
			}
		}
		if len(rule.NonResourceURLs) > 0 {
			t.Errorf("rule %+v", rule)
		}
	}
	want := map[string]string{"/services": "list watch", "discovery.k8s.io/endpointslices": "list watch",
		"/nodes": "get list watch", "networking.k8s.io/servicecidrs": "list watch", "events.k8s.io/events": "create"}
	if len(got) != len(want) {
		t.Errorf("role allows %v, want %v", got, want)
	}
	for resource, verbs := range want {
		if got[resource] != verbs {
			t.Errorf("role allows %q on %s, want %q", got[resource], resource, verbs)
		}
	}
	binding := base[*rbacv1.ClusterRoleBinding](t)[0]
	account := base[*corev1.ServiceAccount](t)[0]
	if binding.RoleRef.Name != role.Name || binding.Subjects[0].Name != account.Name ||
		binding.Subjects[0].Namespace != account.Namespace ||
		base[*appsv1.DaemonSet](t)[0].Spec.Template.Spec.ServiceAccountName != account.Name {
		t.Errorf("binding %+v, account %s/%s", binding, account.Namespace, account.Name)
	}
}

func TestTheImageIsBuiltFromEveryDirectoryThatTheBinaryNeeds(t *testing.T) {
	dockerfile, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := os.ReadFile("../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	var copied []string
	for line := range strings.Lines(string(dockerfile)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "COPY" && !strings.HasPrefix(fields[1], "--") {
			copied = append(copied, fields[1])
			if !strings.Contains(string(ignored), "\n!"+fields[1]+"\n") {
				t.Errorf(".dockerignore keeps %s from the builder", fields[1])
			}
		}
	}
	const module = "github.com/shunt-lb/shunt/"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"cmd/shunt").Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.Lines(string(out)) {
		dir, ours := strings.CutPrefix(strings.TrimSpace(path), module)
		if ours && !slices.ContainsFunc(copied, func(c string) bool { return dir == c || strings.HasPrefix(dir, c+"/") }) {
			t.Errorf("the Dockerfile does not copy %s", dir)
		}
	}
}
