// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
)

func TestCheckComparesTheConfigurationWithTheNode(t *testing.T) {
	four, six := netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/64")
	both := []model.Family{model.IPv4, model.IPv6}
	for _, row := range []struct {
		name, args string
		node       Node
		warnings   []string // in order, each by a part of it
		err        string
	}{
		{name: "nothing wrong", args: "--cluster-cidr=10.0.0.0/8",
			node: Node{Primary: model.IPv4, Families: both, PodCIDRs: []netip.Prefix{four}}},
		{name: "no kernel support of the primary family", args: "--cluster-cidr=fd00::/64",
			node: Node{Primary: model.IPv6, Families: both[:1]}, err: "this kernel has no IPv6"},
		{name: "node ports everywhere", args: "--cluster-cidr=10.0.0.0/8 --nodeport-addresses=all",
			node: Node{Primary: model.IPv4, Families: both}, warnings: []string{"nodePortAddresses is all"}},
		{name: "node ports of the other family only",
			args:     "--cluster-cidr=10.0.0.0/8 --nodeport-addresses=2001:db8::/32",
			node:     Node{Primary: model.IPv4, Families: both},
			warnings: []string{"nodePortAddresses has no IPv4 prefix, the node's primary family"}},
		{name: "dual-stack cluster, node ports of one family",
			args:     "--cluster-cidr=10.0.0.0/8,fd00::/64 --nodeport-addresses=192.0.2.0/24",
			node:     Node{Primary: model.IPv4, Families: both},
			warnings: []string{"nodePortAddresses has no IPv6 prefix: node ports are served on all IPv6"}},
		{name: "dual-stack node, node ports of one family",
			args:     "--cluster-cidr=10.0.0.0/8 --nodeport-addresses=192.0.2.0/24",
			node:     Node{Primary: model.IPv4, Families: both, PodCIDRs: []netip.Prefix{four, six}},
			warnings: []string{"nodePortAddresses has no IPv6 prefix: node ports are served on all IPv6"}},
		{name: "no cluster CIDR", node: Node{Primary: model.IPv4, Families: both},
			warnings: []string{"clusterCIDR is empty"}},
		{name: "cluster CIDR of the other family", args: "--cluster-cidr=fd00::/64",
			node: Node{Primary: model.IPv4, Families: both}, warnings: []string{"clusterCIDR has no IPv4 prefix"}},
		{name: "cluster CIDR of a family that the host lacks", args: "--cluster-cidr=fd00::/64",
			node: Node{Primary: model.IPv4, Families: both[:1]}, err: "clusterCIDR"},
		{name: "the same where cluster CIDRs do not count", args: "--cluster-cidr=fd00::/64 --detect-local-mode=NodeCIDR",
			node: Node{Primary: model.IPv4, Families: both[:1]}, warnings: []string{"clusterCIDR has no IPv4"}},
		{name: "pod CIDRs of the other family where they count", args: "--detect-local-mode=NodeCIDR",
			node: Node{Primary: model.IPv4, Families: both, PodCIDRs: []netip.Prefix{six}}, err: "spec.podCIDRs"},
		{name: "pod CIDRs of the other family", args: "--cluster-cidr=10.0.0.0/8",
			node:     Node{Primary: model.IPv4, Families: both, PodCIDRs: []netip.Prefix{six}},
			warnings: []string{"spec.podCIDRs has no IPv4"}},
		{name: "servers on addresses of a family that the host lacks",
			args: "--cluster-cidr=10.0.0.0/8 --metrics-bind-address=[::1]:10249 --healthz-bind-address=[::]:10256",
			node: Node{Primary: model.IPv4, Families: both[:1]}, warnings: []string{"metricsBindAddress [::1]:10249"}},
	} {
		cfg, _, err := load(t, "", strings.Fields(row.args)...)
		if err != nil {
			t.Fatal(err)
		}
		warnings, err := cfg.Check(row.node)
		if row.err != "" {
			if err == nil || !strings.Contains(err.Error(), row.err) {
				t.Errorf("%s: error %v, want %q", row.name, err, row.err)
			}
			continue
		}
		ok := err == nil && len(warnings) == len(row.warnings)
		for i := range warnings {
			ok = ok && strings.Contains(warnings[i], row.warnings[i])
		}
		if !ok {
			t.Errorf("%s: %v, warnings %q; want %q", row.name, err, warnings, row.warnings)
		}
	}
}
