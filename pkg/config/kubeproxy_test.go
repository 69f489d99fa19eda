// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// samples are values other than the default, as a file has them; the mode that reads the field where that matters.
var samples = map[string]struct{ value, mode string }{
	"featureGates":                        {value: `{"AllowServiceExternalIPs": false}`},
	"clientConnection.kubeconfig":         {value: `"/etc/kubeconfig"`},
	"clientConnection.acceptContentTypes": {value: `"application/json"`},
	"clientConnection.contentType":        {value: `"application/json"`},
	"clientConnection.qps":                {value: `50`},
	"clientConnection.burst":              {value: `100`},
	"logging.format":                      {value: `"json"`},
	"logging.verbosity":                   {value: `4`},
	"logging.flushFrequency":              {value: `"1s"`},
	"logging.vmodule":                     {value: `[{"filePattern": "proxier", "verbosity": 9}]`},
	"logging.options.text.splitStream":    {value: `true`},
	"logging.options.text.infoBufferSize": {value: `"1k"`},
	"logging.options.json.splitStream":    {value: `true`},
	"logging.options.json.infoBufferSize": {value: `"1k"`},
	"hostnameOverride":                    {value: `" Node-7 "`},
	"bindAddress":                         {value: `"192.0.2.7"`},
	"healthzBindAddress":                  {value: `"127.0.0.1:10256"`},
	"metricsBindAddress":                  {value: `"0.0.0.0:10249"`},
	"bindAddressHardFail":                 {value: `true`},
	"enableProfiling":                     {value: `true`},
	"showHiddenMetricsForVersion":         {value: `"1.36"`},
	"mode":                                {value: `"nftables"`},
	"iptables.masqueradeBit":              {value: `15`},
	"iptables.masqueradeAll":              {value: `true`},
	"iptables.localhostNodePorts":         {value: `false`},
	"iptables.syncPeriod":                 {value: `"10s"`},
	"iptables.minSyncPeriod":              {value: `"2s"`},
	"nftables.masqueradeBit":              {value: `15`},
	"nftables.masqueradeAll":              {value: `true`, mode: modeNFTables},
	"nftables.syncPeriod":                 {value: `"10s"`, mode: modeNFTables},
	"nftables.minSyncPeriod":              {value: `"2s"`, mode: modeNFTables},
	"ipvs.syncPeriod":                     {value: `"10s"`},
	"ipvs.minSyncPeriod":                  {value: `"2s"`},
	"ipvs.scheduler":                      {value: `"lc"`},
	"ipvs.excludeCIDRs":                   {value: `["192.0.2.0/24"]`},
	"ipvs.strictARP":                      {value: `true`},
	"ipvs.tcpTimeout":                     {value: `"1s"`},
	"ipvs.tcpFinTimeout":                  {value: `"1s"`},
	"ipvs.udpTimeout":                     {value: `"1s"`},
	"winkernel.networkName":               {value: `"n"`},
	"winkernel.sourceVip":                 {value: `"192.0.2.1"`},
	"winkernel.enableDSR":                 {value: `true`},
	"winkernel.rootHnsEndpointName":       {value: `"n"`},
	"winkernel.forwardHealthCheckVip":     {value: `true`},
	"detectLocalMode":                     {value: `"NodeCIDR"`},
	"detectLocal.bridgeInterface":         {value: `"cni0"`},
	"detectLocal.interfaceNamePrefix":     {value: `"veth"`},
	"clusterCIDR":                         {value: `"10.244.0.0/16,fd00:244::/64"`},
	"nodePortAddresses":                   {value: `["localhost", "192.0.2.0/24"]`},
	"oomScoreAdj":                         {value: `-500`},
	"conntrack.maxPerCore":                {value: `1000`},
	"conntrack.min":                       {value: `1000`},
	"conntrack.tcpEstablishedTimeout":     {value: `"1h"`},
	"conntrack.tcpCloseWaitTimeout":       {value: `"1m"`},
	"conntrack.tcpBeLiberal":              {value: `true`},
	"conntrack.udpTimeout":                {value: `"30s"`},
	"conntrack.udpStreamTimeout":          {value: `"120s"`},
	"configSyncPeriod":                    {value: `"5m"`},
	"portRange":                           {value: `"1-2"`},
	"windowsRunAsService":                 {value: `true`},
}

// kubeProxyFile writes a KubeProxyConfiguration with one field set.
func kubeProxyFile(path, value, mode string) string {
	text := value
	parts := strings.Split(path, ".")
	for _, name := range slices.Backward(parts) {
		text = fmt.Sprintf("{%q: %s}", name, text)
	}
	head := fmt.Sprintf(`"apiVersion": %q, "kind": %q`, kubeproxy.SchemeGroupVersion, kubeProxyKind)
	if mode != "" {
		head += fmt.Sprintf(`, "mode": %q`, mode)
	}
	return "{" + head + ", " + strings.TrimPrefix(text, "{")
}

func TestThereIsAStandOnEveryFieldOfKubeProxyConfiguration(t *testing.T) {
	seen := map[string]bool{}
	walk(reflect.ValueOf(kubeproxy.KubeProxyConfiguration{}), "", func(path string, _ reflect.Value) {
		seen[path] = true
		if _, ok := positions[path]; !ok {
			t.Errorf("no stand on field %s", path)
		}
		if _, ok := samples[path]; !ok {
			t.Errorf("no sample of field %s", path)
		}
	})
	for path := range positions {
		if !seen[path] {
			t.Errorf("stand on field %s, which does not exist", path)
		}
	}
}

func TestEveryFieldDoesWhatItsStandSays(t *testing.T) {
	for path, stand := range positions {
		t.Run(path, func(t *testing.T) {
			sample := samples[path]
			cfg, warnings, err := load(t, kubeProxyFile(path, sample.value, sample.mode))
			named := slices.ContainsFunc(warnings, func(w string) bool {
				return strings.Contains(w, path+" has no meaning here: "+stand.why)
			})
			switch stand.fate {
			case honoured:
				plain, _, plainErr := load(t, kubeProxyFile("portRange", `""`, sample.mode))
				if err != nil || plainErr != nil {
					t.Fatalf("Load: %v, without the field %v", err, plainErr)
				}
				if reflect.DeepEqual(cfg, plain) {
					t.Errorf("%s: %s changes nothing", path, sample.value)
				}
				if len(warnings) > 0 {
					t.Errorf("warnings about an honoured field: %q", warnings)
				}
			case meaningless:
				if err != nil || !named {
					t.Errorf("Load = %v, warnings %q; want one that names %s", err, warnings, path)
				}
			case refused:
				if err == nil || !strings.Contains(err.Error(), path+" is refused: "+stand.why) {
					t.Errorf("Load = %v; want a refusal that names %s", err, path)
				}
			default:
				t.Errorf("fate %d", stand.fate)
			}
		})
	}
}

func TestHonouredFieldsOfKubeProxyConfigurationArriveWhereTheyBelong(t *testing.T) {
	cfg, warnings, err := load(t, `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: "::"
bindAddressHardFail: false
clientConnection: {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpCloseWaitTimeout: 2m0s, tcpEstablishedTimeout: null}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: "192.0.2.4"
mode: ""
nftables: {masqueradeAll: true, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 20s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("Load of what kubeadm writes = %v, warnings %q", err, warnings)
	}
	want := Default()
	want.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
	want.BindAddress = "::"
	want.HealthzBindAddress = "[::]:10256"
	want.MetricsBindAddress = "192.0.2.4:10249"
	want.NodeName = "host-1"
	want.ClusterCIDRs = []string{"10.244.0.0/16"}
	want.NodePortAddresses = []string{"all"}
	want.LocalhostNodePorts = true
	want.ConntrackMaxPerCore, want.ConntrackMin = 32768, 131072
	want.ConntrackTCPTimeoutEstablished.Duration = defaultTCPEstablished
	want.ConntrackTCPTimeoutCloseWait.Duration = 2 * 60e9
	want.conntrackBestEffort = map[string]bool{"conntrack-max-per-core": true, "conntrack-min": true,
		"conntrack-tcp-timeout-established": true}
	if !reflect.DeepEqual(*cfg, want) {
		got, _ := json.Marshal(cfg)
		expected, _ := json.Marshal(want)
		t.Errorf("Load =\n%s\nwant\n%s", got, expected)
	}
}

func TestTheModeChoosesTheBlockAndTheNodePortAddresses(t *testing.T) {
	const file = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %q
iptables: {syncPeriod: 10s}
nftables: {syncPeriod: 20s}
`
	for _, row := range []struct {
		mode, nodePorts, period string
		localhost               bool
		flags                   []string
	}{
		{mode: "", nodePorts: "all", period: "10s", localhost: true},
		{mode: "iptables", nodePorts: "all", period: "10s", localhost: true},
		{mode: "nftables", nodePorts: "primary", period: "20s", localhost: true},
		{mode: "iptables", nodePorts: "primary", period: "20s", localhost: true, flags: []string{"--proxy-mode=nftables"}},
		{mode: "nftables", nodePorts: "192.0.2.0/24", period: "5s", localhost: true,
			flags: []string{"--nodeport-addresses=192.0.2.0/24", "--iptables-sync-period=5s"}},
	} {
		cfg, _, err := load(t, fmt.Sprintf(file, row.mode), row.flags...)
		if err != nil {
			t.Fatalf("mode %q, flags %q: %v", row.mode, row.flags, err)
		}
		got := strings.Join(cfg.NodePortAddresses, ",")
		if got != row.nodePorts || cfg.SyncPeriod.Duration.String() != row.period ||
			cfg.LocalhostNodePorts != row.localhost {
			t.Errorf("mode %q, flags %q: node ports on %s, loopback %t, sync period %s; want %s, %t, %s", row.mode,
				row.flags, got, cfg.LocalhostNodePorts, cfg.SyncPeriod.Duration, row.nodePorts, row.localhost, row.period)
		}
	}
}
