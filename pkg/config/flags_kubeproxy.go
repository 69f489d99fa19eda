// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// addKubeProxyFlags registers those of kube-proxy's flags that have another name here, or no meaning, so that its
// command line can be kept.
func (s *state) addKubeProxyFlags(fs *pflag.FlagSet) {
	c := &s.cfg
	fs.Uint32VarP(&c.Verbosity, "v", "v", c.Verbosity, "same as --verbosity")
	fs.Var((*nodeNameValue)(&c.NodeName), "hostname-override", "same as --node-name")
	fs.Var(setter{"string", func(v string) error { return s.setMaster(v) }}, "master", "same as --apiserver")
	fs.Var(setter{"mode", s.setMode}, "proxy-mode",
		"iptables or nftables: whose defaults for node-port addresses apply; neither is used")
	fs.Var(setter{"name=bool,...", s.setFeatureGates}, "feature-gates", "kube-proxy's feature gates; "+
		"AllowServiceExternalIPs has an effect")
	fs.BoolVar(&c.LocalhostNodePorts, "iptables-localhost-nodeports", c.LocalhostNodePorts,
		"same as --localhost-nodeports")
	fs.DurationVar(&c.SyncPeriod.Duration, "iptables-sync-period", c.SyncPeriod.Duration, "same as --sync-period")
	fs.DurationVar(&c.MinSyncPeriod.Duration, "iptables-min-sync-period", c.MinSyncPeriod.Duration,
		"same as --min-sync-period")
	fs.Var(setter{"port", func(v string) error {
		return setPort(&c.HealthzBindAddress, defaultHealthzAddress(c.BindAddress), v)
	}}, "healthz-port", "port of --healthz-bind-address on all addresses; 0 disables it")
	fs.Var(setter{"port", func(v string) error {
		return setPort(&c.MetricsBindAddress, defaultMetricsAddress(c.BindAddress), v)
	}}, "metrics-port", "port of --metrics-bind-address on loopback; 0 disables it")

	for name, f := range meaninglessFlags {
		fs.Var(setter{"string", func(string) error { return nil }}, name, "accepted and ignored: "+f)
	}
	for name, f := range refusedFlags {
		fs.Var(setter{"string", func(string) error { return nil }}, name, "refused: "+f.why)
	}
	for _, name := range []string{"ipvs-strict-arp", "log-json-split-stream", "log-text-split-stream"} {
		fs.Lookup(name).NoOptDefVal = "true"
	}
}

const (
	whyNoMark     = "no packet mark is used"
	whyNoIPVS     = "there is no ipvs here, and another scheduler would choose other backends"
	whyLogBuffers = "log lines are written at once, to standard error"
)

// meaninglessFlags are kube-proxy's flags that are accepted without effect, with the reason.
var meaninglessFlags = map[string]string{
	"iptables-masquerade-bit":         whyNoMark,
	"show-hidden-metrics-for-version": "no metric is hidden",
	"vmodule":                         "verbosity is not chosen by file",
	"ipvs-sync-period":                "it counts in ipvs mode only",
	"ipvs-min-sync-period":            "it counts in ipvs mode only",
	"log-flush-frequency":             whyLogBuffers,
	"log-json-split-stream":           whyLogBuffers,
	"log-json-info-buffer-size":       whyLogBuffers,
	"log-text-split-stream":           whyLogBuffers,
	"log-text-info-buffer-size":       whyLogBuffers,
}

// refusedFlags are kube-proxy's flags that may only be given their default.
var refusedFlags = map[string]struct {
	defaults []string
	why      string
}{
	"ipvs-scheduler":      {[]string{""}, whyNoIPVS},
	"ipvs-exclude-cidrs":  {[]string{""}, whyNoIPVS},
	"ipvs-strict-arp":     {[]string{"", "false"}, whyNoIPVS},
	"ipvs-tcp-timeout":    {[]string{"", "0", "0s"}, whyNoIPVS},
	"ipvs-tcpfin-timeout": {[]string{"", "0", "0s"}, whyNoIPVS},
	"ipvs-udp-timeout":    {[]string{"", "0", "0s"}, whyNoIPVS},
}

// setter is a flag that runs a function.
type setter struct {
	kind string
	set  func(string) error
}

func (v setter) String() string         { return "" }
func (v setter) Type() string           { return v.kind }
func (v setter) Set(value string) error { return v.set(value) }

func (s *state) setMaster(url string) error {
	s.cfg.APIServers = nil
	if url != "" {
		s.cfg.APIServers = []string{url}
	}
	return nil
}

func (s *state) setMode(mode string) error {
	if err := checkMode(mode); err != nil {
		return err
	}
	s.mode = mode
	return nil
}

// checkMode accepts the modes whose rules shunt follows.
func checkMode(mode string) error {
	switch mode {
	case "", modeIPTables, modeNFTables:
		return nil
	case "ipvs":
		return fmt.Errorf("proxy mode ipvs is refused: its schedulers have no counterpart here; " +
			"use nftables or leave the mode empty")
	}
	return fmt.Errorf("proxy mode %q is unknown: use nftables or leave it empty", mode)
}

func (s *state) setFeatureGates(list string) error {
	for _, item := range strings.Split(list, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		name, value, ok := strings.Cut(item, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if !ok || err != nil {
			return fmt.Errorf("feature gate %q: want name=true or name=false", item)
		}
		s.featureGates[strings.TrimSpace(name)] = on
	}
	return nil
}

// setPort puts a port into the default address; 0 disables the server.
func setPort(address *string, standard, value string) error {
	port, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return fmt.Errorf("a port is a number from 0 to 65535")
	}
	if port == 0 {
		*address = ""
		return nil
	}
	ap := netip.MustParseAddrPort(standard)
	*address = netip.AddrPortFrom(ap.Addr(), uint16(port)).String()
	return nil
}
