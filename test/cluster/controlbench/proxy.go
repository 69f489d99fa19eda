// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

const shuntName = "shunt"

// proxy is something that can be measured.
type proxy struct {
	name string
	// most is the number of Services beyond which it takes minutes for each figure.
	most    int
	command func(*bench, *world.World) (*exec.Cmd, error)
}

var proxies = []proxy{
	{"nftables", mostServices, func(b *bench, w *world.World) (*exec.Cmd, error) { return kubeProxy(b, w, "nftables", "") }},
	{"iptables-legacy", mostServices, func(b *bench, w *world.World) (*exec.Cmd, error) {
		return kubeProxy(b, w, "iptables", "xtables-legacy-multi")
	}},
	{"iptables-nft", 1000, func(b *bench, w *world.World) (*exec.Cmd, error) {
		return kubeProxy(b, w, "iptables", "xtables-nft-multi")
	}},
	{shuntName, mostServices, func(b *bench, w *world.World) (*exec.Cmd, error) {
		return world.Shunt(w, b.cluster, b.shunt, "--verbosity=2")
	}},
}

func proxyNames() []string {
	var names []string
	for _, p := range proxies {
		names = append(names, p.name)
	}
	return names
}

// kubeProxy runs kube-proxy with its own defaults for how often it programs; tools is what stands for iptables.
func kubeProxy(b *bench, w *world.World, mode, tools string) (*exec.Cmd, error) {
	file, err := world.KubeProxyConfiguration(w, b.cluster.Control, append(world.DetectPods, "mode: "+mode)...)
	if err != nil {
		return nil, err
	}
	command := exec.Command(b.cluster.Reference.Path("kube-proxy"), "--config="+file)
	path := os.Getenv("PATH") + ":/usr/sbin:/sbin"
	if tools != "" {
		directory, err := toolsDirectory(w, tools)
		if err != nil {
			return nil, err
		}
		path = directory + ":" + path
	}
	command.Env = append(os.Environ(), "PATH="+path)
	return command, nil
}

// toolsDirectory has the names of iptables for one of its two implementations.
func toolsDirectory(w *world.World, tools string) (string, error) {
	binary, err := exec.LookPath(filepath.Join("/usr/sbin", tools))
	if err != nil {
		return "", fmt.Errorf("find %s: %w (install iptables, or leave these modes out by --proxies)", tools, err)
	}
	directory := w.Node.File(tools)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", fmt.Errorf("make directory for iptables: %w", err)
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			if err := os.Symlink(binary, filepath.Join(directory, name+suffix)); err != nil && !os.IsExist(err) {
				return "", fmt.Errorf("link iptables: %w", err)
			}
		}
	}
	return directory, nil
}
