// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
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
	// uplinksName is shunt with the packet programs on the node's own devices alone.
	uplinksName = "shunt !veth*"
)

// variants has direct traffic first: the others are compared with it. It is there twice, which shows what difference the
// method finds between equals.
func variants(settings settings) []variant {
	all := []variant{{proxy: directName}, {proxy: againName}}
	for _, one := range []variant{
		{proxy: "kube-proxy nftables", command: kubeProxy("nftables")},
		{proxy: "kube-proxy iptables", command: kubeProxy("iptables")},
		{proxy: shuntName, command: shuntAgent()},
	} {
		for _, services := range settings.services {
			one.services = services
			all = append(all, one)
		}
	}
	// For nodes all of whose pods share its kernel: their devices need no programs, for their sockets have them.
	all = append(all, variant{proxy: uplinksName, services: settings.services[0], command: shuntAgent("--devices=!veth*")})
	return slices.DeleteFunc(all, func(v variant) bool { return v.command != nil && !matches(settings.proxies, v.name()) })
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

func shuntAgent(flags ...string) func(*world, settings, string) (*exec.Cmd, error) {
	return func(w *world, settings settings, kubeconfig string) (*exec.Cmd, error) {
		usual := []string{"agent", "--kubeconfig=" + kubeconfig, "--node-name=" + testedNode,
			"--cgroup-root=" + w.node.CgroupRoot, "--bpffs=" + w.node.BPFFS, "--oom-score-adj=0",
			"--cluster-cidr=" + podRange4 + "," + podRange6, "--packet-path"}
		return exec.Command(settings.shunt, append(usual, flags...)...), nil
	}
}
