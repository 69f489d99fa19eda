// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	kjson "sigs.k8s.io/json"
)

const (
	kubeProxyKind = "KubeProxyConfiguration"
	modeIPTables  = "iptables"
	modeNFTables  = "nftables"
)

// kube-proxy's own defaults of the values whose absence means something else than zero.
const (
	defaultMasqueradeBit       = 14
	defaultConntrackMaxPerCore = 32 * 1024
	defaultConntrackMin        = 128 * 1024
	defaultTCPEstablished      = 24 * time.Hour
	defaultTCPCloseWait        = time.Hour
)

// fate is what happens to a field of a KubeProxyConfiguration that is set.
type fate int

const (
	honoured fate = iota + 1
	meaningless
	refused
)

// position is shunt's stand on one field.
type position struct {
	fate fate
	why  string
	// standard are the values, beside the zero value, that count as not set: kube-proxy's own defaults.
	standard []string
}

func honour() position                               { return position{fate: honoured} }
func ignore(why string, standard ...string) position { return position{meaningless, why, standard} }
func refuse(why string, standard ...string) position { return position{refused, why, standard} }

const whyNoWindows = "shunt runs on Linux"

// positions has a stand on every field of KubeProxyConfiguration, by its path in the file. A field that is not here
// is refused: a later Kubernetes may give it a meaning that we cannot know.
var positions = map[string]position{
	"featureGates":                        honour(),
	"clientConnection.kubeconfig":         honour(),
	"clientConnection.acceptContentTypes": honour(),
	"clientConnection.contentType":        honour(),
	"clientConnection.qps":                honour(),
	"clientConnection.burst":              honour(),
	"logging.format":                      honour(),
	"logging.verbosity":                   honour(),
	"logging.flushFrequency":              ignore(whyLogBuffers, "5s"),
	"logging.vmodule":                     ignore("verbosity is not chosen by file"),
	"logging.options.text.splitStream":    ignore(whyLogBuffers),
	"logging.options.text.infoBufferSize": ignore(whyLogBuffers),
	"logging.options.json.splitStream":    ignore(whyLogBuffers),
	"logging.options.json.infoBufferSize": ignore(whyLogBuffers),
	"hostnameOverride":                    honour(),
	"bindAddress":                         honour(),
	"healthzBindAddress":                  honour(),
	"metricsBindAddress":                  honour(),
	"bindAddressHardFail":                 honour(),
	"enableProfiling":                     honour(),
	"showHiddenMetricsForVersion":         ignore("no metric is hidden"),
	"mode":                                honour(),
	"iptables.masqueradeBit":              ignore(whyNoMark, fmt.Sprint(defaultMasqueradeBit)),
	"iptables.masqueradeAll":              honour(),
	"iptables.localhostNodePorts":         honour(),
	"iptables.syncPeriod":                 honour(),
	"iptables.minSyncPeriod":              honour(),
	"nftables.masqueradeBit":              ignore(whyNoMark, fmt.Sprint(defaultMasqueradeBit)),
	"nftables.masqueradeAll":              honour(),
	"nftables.syncPeriod":                 honour(),
	"nftables.minSyncPeriod":              honour(),
	"ipvs.syncPeriod":                     ignore("it counts in ipvs mode only", "30s"),
	"ipvs.minSyncPeriod":                  ignore("it counts in ipvs mode only"),
	"ipvs.scheduler":                      refuse(whyNoIPVS),
	"ipvs.excludeCIDRs":                   refuse(whyNoIPVS),
	"ipvs.strictARP":                      refuse(whyNoIPVS),
	"ipvs.tcpTimeout":                     refuse(whyNoIPVS),
	"ipvs.tcpFinTimeout":                  refuse(whyNoIPVS),
	"ipvs.udpTimeout":                     refuse(whyNoIPVS),
	"winkernel.networkName":               refuse(whyNoWindows),
	"winkernel.sourceVip":                 refuse(whyNoWindows),
	"winkernel.enableDSR":                 refuse(whyNoWindows),
	"winkernel.rootHnsEndpointName":       refuse(whyNoWindows),
	"winkernel.forwardHealthCheckVip":     refuse(whyNoWindows),
	"detectLocalMode":                     honour(),
	"detectLocal.bridgeInterface":         honour(),
	"detectLocal.interfaceNamePrefix":     honour(),
	"clusterCIDR":                         honour(),
	"nodePortAddresses":                   honour(),
	"oomScoreAdj":                         honour(),
	"conntrack.maxPerCore":                honour(),
	"conntrack.min":                       honour(),
	"conntrack.tcpEstablishedTimeout":     honour(),
	"conntrack.tcpCloseWaitTimeout":       honour(),
	"conntrack.tcpBeLiberal":              honour(),
	"conntrack.udpTimeout":                honour(),
	"conntrack.udpStreamTimeout":          honour(),
	"configSyncPeriod":                    honour(),
	"portRange":                           ignore("it belonged to the userspace mode, which is gone"),
	"windowsRunAsService":                 refuse(whyNoWindows),
}

// decodeKubeProxy is strict first and lenient then, as kube-proxy is: unknown and doubled fields are warnings.
func (f *Flags) decodeKubeProxy(s *state, text []byte, duplicates error) ([]string, error) {
	var warnings []string
	if duplicates != nil {
		warnings = append(warnings, "decoded leniently: "+duplicates.Error())
	}
	var file kubeproxy.KubeProxyConfiguration
	strict, err := kjson.UnmarshalStrict(text, &file)
	if err != nil {
		return nil, err
	}
	for _, err := range strict {
		warnings = append(warnings, "decoded leniently: "+err.Error())
	}
	ignored, err := judge(&file)
	if err != nil {
		return nil, err
	}
	if s.mode = string(file.Mode); f.lastGiven("proxy-mode") != "" {
		s.mode = f.lastGiven("proxy-mode")
	}
	if err := checkMode(s.mode); err != nil {
		return nil, fmt.Errorf("mode: %w", err)
	}
	if err := s.applyKubeProxy(&file); err != nil {
		return nil, err
	}
	return append(warnings, ignored...), nil
}

// judge names the fields that are set and mean nothing, and refuses those that cannot be ignored.
func judge(file *kubeproxy.KubeProxyConfiguration) ([]string, error) {
	var warnings []string
	var errs []error
	walk(reflect.ValueOf(file).Elem(), "", func(path string, v reflect.Value) {
		stand, ok := positions[path]
		if !ok {
			stand = refuse("this version of shunt does not know it")
		}
		if !isSet(v, stand.standard) {
			return
		}
		switch stand.fate {
		case meaningless:
			warnings = append(warnings, fmt.Sprintf("%s has no meaning here: %s", path, stand.why))
		case refused:
			errs = append(errs, fmt.Errorf("%s is refused: %s; remove it", path, stand.why))
		}
	})
	return warnings, errors.Join(errs...)
}

// walk calls visit for each leaf of a configuration struct, with its path in the file.
func walk(v reflect.Value, path string, visit func(path string, v reflect.Value)) {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		field := v.Field(i)
		if field.Type() == reflect.TypeFor[metav1.TypeMeta]() {
			continue
		}
		child := path
		if name != "" {
			child = strings.TrimPrefix(path+"."+name, ".")
		}
		if field.Kind() == reflect.Struct && !isLeaf(field.Type()) {
			walk(field, child, visit)
			continue
		}
		visit(child, field)
	}
}

// isLeaf reports structs that a file writes as one value.
func isLeaf(t reflect.Type) bool {
	return t == reflect.TypeFor[metav1.Duration]() || t == reflect.TypeFor[logsapi.TimeOrMetaDuration]() ||
		t == reflect.TypeFor[resource.QuantityValue]()
}

func isSet(v reflect.Value, standard []string) bool {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false
		}
		v = v.Elem()
	}
	if v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0 {
		return false
	}
	switch x := v.Interface().(type) {
	case metav1.Duration:
		return !slices.Contains(standard, x.Duration.String())
	case logsapi.TimeOrMetaDuration:
		return !slices.Contains(standard, x.Duration.Duration.String())
	case resource.QuantityValue:
		return !x.IsZero()
	}
	return !slices.Contains(standard, fmt.Sprint(v.Interface()))
}

// applyKubeProxy carries the honoured fields over, with kube-proxy's defaults for those that are absent.
func (s *state) applyKubeProxy(file *kubeproxy.KubeProxyConfiguration) error {
	c := &s.cfg
	for name, on := range file.FeatureGates {
		s.featureGates[name] = on
	}
	setIf(&c.Kubeconfig, file.ClientConnection.Kubeconfig)
	setIf(&c.KubeAPIAcceptContentTypes, file.ClientConnection.AcceptContentTypes)
	setIf(&c.KubeAPIContentType, file.ClientConnection.ContentType)
	setIf(&c.KubeAPIQPS, file.ClientConnection.QPS)
	setIf(&c.KubeAPIBurst, file.ClientConnection.Burst)
	setIf(&c.ConfigSyncPeriod, file.ConfigSyncPeriod)
	setIf(&c.LoggingFormat, file.Logging.Format)
	setIf(&c.Verbosity, uint32(file.Logging.Verbosity))
	if file.HostnameOverride != "" {
		if err := (*nodeNameValue)(&c.NodeName).Set(file.HostnameOverride); err != nil {
			return fmt.Errorf("hostnameOverride: %w", err)
		}
	}
	setIf(&c.BindAddress, file.BindAddress)
	c.HealthzBindAddress = defaultHealthzAddress(c.BindAddress)
	c.MetricsBindAddress = defaultMetricsAddress(c.BindAddress)
	setIf(&c.HealthzBindAddress, file.HealthzBindAddress)
	setIf(&c.MetricsBindAddress, file.MetricsBindAddress)
	setIf(&c.BindAddressHardFail, file.BindAddressHardFail)
	setIf(&c.Profiling, file.EnableProfiling)
	if file.OOMScoreAdj != nil {
		c.OOMScoreAdj = *file.OOMScoreAdj
	}
	setIf(&c.DetectLocalMode, LocalMode(file.DetectLocalMode))
	setIf(&c.PodBridgeInterface, file.DetectLocal.BridgeInterface)
	setIf(&c.PodInterfaceNamePrefix, file.DetectLocal.InterfaceNamePrefix)
	if file.ClusterCIDR != "" {
		c.ClusterCIDRs = strings.Split(file.ClusterCIDR, ",")
	}
	s.applyKubeProxyMode(file)
	s.applyKubeProxyConntrack(file.Conntrack)
	return nil
}

// applyKubeProxyMode reads the block of the mode. minSyncPeriod's default of one second is a need of iptables and
// nftables, not a wish of the user: only a value that is given counts.
func (s *state) applyKubeProxyMode(file *kubeproxy.KubeProxyConfiguration) {
	c := &s.cfg
	if s.mode == modeNFTables {
		c.NodePortAddresses = []string{NodePortsPrimary}
		setIf(&c.MasqueradeAll, file.NFTables.MasqueradeAll)
		setIf(&c.SyncPeriod, file.NFTables.SyncPeriod)
		setIf(&c.MinSyncPeriod, file.NFTables.MinSyncPeriod)
	} else {
		c.NodePortAddresses = []string{NodePortsAll}
		c.LocalhostNodePorts = file.IPTables.LocalhostNodePorts == nil || *file.IPTables.LocalhostNodePorts
		setIf(&c.MasqueradeAll, file.IPTables.MasqueradeAll)
		setIf(&c.SyncPeriod, file.IPTables.SyncPeriod)
		setIf(&c.MinSyncPeriod, file.IPTables.MinSyncPeriod)
	}
	if len(file.NodePortAddresses) > 0 {
		c.NodePortAddresses = file.NodePortAddresses
	}
}

// applyKubeProxyConntrack takes kube-proxy's defaults for what is absent, but does not insist on them.
func (s *state) applyKubeProxyConntrack(file kubeproxy.KubeProxyConntrackConfiguration) {
	c := &s.cfg
	c.conntrackBestEffort = map[string]bool{}
	c.ConntrackMaxPerCore = orDefault(c, "conntrack-max-per-core", file.MaxPerCore, defaultConntrackMaxPerCore)
	c.ConntrackMin = orDefault(c, "conntrack-min", file.Min, defaultConntrackMin)
	c.ConntrackTCPTimeoutEstablished = orDefault(c, "conntrack-tcp-timeout-established", file.TCPEstablishedTimeout,
		Duration{Duration: defaultTCPEstablished})
	c.ConntrackTCPTimeoutCloseWait = orDefault(c, "conntrack-tcp-timeout-close-wait", file.TCPCloseWaitTimeout,
		Duration{Duration: defaultTCPCloseWait})
	c.ConntrackTCPBeLiberal = file.TCPBeLiberal
	c.ConntrackUDPTimeout = file.UDPTimeout
	c.ConntrackUDPTimeoutStream = file.UDPStreamTimeout
}

func orDefault[T any](c *Config, flag string, value *T, standard T) T {
	if value != nil {
		return *value
	}
	c.conntrackBestEffort[flag] = true
	return standard
}

// setIf overwrites a setting with a value that is given.
func setIf[T comparable](setting *T, value T) {
	var zero T
	if value != zero {
		*setting = value
	}
}
