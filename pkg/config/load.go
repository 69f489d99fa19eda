// SPDX-License-Identifier: Apache-2.0

package config

import (
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

//go:embed feature_gates.txt
var featureGatesText string

const gateExternalIPs = "AllowServiceExternalIPs"

// Load returns the effective configuration: defaults, then the file, then the flags. The warnings are for the log:
// what was accepted without effect, or leniently.
func (f *Flags) Load() (*Config, []string, error) {
	s := newState()
	warnings, err := f.loadFile(s)
	if err != nil {
		return nil, nil, err
	}
	flagWarnings, err := f.applyFlags(s)
	if err != nil {
		return nil, nil, err
	}
	warnings = append(warnings, flagWarnings...)
	if err := s.applyFeatureGates(); err != nil {
		return nil, nil, err
	}
	if err := f.complete(s); err != nil {
		return nil, nil, err
	}
	if err := s.cfg.Validate(); err != nil {
		return nil, nil, err
	}
	return &s.cfg, append(warnings, s.cfg.notes()...), nil
}

// loadFile reads the file, if there is one, into s.
func (f *Flags) loadFile(s *state) ([]string, error) {
	if f.ConfigFile == "" {
		s.mode = f.lastGiven("proxy-mode")
		if s.mode == modeIPTables {
			s.cfg.NodePortAddresses, s.cfg.LocalhostNodePorts = []string{NodePortsAll}, true
		}
		return nil, nil
	}
	data, err := f.readFile(f.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	warnings, err := f.decode(s, data)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", f.ConfigFile, err)
	}
	for i := range warnings {
		warnings[i] = f.ConfigFile + ": " + warnings[i]
	}
	return warnings, nil
}

func (f *Flags) decode(s *state, data []byte) ([]string, error) {
	text, duplicates := yaml.YAMLToJSONStrict(data)
	if duplicates != nil {
		var err error
		if text, err = yaml.YAMLToJSON(data); err != nil {
			return nil, err
		}
	}
	var meta metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &meta); err != nil {
		return nil, err
	}
	switch {
	case meta.APIVersion == APIVersion && meta.Kind == Kind:
		return nil, decodeShunt(s, text, duplicates)
	case meta.APIVersion == kubeproxy.SchemeGroupVersion.String() && meta.Kind == kubeProxyKind:
		return f.decodeKubeProxy(s, text, duplicates)
	}
	return nil, fmt.Errorf("apiVersion %q, kind %q: want %s, %s or %s, %s", meta.APIVersion, meta.Kind,
		APIVersion, Kind, kubeproxy.SchemeGroupVersion, kubeProxyKind)
}

// decodeShunt is strict: a misspelled field of our own file must not be lost.
func decodeShunt(s *state, text []byte, duplicates error) error {
	if duplicates != nil {
		return duplicates
	}
	strict, err := kjson.UnmarshalStrict(text, &s.cfg)
	if err != nil {
		return err
	}
	return errors.Join(strict...)
}

// applyFlags sets the flags that were given, in their order.
func (f *Flags) applyFlags(s *state) ([]string, error) {
	var warnings []string
	fs := s.flagSet()
	for _, given := range f.given {
		if refused, ok := refusedFlags[given.flag]; ok && !slices.Contains(refused.defaults, given.value) {
			return nil, fmt.Errorf("flag --%s=%s is refused: %s", given.flag, given.value, refused.why)
		}
		if why, ok := meaninglessFlags[given.flag]; ok {
			warnings = append(warnings, fmt.Sprintf("flag --%s has no meaning here: %s", given.flag, why))
		}
		// The first value of a list replaces the file's, the next ones add to it.
		if err := fs.Set(given.flag, given.value); err != nil {
			return nil, fmt.Errorf("set flag --%s: %w", given.flag, err)
		}
		delete(s.cfg.conntrackBestEffort, given.flag)
	}
	return warnings, nil
}

// lastGiven returns the last value of a flag, empty when it was not given.
func (f *Flags) lastGiven(flag string) string {
	for _, given := range slices.Backward(f.given) {
		if given.flag == flag {
			return given.value
		}
	}
	return ""
}

func (s *state) applyFeatureGates() error {
	var unknown []string
	known := strings.Fields(featureGatesText)
	for name, on := range s.featureGates {
		switch {
		case name == gateExternalIPs:
			s.cfg.AllowServiceExternalIPs = on
		case !slices.Contains(known, name):
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return fmt.Errorf("read feature gates: Kubernetes 1.37 has none named %s", strings.Join(unknown, ", "))
	}
	return nil
}

// complete fills in what depends on the node and canonicalises what has several spellings.
func (f *Flags) complete(s *state) error {
	c := &s.cfg
	c.NodeName = canonicalNodeName(c.NodeName)
	if c.NodeName == "" {
		c.NodeName = canonicalNodeName(f.getenv("NODE_NAME"))
	}
	if c.NodeName == "" {
		host, err := f.hostname()
		if err != nil {
			return fmt.Errorf("read hostname: %w; use --node-name", err)
		}
		if c.NodeName = canonicalNodeName(host); c.NodeName == "" {
			return fmt.Errorf("read hostname: it is blank; use --node-name")
		}
	}
	if ip := netutils.ParseIPSloppy(c.BindAddress); ip != nil {
		a, _ := netip.AddrFromSlice(ip)
		c.BindAddress = a.Unmap().String()
	}
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, HealthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, MetricsPort)
	if len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{NodePortsPrimary}
	}
	return nil
}

// notes are the things that an operator should know about a valid configuration.
func (c *Config) notes() []string {
	var notes []string
	if c.Manifests != "" && (c.Kubeconfig != "" || len(c.APIServers) > 0) {
		notes = append(notes, "manifests: the API server is not asked: kubeconfig and apiserver have no effect")
	}
	return notes
}

// withPort appends a port to an address without one, as kube-proxy does.
func withPort(address string, port uint16) string {
	if ip := netutils.ParseIPSloppy(strings.Trim(address, "[]")); ip != nil {
		a, _ := netip.AddrFromSlice(ip)
		return netip.AddrPortFrom(a.Unmap(), port).String()
	}
	return address
}

// defaultHealthzAddress and defaultMetricsAddress follow the family of the node's address.
func defaultHealthzAddress(bindAddress string) string {
	if netutils.IsIPv6(netutils.ParseIPSloppy(bindAddress)) {
		return fmt.Sprintf("[::]:%d", HealthzPort)
	}
	return fmt.Sprintf("0.0.0.0:%d", HealthzPort)
}

func defaultMetricsAddress(bindAddress string) string {
	if netutils.IsIPv6(netutils.ParseIPSloppy(bindAddress)) {
		return fmt.Sprintf("[::1]:%d", MetricsPort)
	}
	return fmt.Sprintf("127.0.0.1:%d", MetricsPort)
}
