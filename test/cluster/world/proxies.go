// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shunt-lb/shunt/test/cluster/controlplane"
)

// Users are whom the proxies are to the API server.
const (
	kubeProxyUser = "system:kube-proxy" // bound to system:node-proxier by the API server itself
	shuntUser     = "shunt-agent"
)

// KubeProxyConfiguration writes a KubeProxyConfiguration for the world's tested node, which kube-proxy and the agent
// both understand. More lines are appended.
func KubeProxyConfiguration(w *World, control *controlplane.ControlPlane, more ...string) (file string, err error) {
	kubeconfig, err := control.Kubeconfig("kube-proxy-"+w.Name, w.Relay.Address(), kubeProxyUser)
	if err != nil {
		return "", err
	}
	lines := append([]string{
		"apiVersion: kubeproxy.config.k8s.io/v1alpha1",
		"kind: KubeProxyConfiguration",
		"hostnameOverride: " + Tested,
		fmt.Sprintf("clientConnection: {kubeconfig: %s, qps: 100, burst: 200}", kubeconfig),
		// The namespace may not set the machine's limits, nor this process its score.
		"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
		"oomScoreAdj: 0",
	}, more...)
	file = w.Node.File("kube-proxy.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("write configuration of kube-proxy: %w", err)
	}
	return file, nil
}

// nftables is the mode that tests compare with, and no pauses between syncs, so that they need not wait. More of the
// block may follow.
var nftables = []string{"mode: nftables", "nftables:", "  minSyncPeriod: 10ms"}

// DetectPods is the usual configuration of which clients are pods.
var DetectPods = []string{
	"detectLocalMode: ClusterCIDR", fmt.Sprintf("clusterCIDR: %q", controlplane.PodRange4+","+controlplane.PodRange6),
}

// KubeProxy is a command that runs kube-proxy on the world's tested node, with more in its configuration.
func KubeProxy(w *World, c *Cluster, more ...string) (*exec.Cmd, error) {
	file, err := KubeProxyConfiguration(w, c.Control, slices.Concat(nftables, more)...)
	if err != nil {
		return nil, err
	}
	return withSbin(exec.Command(c.Reference.Path("kube-proxy"), "--config="+file, "--v=2")), nil
}

// withSbin lets the program find nft, which Debian has where only root's shells look.
func withSbin(command *exec.Cmd) *exec.Cmd {
	command.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	return command
}

// ShuntAsKubeProxy is a command that runs the agent with kube-proxy's configuration and kube-proxy's rights.
func ShuntAsKubeProxy(w *World, c *Cluster, binary string, more ...string) (*exec.Cmd, error) {
	file, err := KubeProxyConfiguration(w, c.Control, slices.Concat(nftables, more)...)
	if err != nil {
		return nil, err
	}
	return exec.Command(binary, append(shuntFlags(w), "--config="+file)...), nil
}

// Shunt is a command that runs the agent on the world's tested node by flags, with the rights that deploy/ gives it.
func Shunt(w *World, c *Cluster, binary string, more ...string) (*exec.Cmd, error) {
	kubeconfig, err := c.Control.Kubeconfig("shunt-"+w.Name, w.Relay.Address(), shuntUser)
	if err != nil {
		return nil, err
	}
	flags := append(shuntFlags(w), "--kubeconfig="+kubeconfig, "--node-name="+Tested, "--oom-score-adj=0",
		"--cluster-cidr="+controlplane.PodRange4+","+controlplane.PodRange6)
	return exec.Command(binary, append(flags, more...)...), nil
}

func shuntFlags(w *World) []string {
	return []string{"agent", "--cgroup-root=" + w.Node.CgroupRoot, "--bpffs=" + w.Node.BPFFS, "--verbosity=4"}
}

// Maps is where the agent of the world pins its maps.
func (w *World) Maps() string { return filepath.Join(w.Node.BPFFS, "shunt") }
