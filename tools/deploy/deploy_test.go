// SPDX-License-Identifier: Apache-2.0

// Package deploy renders the chart and the overlays with helm and kustomize themselves, and proves that the results are
// what the API takes and that they agree. It is a module of its own: helm and kustomize are no dependencies of shunt.
package deploy

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const (
	deployDir = "../../deploy"
	chart     = deployDir + "/chart"
	base      = deployDir + "/base"
	// kubeVersion is what a chart that asks for a version is told; a helm built from its module has none of its own.
	kubeVersion = "1.37.0"
)

// run runs one of the tools of this module.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool"}, args...)...)
	cmd.Stderr = &stderr
	// helm looks for repositories, plugins and a cluster in these places: it is to find none.
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home,
		"KUBECONFIG="+filepath.Join(home, "none"))
	out, err := cmd.Output()
	if err != nil {
		err = errors.New(strings.TrimSpace(err.Error() + "\n" + string(out) + stderr.String()))
	}
	return string(out), err
}

func render(t *testing.T, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	out, err := run(t, args...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return objects(t, out)
}

func template(t *testing.T, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	return render(t, append([]string{"helm", "template", "shunt", chart, "--kube-version", kubeVersion, "--namespace", "kube-system"}, args...)...)
}

func kustomize(t *testing.T, dir string) map[string]*unstructured.Unstructured {
	t.Helper()
	return render(t, "kustomize", "build", dir)
}

// objects decodes a stream of manifests strictly, each into its API type where it has one.
func objects(t *testing.T, text string) map[string]*unstructured.Unstructured {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	found := map[string]*unstructured.Unstructured{}
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if object.Object == nil {
			continue
		}
		if object.GetAPIVersion() != "monitoring.coreos.com/v1" { // the Prometheus operator's
			if _, _, err := decoder.Decode(document, nil, nil); err != nil {
				t.Fatalf("%v in\n%s", err, document)
			}
		}
		key := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
		if found[key] != nil {
			t.Fatalf("%s is there twice", key)
		}
		found[key] = object
	}
}

func daemonSet(t *testing.T, all map[string]*unstructured.Unstructured) *appsv1.DaemonSet {
	t.Helper()
	var set appsv1.DaemonSet
	data, err := json.Marshal(all["DaemonSet kube-system/shunt"])
	if err == nil {
		err = json.Unmarshal(data, &set)
	}
	if err != nil || set.Name == "" {
		t.Fatalf("no DaemonSet: %v", err)
	}
	return &set
}

func keys(all map[string]*unstructured.Unstructured) []string {
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// configuration replaces the text of config.yaml by what it says: comments and order do not count.
func configuration(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	text, found, err := unstructured.NestedString(object.Object, "data", "config.yaml")
	if err != nil || !found {
		t.Fatalf("no config.yaml: %v", err)
	}
	var value map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	object.Object["data"] = value
}

func compare(t *testing.T, got, want map[string]*unstructured.Unstructured) {
	t.Helper()
	if !slices.Equal(keys(got), keys(want)) {
		t.Errorf("objects %q, want %q", keys(got), keys(want))
	}
	for name, object := range want {
		other := got[name]
		if other == nil {
			continue
		}
		if object.GetKind() == "ConfigMap" {
			configuration(t, object)
			configuration(t, other)
		}
		if !reflect.DeepEqual(object.Object, other.Object) {
			a, _ := yaml.Marshal(other.Object)
			b, _ := yaml.Marshal(object.Object)
			t.Errorf("%s is\n%s\nwant\n%s", name, a, b)
		}
	}
}

func TestTheChartPassesItsLinter(t *testing.T) {
	if out, err := run(t, "helm", "lint", "--strict", chart); err != nil {
		t.Errorf("helm lint: %v\n%s", err, out)
	}
}

func TestTheChartAndTheBaseAreTheSame(t *testing.T) {
	compare(t, template(t), kustomize(t, base))
}

func TestTheChartAndTheKubeadmOverlayAreTheSame(t *testing.T) {
	compare(t, template(t, "--set", "kubeProxyConfigMap=kube-proxy"), kustomize(t, deployDir+"/overlays/kubeadm"))
}

func TestTheChartAndTheMonitoringComponentAreTheSame(t *testing.T) {
	dir, err := os.MkdirTemp(deployDir, ".test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../base]\n" +
		"components: [../components/monitoring]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	compare(t, template(t, "--set", "monitoring.enabled=true"), kustomize(t, dir))
}

func TestEveryOverlayHasAllObjectsOfTheBase(t *testing.T) {
	want := keys(kustomize(t, base))
	dirs, err := filepath.Glob(deployDir + "/overlays/*")
	if err != nil || len(dirs) < 4 {
		t.Fatalf("overlays %q, %v", dirs, err)
	}
	for _, dir := range dirs {
		built := kustomize(t, dir)
		if filepath.Base(dir) == "kubeadm" { // it has kube-proxy's ConfigMap
			built["ConfigMap kube-system/shunt"] = nil
		}
		if got := keys(built); !slices.Equal(got, want) {
			t.Errorf("%s: objects %q, want %q", dir, got, want)
		}
	}
}

func TestEachValueOfTheChartHasItsEffect(t *testing.T) {
	pod := func(set *appsv1.DaemonSet) *corev1.PodSpec { return &set.Spec.Template.Spec }
	for _, row := range []struct {
		set  []string
		want func(*appsv1.DaemonSet) bool
	}{
		{[]string{"image.repository=example.org/shunt,image.tag=v9"},
			func(s *appsv1.DaemonSet) bool { return pod(s).Containers[0].Image == "example.org/shunt:v9" }},
		{[]string{"image.tag=v9,image.digest=sha256:" + strings.Repeat("a", 64)}, func(s *appsv1.DaemonSet) bool {
			return pod(s).Containers[0].Image == "shunt@sha256:"+strings.Repeat("a", 64)
		}},
		{[]string{"image.pullPolicy=Always,image.pullSecrets={one,two}"}, func(s *appsv1.DaemonSet) bool {
			return pod(s).Containers[0].ImagePullPolicy == corev1.PullAlways && len(pod(s).ImagePullSecrets) == 2 &&
				pod(s).ImagePullSecrets[1].Name == "two"
		}},
		{[]string{"extraArgs={-v=4}"}, func(s *appsv1.DaemonSet) bool {
			return slices.Contains(pod(s).Containers[0].Args, "-v=4")
		}},
		{[]string{"podLabels.k8s-app=null"}, func(s *appsv1.DaemonSet) bool { return len(s.Spec.Template.Labels) == 1 }},
		{[]string{"cgroupHostPath=/sys/fs/cgroup/unified"}, func(s *appsv1.DaemonSet) bool {
			return slices.ContainsFunc(pod(s).Volumes, func(v corev1.Volume) bool {
				return v.Name == "cgroup" && v.HostPath.Path == "/sys/fs/cgroup/unified"
			})
		}},
		{[]string{"resources.requests.cpu=1"},
			func(s *appsv1.DaemonSet) bool { return pod(s).Containers[0].Resources.Requests.Cpu().Value() == 1 }},
		{[]string{"nodeSelector.pool=a"},
			func(s *appsv1.DaemonSet) bool {
				return pod(s).NodeSelector["pool"] == "a" && len(pod(s).NodeSelector) == 2
			}},
		{[]string{"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null", "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone"},
			func(s *appsv1.DaemonSet) bool { return pod(s).Affinity.PodAffinity != nil }},
		{[]string{"tolerations[0].key=a,tolerations[0].operator=Exists"},
			func(s *appsv1.DaemonSet) bool { return pod(s).Tolerations[0].Key == "a" }},
		{[]string{"maxUnavailable=10%"},
			func(s *appsv1.DaemonSet) bool {
				return s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.StrVal == "10%"
			}},
		{[]string{"endPodSockets=false"}, func(s *appsv1.DaemonSet) bool {
			return slices.Equal(pod(s).Containers[0].SecurityContext.Capabilities.Add,
				[]corev1.Capability{"NET_ADMIN", "BPF", "PERFMON"})
		}},
		{[]string{"initPrivileged=true"}, func(s *appsv1.DaemonSet) bool {
			init := pod(s).InitContainers
			return len(init) == 1 && *init[0].SecurityContext.Privileged && slices.Contains(init[0].Args, "--init-only") &&
				!*pod(s).Containers[0].SecurityContext.Privileged
		}},
	} {
		var args []string
		for _, set := range row.set {
			args = append(args, "--set", set)
		}
		if set := daemonSet(t, template(t, args...)); !row.want(set) {
			text, _ := yaml.Marshal(set.Spec)
			t.Errorf("%q has no effect:\n%s", row.set, text)
		}
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for _, row := range []struct{ set, names string }{
		{"imagee.tag=v1", "imagee"},
		{"image.pullpolicy=Always", "pullpolicy"},
		{"image.pullPolicy=Sometimes", "pullPolicy"},
		{"image.digest=latest", "digest"},
		{"config.apiserver={10.0.0.1:6443}", "apiserver"},
		{"config.kind=KubeProxyConfiguration", "kind"},
		{"config.clusterCIDR={10.0.0.0}", "clusterCIDR"},
		{"config.nodePortAddresses={secondary}", "nodePortAddresses"},
		{"maxUnavailable=0", "maxUnavailable"},
		{"extraArgs={agent}", "extraArgs"},
	} {
		_, err := run(t, "helm", "template", "shunt", chart, "--kube-version", kubeVersion, "--set", row.set)
		if err == nil || !strings.Contains(err.Error(), row.names) {
			t.Errorf("--set %s: error %v, want one that names %s", row.set, err, row.names)
		}
	}
}
