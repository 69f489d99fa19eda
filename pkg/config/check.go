// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	netutils "k8s.io/utils/net"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Node is what Check compares a configuration with.
type Node struct {
	// Primary is the family of the node's first address.
	Primary model.Family
	// Families are those the kernel has.
	Families []model.Family
	PodCIDRs []netip.Prefix
}

// Check returns what is doubtful about the configuration on this node, and an error for what cannot work.
func (c *Config) Check(n Node) (warnings []string, err error) {
	if !slices.Contains(n.Families, n.Primary) {
		return nil, fmt.Errorf("check node: its primary address is %s and this kernel has no %s; use --bind-address",
			n.Primary, n.Primary)
	}
	other := model.IPv4
	if n.Primary == model.IPv4 {
		other = model.IPv6
	}
	warnings = c.checkNodePorts(n, other)
	cluster, pods := familiesOf(c.ClusterCIDRs), prefixFamilies(n.PodCIDRs)
	single := len(n.Families) == 1
	if c.DetectLocalMode == LocalModeClusterCIDR && len(c.ClusterCIDRs) == 0 {
		warnings = append(warnings, "clusterCIDR is empty: no client is recognised as a pod")
	}
	if onlyOther(cluster, n.Primary) {
		if single && c.DetectLocalMode == LocalModeClusterCIDR {
			return nil, fmt.Errorf("check clusterCIDR: %s has no %s prefix, the node's only family",
				strings.Join(c.ClusterCIDRs, ","), n.Primary)
		}
		warnings = append(warnings, fmt.Sprintf("clusterCIDR has no %s prefix, the node's primary family", n.Primary))
	}
	if onlyOther(pods, n.Primary) {
		if c.DetectLocalMode == LocalModeNodeCIDR {
			return nil, fmt.Errorf("check Node's spec.podCIDRs: none is %s, the node's primary family, and "+
				"detectLocalMode is NodeCIDR", n.Primary)
		}
		warnings = append(warnings, fmt.Sprintf("spec.podCIDRs has no %s prefix, the node's primary family", n.Primary))
	}
	if single {
		warnings = append(warnings, c.checkServers(n.Primary)...)
	}
	return warnings, nil
}

func (c *Config) checkNodePorts(n Node, other model.Family) []string {
	has := familiesOf(c.NodePortAddresses)
	for _, keyword := range []string{NodePortsPrimary, NodePortsLocalhost, NodePortsAll} {
		if slices.Contains(c.NodePortAddresses, keyword) {
			has[model.IPv4], has[model.IPv6] = true, true
		}
	}
	cluster := familiesOf(c.ClusterCIDRs)
	dual := len(cluster) == 2 || len(prefixFamilies(n.PodCIDRs)) == 2
	switch {
	case slices.Equal(c.NodePortAddresses, []string{NodePortsAll}):
		return []string{"nodePortAddresses is all: node ports are served on every address of the node; use primary"}
	case !has[n.Primary]:
		return []string{fmt.Sprintf("nodePortAddresses has no %s prefix, the node's primary family: node ports are "+
			"served on all %s addresses", n.Primary, n.Primary)}
	case dual && !has[other]:
		return []string{fmt.Sprintf("nodePortAddresses has no %s prefix: node ports are served on all %s addresses",
			other, other)}
	}
	return nil
}

// checkServers names bind addresses of a family that the host does not have.
func (c *Config) checkServers(only model.Family) []string {
	var warnings []string
	for _, server := range []struct{ field, address string }{
		{"healthzBindAddress", c.HealthzBindAddress}, {"metricsBindAddress", c.MetricsBindAddress},
	} {
		host, _, err := net.SplitHostPort(server.address)
		if err != nil {
			continue
		}
		ip := netutils.ParseIPSloppy(host)
		if ip != nil && !ip.IsUnspecified() && netutils.IsIPv6(ip) != (only == model.IPv6) {
			warnings = append(warnings, fmt.Sprintf("%s %s is not of this host's only family, %s", server.field,
				server.address, only))
		}
	}
	return warnings
}

func onlyOther(families map[model.Family]bool, primary model.Family) bool {
	return len(families) > 0 && !families[primary]
}

func familiesOf(prefixes []string) map[model.Family]bool {
	families := map[model.Family]bool{}
	for _, p := range prefixes {
		if _, _, err := netutils.ParseCIDRSloppy(p); err != nil {
			continue
		}
		if netutils.IsIPv6CIDRString(p) {
			families[model.IPv6] = true
		} else {
			families[model.IPv4] = true
		}
	}
	return families
}

func prefixFamilies(prefixes []netip.Prefix) map[model.Family]bool {
	families := map[model.Family]bool{}
	for _, p := range prefixes {
		families[model.FamilyOf(p.Addr())] = true
	}
	return families
}
