// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// variant is what translates Services in a world.
type variant struct {
	proxy    string
	services int
	command  func(w *world, settings settings, kubeconfig string) (*exec.Cmd, error) // nil: nothing
}

func (v variant) name() string {
	if v.services == 0 {
		return v.proxy
	}
	return fmt.Sprintf("%s, %s Services", v.proxy, thousands(v.services))
}

const (
	directName = "direct"
	againName  = "direct again"
	shuntName  = "shunt"
)

// variants has direct traffic first: the others are compared with it. It is there twice, which shows what difference the
// method finds between equals.
func variants(settings settings) []variant {
	all := []variant{{proxy: directName}, {proxy: againName}}
	for _, one := range []variant{
		{proxy: "kube-proxy nftables", command: kubeProxy("nftables")},
		{proxy: "kube-proxy iptables", command: kubeProxy("iptables")},
		{proxy: shuntName, command: shuntAgent},
	} {
		for _, services := range settings.services {
			if one.services = services; matches(settings.proxies, one.name()) {
				all = append(all, one)
			}
		}
	}
	return all
}

func kubeProxy(mode string) func(*world, settings, string) (*exec.Cmd, error) {
	return func(w *world, settings settings, kubeconfig string) (*exec.Cmd, error) {
		lines := []string{
			"apiVersion: kubeproxy.config.k8s.io/v1alpha1",
			"kind: KubeProxyConfiguration",
			"mode: " + mode,
			"hostnameOverride: " + testedNode,
			fmt.Sprintf("clientConnection: {kubeconfig: %s, contentType: application/json, qps: 100, burst: 200}", kubeconfig),
			fmt.Sprintf("clusterCIDR: %q", podRange4+","+podRange6),
			"detectLocalMode: ClusterCIDR",
			// The namespace may not set the machine's limits, nor this process its score.
			"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
			"oomScoreAdj: 0",
		}
		file := w.node.File("kube-proxy.yaml")
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			return nil, fmt.Errorf("write configuration of kube-proxy: %w", err)
		}
		return exec.Command(settings.reference.Path("kube-proxy"), "--config="+file), nil
	}
}

func shuntAgent(w *world, settings settings, kubeconfig string) (*exec.Cmd, error) {
	return exec.Command(settings.shunt, "agent", "--kubeconfig="+kubeconfig, "--node-name="+testedNode,
		"--cgroup-root="+w.node.CgroupRoot, "--bpffs="+w.node.BPFFS, "--oom-score-adj=0",
		"--cluster-cidr="+podRange4+","+podRange6, "--packet-path"), nil
}
