// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/cluster/controlplane"
)

// Users are whom the proxies are to the API server.
const (
	kubeProxyUser = "system:kube-proxy" // bound to system:node-proxier by the API server itself
	shuntUser     = "shunt-agent"
)

// KubeProxy is a command that runs kube-proxy on the world's tested node. More is appended to its configuration.
func KubeProxy(w *World, control *controlplane.ControlPlane, reference binaries.Reference, more ...string) (*exec.Cmd, error) {
	kubeconfig, err := control.Kubeconfig("kube-proxy-"+w.Name, w.Relay.Address(), kubeProxyUser)
	if err != nil {
		return nil, err
	}
	lines := append([]string{
		"apiVersion: kubeproxy.config.k8s.io/v1alpha1",
		"kind: KubeProxyConfiguration",
		"mode: nftables",
		"hostnameOverride: " + Tested,
		fmt.Sprintf("clientConnection: {kubeconfig: %s, qps: 100, burst: 200}", kubeconfig),
		"detectLocalMode: ClusterCIDR",
		fmt.Sprintf("clusterCIDR: %q", controlplane.PodRange4+","+controlplane.PodRange6),
		"nftables: {minSyncPeriod: 10ms, syncPeriod: 30s}",
		// The namespace may not set the machine's limits, nor this process its score.
		"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
		"oomScoreAdj: 0",
	}, more...)
	file := w.Node.File("kube-proxy.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return nil, fmt.Errorf("write configuration of kube-proxy: %w", err)
	}
	return exec.Command(reference.Path("kube-proxy"), "--config="+file, "--v=2"), nil
}

// Shunt is a command that runs the agent on the world's tested node. More is appended to its flags.
func Shunt(w *World, control *controlplane.ControlPlane, binary string, more ...string) (*exec.Cmd, error) {
	kubeconfig, err := control.Kubeconfig("shunt-"+w.Name, w.Relay.Address(), shuntUser)
	if err != nil {
		return nil, err
	}
	return exec.Command(binary, append([]string{"agent",
		"--kubeconfig=" + kubeconfig, "--node-name=" + Tested,
		"--cgroup-root=" + w.Node.CgroupRoot, "--bpffs=" + w.Node.BPFFS,
		"--cluster-cidr=" + controlplane.PodRange4 + "," + controlplane.PodRange6,
		"--oom-score-adj=0", "--verbosity=4",
	}, more...)...), nil
}

// Maps is where the agent of the world pins its maps.
func (w *World) Maps() string { return filepath.Join(w.Node.BPFFS, "shunt") }
