// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443/base"}}]
users: [{name: u, user: {token: secret}}]
`

// file writes a file of the test's own.
func file(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhichServersAreTriedInWhichOrder(t *testing.T) {
	dir, account := t.TempDir(), t.TempDir()
	config := file(t, dir, "kubeconfig", kubeconfig)
	serverless := file(t, dir, "serverless", strings.Replace(kubeconfig, `server: "https://192.0.2.1:6443/base"`, "", 1))
	file(t, account, "token", "secret")
	nowhere := filepath.Join(dir, "nowhere")
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	for _, row := range []struct {
		what   string
		config Config
		want   []string
	}{
		{"the kubeconfig's", Config{Kubeconfig: config}, []string{"https://192.0.2.1:6443/base"}},
		{"given ones before the kubeconfig's",
			Config{Kubeconfig: config, APIServers: []string{"192.0.2.2:6443", "https://cp.example.org:6443/"}},
			[]string{"https://192.0.2.2:6443", "https://cp.example.org:6443", "https://192.0.2.1:6443/base"}},
		{"each once", Config{Kubeconfig: config, APIServers: []string{"https://192.0.2.1:6443/base/", "192.0.2.2", "192.0.2.2"}},
			[]string{"https://192.0.2.1:6443/base", "https://192.0.2.2"}},
		{"a kubeconfig without a server will do when servers are given",
			Config{Kubeconfig: serverless, APIServers: []string{"192.0.2.2:6443"}}, []string{"https://192.0.2.2:6443"}},
		{"the pod's environment", Config{serviceAccount: account}, []string{"https://[fd00::1]:443"}},
		{"given ones before the pod's, whose address may need shunt to work",
			Config{serviceAccount: account, APIServers: []string{"192.0.2.2:6443"}},
			[]string{"https://192.0.2.2:6443", "https://[fd00::1]:443"}},
		{"without credentials, over plain HTTP", Config{serviceAccount: nowhere, APIServers: []string{"http://127.0.0.1:8080"}},
			[]string{"http://127.0.0.1:8080"}},
	} {
		client, err := NewClient(row.config)
		if err != nil {
			t.Errorf("%s: %v", row.what, err)
			continue
		}
		if got := client.Servers(); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", row.what, got, row.want)
		}
	}
}

func TestWhatCannotBeUsedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nowhere := filepath.Join(dir, "nowhere")
	for _, row := range []struct {
		what   string
		config Config
		want   []string
	}{
		{"a kubeconfig that is not there", Config{Kubeconfig: nowhere}, []string{"read kubeconfig " + nowhere, "no such file"}},
		{"a kubeconfig that is a directory", Config{Kubeconfig: dir}, []string{"read kubeconfig " + dir, "is a directory"}},
		{"a kubeconfig that is no YAML", Config{Kubeconfig: file(t, dir, "broken", "a: [")}, []string{"read kubeconfig"}},
		{"an empty kubeconfig", Config{Kubeconfig: file(t, dir, "empty", "")}, []string{"use kubeconfig"}},
		{"a certificate that is not there",
			Config{Kubeconfig: file(t, dir, "nocert", strings.Replace(kubeconfig, "server:", "certificate-authority: ca.crt, server:", 1))},
			[]string{"kubeconfig", "ca.crt"}},
		{"no credentials at all", Config{serviceAccount: nowhere}, []string{"--kubeconfig", "--manifests"}},
		{"servers but no credentials", Config{serviceAccount: nowhere, APIServers: []string{"192.0.2.1:6443"}}, []string{"--kubeconfig"}},
		{"a server that is none", Config{Kubeconfig: file(t, dir, "good", kubeconfig), APIServers: []string{"ftp://192.0.2.1"}},
			[]string{`API server "ftp://192.0.2.1"`, "https://HOST:PORT"}},
		{"an empty host", Config{Kubeconfig: file(t, dir, "good2", kubeconfig), APIServers: []string{"https://"}}, []string{"https://HOST:PORT"}},
	} {
		_, err := NewClient(row.config)
		if err == nil {
			t.Errorf("%s: no error", row.what)
			continue
		}
		for _, part := range row.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: error %q, want %q in it", row.what, err, part)
			}
		}
	}
}
