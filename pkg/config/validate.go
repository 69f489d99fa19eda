// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"

	netutils "k8s.io/utils/net"
)

// Validate returns every rule that c breaks, each with the field's name.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("configuration field %s: "+format, append([]any{field}, args...)...))
		}
	}
	check(c.KubeAPIBurst >= 0, "kubeAPIBurst", "%d must not be negative", c.KubeAPIBurst)
	check(c.ConfigSyncPeriod.Duration > 0, "configSyncPeriod", "%s must be greater than 0", c.ConfigSyncPeriod.Duration)
	check(c.SyncPeriod.Duration > 0, "syncPeriod", "%s must be greater than 0", c.SyncPeriod.Duration)
	check(c.MinSyncPeriod.Duration >= 0, "minSyncPeriod", "%s must not be negative", c.MinSyncPeriod.Duration)
	check(c.MinSyncPeriod.Duration <= c.SyncPeriod.Duration, "minSyncPeriod", "%s must not exceed syncPeriod, %s",
		c.MinSyncPeriod.Duration, c.SyncPeriod.Duration)
	check(netutils.ParseIPSloppy(c.BindAddress) != nil, "bindAddress", "%q is no IP address", c.BindAddress)
	for _, server := range []struct{ field, address string }{
		{"healthzBindAddress", c.HealthzBindAddress}, {"metricsBindAddress", c.MetricsBindAddress},
	} {
		check(server.address == "" || isIPPort(server.address), server.field,
			"%q is no IP:port with a port from 1 to 65535", server.address)
	}
	check(c.OOMScoreAdj >= -1000 && c.OOMScoreAdj <= 1000, "oomScoreAdj", "%d is not within -1000 and 1000",
		c.OOMScoreAdj)
	check(c.SocketLB == SocketLBAll || c.SocketLB == SocketLBHost || c.SocketLB == SocketLBOff, "socketLB",
		"%q is none of all, host, off", c.SocketLB)
	check(c.TCAttach == TCAttachAuto || c.TCAttach == TCAttachTCX || c.TCAttach == TCAttachClsact, "tcAttach",
		"%q is none of auto, tcx, clsact", c.TCAttach)
	for _, pattern := range c.Devices {
		name := strings.TrimPrefix(pattern, "!")
		_, err := path.Match(name, "")
		check(err == nil && name != "", "devices", "%q is no pattern of device names", pattern)
	}
	check(c.Algorithm == AlgorithmRandom, "algorithm", "%q is unknown: the one there is, is random", c.Algorithm)
	check(c.BPFFS != "", "bpffs", "must not be empty: /sys/fs/bpf is the usual mount point")
	check(c.LoggingFormat == LogText || c.LoggingFormat == LogJSON, "loggingFormat", "%q is neither text nor json",
		c.LoggingFormat)
	return errors.Join(append(errs, c.validateNodePorts(), c.validateDetectLocal(), c.validateConntrack())...)
}

func (c *Config) validateNodePorts() error {
	var errs []error
	seen := map[string]bool{}
	for i, entry := range c.NodePortAddresses {
		switch entry {
		case NodePortsPrimary, NodePortsLocalhost, NodePortsAll:
			if seen[entry] {
				errs = append(errs, fmt.Errorf("configuration field nodePortAddresses[%d]: %q is there twice", i, entry))
			}
			seen[entry] = true
			continue
		}
		if _, _, err := netutils.ParseCIDRSloppy(entry); err != nil {
			errs = append(errs, fmt.Errorf("configuration field nodePortAddresses[%d]: %q is neither a prefix nor one "+
				"of primary, localhost, all", i, entry))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) validateDetectLocal() error {
	switch c.DetectLocalMode {
	case LocalModeClusterCIDR:
		return c.validateClusterCIDRs()
	case LocalModeNodeCIDR:
		return nil
	case LocalModeBridgeInterface:
		if c.PodBridgeInterface == "" {
			return fmt.Errorf("configuration field podBridgeInterface: detectLocalMode BridgeInterface needs it")
		}
		return nil
	case LocalModeInterfaceNamePrefix:
		if c.PodInterfaceNamePrefix == "" {
			return fmt.Errorf("configuration field podInterfaceNamePrefix: detectLocalMode InterfaceNamePrefix needs it")
		}
		return nil
	}
	return fmt.Errorf("configuration field detectLocalMode: %q is none of ClusterCIDR, NodeCIDR, BridgeInterface, "+
		"InterfaceNamePrefix", c.DetectLocalMode)
}

// validateClusterCIDRs accepts none (nothing is recognised as a pod), one, or one of each family.
func (c *Config) validateClusterCIDRs() error {
	for _, entry := range c.ClusterCIDRs {
		if _, _, err := netutils.ParseCIDRSloppy(entry); err != nil {
			return fmt.Errorf("configuration field clusterCIDR: %q is no prefix", entry)
		}
	}
	list := strings.Join(c.ClusterCIDRs, ",")
	if len(c.ClusterCIDRs) > 2 {
		return fmt.Errorf("configuration field clusterCIDR: %s are more than one of each family", list)
	}
	if len(c.ClusterCIDRs) == 2 && netutils.IsIPv6CIDRString(c.ClusterCIDRs[0]) ==
		netutils.IsIPv6CIDRString(c.ClusterCIDRs[1]) {
		return fmt.Errorf("configuration field clusterCIDR: %s are of one family", list)
	}
	return nil
}

func (c *Config) validateConntrack() error {
	var errs []error
	for _, number := range []struct {
		field string
		value int64
	}{
		{"conntrackMaxPerCore", int64(c.ConntrackMaxPerCore)},
		{"conntrackMin", int64(c.ConntrackMin)},
		{"conntrackTCPTimeoutEstablished", int64(c.ConntrackTCPTimeoutEstablished.Duration)},
		{"conntrackTCPTimeoutCloseWait", int64(c.ConntrackTCPTimeoutCloseWait.Duration)},
		{"conntrackUDPTimeout", int64(c.ConntrackUDPTimeout.Duration)},
		{"conntrackUDPTimeoutStream", int64(c.ConntrackUDPTimeoutStream.Duration)},
	} {
		if number.value < 0 {
			errs = append(errs, fmt.Errorf("configuration field %s: must not be negative", number.field))
		}
	}
	return errors.Join(errs...)
}

func isIPPort(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || netutils.ParseIPSloppy(host) == nil {
		return false
	}
	n, err := strconv.Atoi(port)
	return err == nil && n >= 1 && n <= 65535
}
