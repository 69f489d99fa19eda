// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// load parses a command line beside a file (none when it is empty), on a host named host-1.
func load(t *testing.T, file string, args ...string) (*Config, []string, error) {
	t.Helper()
	fset := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags := AddFlags(fset)
	flags.getenv = func(string) string { return "" }
	flags.hostname = func() (string, error) { return "Host-1", nil }
	flags.readFile = func(name string) ([]byte, error) {
		if name != "shunt.yaml" {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		return []byte(file), nil
	}
	if file != "" {
		args = append([]string{"--config=shunt.yaml"}, args...)
	}
	if err := fset.Parse(args); err != nil {
		return nil, nil, err
	}
	return flags.Load()
}

const shuntHead = "apiVersion: shunt.dev/v1alpha1\nkind: ShuntConfiguration\n"

func TestWithoutAnythingTheDefaultsHold(t *testing.T) {
	cfg, warnings, err := load(t, "")
	if err != nil || len(warnings) > 0 {
		t.Fatalf("Load = %v, warnings %q", err, warnings)
	}
	want := Default()
	want.NodeName = "host-1"
	if !reflect.DeepEqual(*cfg, want) {
		t.Errorf("Load = %+v, want %+v", *cfg, want)
	}
}

func TestFlagsOverrideTheFileWhichOverridesTheDefaults(t *testing.T) {
	cfg, _, err := load(t, shuntHead+`
maxServices: 7
maxBackends: 8
nodePortAddresses: [localhost]
apiserver: ["https://192.0.2.1:6443"]
nodeName: From-File
syncPeriod: 10s
`, "--max-services=9", "--nodeport-addresses=192.0.2.0/24", "--nodeport-addresses", "2001:db8::/32,primary",
		"--hostname-override= FromFlag ", "--master=https://192.0.2.2")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MaxServices != 9 || cfg.MaxBackends != 8 {
		t.Errorf("maxServices %d, maxBackends %d; want the flag's 9 and the file's 8", cfg.MaxServices, cfg.MaxBackends)
	}
	if want := []string{"192.0.2.0/24", "2001:db8::/32", "primary"}; !slices.Equal(cfg.NodePortAddresses, want) {
		t.Errorf("nodePortAddresses %q, want the flags' %q", cfg.NodePortAddresses, want)
	}
	if cfg.NodeName != "fromflag" || cfg.APIServers[0] != "https://192.0.2.2" || len(cfg.APIServers) != 1 {
		t.Errorf("node name %q, API servers %q", cfg.NodeName, cfg.APIServers)
	}
	if cfg.SyncPeriod.Duration != 10*time.Second || cfg.ConfigSyncPeriod.Duration != 15*time.Minute {
		t.Errorf("syncPeriod %s, configSyncPeriod %s", cfg.SyncPeriod.Duration, cfg.ConfigSyncPeriod.Duration)
	}
}

// A field and its flag share their spelling, so that who knows one knows the other.
func TestEveryFieldHasAFlagOfItsNameAndTheFlagChangesIt(t *testing.T) {
	values := map[string]string{"string": "x", "stringSlice": "x", "float32": "9", "int32": "9", "uint32": "9",
		"duration": "9s"}
	for _, name := range fieldNames() {
		field, _ := reflect.TypeFor[Config]().FieldByNameFunc(func(n string) bool { return jsonName(n) == name })
		s := newState()
		var flag *pflag.Flag
		s.flagSet().VisitAll(func(f *pflag.Flag) {
			if strings.EqualFold(strings.ReplaceAll(f.Name, "-", ""), name) {
				flag = f
			}
		})
		if flag == nil {
			t.Errorf("field %s has no flag", name)
			continue
		}
		value, ok := values[flag.Value.Type()]
		if !ok {
			value = fmt.Sprint(flag.DefValue != "true")
		}
		before := fmt.Sprint(reflect.ValueOf(s.cfg).FieldByIndex(field.Index).Interface())
		if err := flag.Value.Set(value); err != nil {
			t.Errorf("set --%s=%s: %v", flag.Name, value, err)
		}
		if after := fmt.Sprint(reflect.ValueOf(s.cfg).FieldByIndex(field.Index).Interface()); after == before {
			t.Errorf("flag --%s=%s leaves field %s at %s", flag.Name, value, name, before)
		}
	}
}

func TestTheFlagsOfKubeProxyAreAccepted(t *testing.T) {
	// `kube-proxy --help` of 1.37, without the flags of Windows.
	for flag, value := range map[string]string{
		"bind-address": "192.0.2.7", "bind-address-hard-fail": "true", "cleanup": "true",
		"cluster-cidr": "10.0.0.0/8", "config": "", "config-sync-period": "1m", "conntrack-max-per-core": "1",
		"conntrack-min": "1", "conntrack-tcp-be-liberal": "true", "conntrack-tcp-timeout-close-wait": "1m",
		"conntrack-tcp-timeout-established": "1m", "conntrack-udp-timeout": "1m", "conntrack-udp-timeout-stream": "1m",
		"detect-local-mode": "NodeCIDR", "feature-gates": "NFTablesNetlink=false,ContextualLogging=true",
		"healthz-bind-address": "192.0.2.7", "healthz-port": "1", "hostname-override": "n", "init-only": "true",
		"iptables-localhost-nodeports": "true", "iptables-masquerade-bit": "14", "iptables-min-sync-period": "1s",
		"iptables-sync-period": "30s", "ipvs-exclude-cidrs": "", "ipvs-min-sync-period": "1s", "ipvs-scheduler": "",
		"ipvs-strict-arp": "false", "ipvs-sync-period": "30s", "ipvs-tcp-timeout": "0s", "ipvs-tcpfin-timeout": "0s",
		"ipvs-udp-timeout": "0s", "kube-api-burst": "1", "kube-api-content-type": "application/json",
		"kube-api-qps": "1", "kubeconfig": "k", "log-flush-frequency": "5s", "log-json-info-buffer-size": "0",
		"log-json-split-stream": "false", "log-text-info-buffer-size": "0", "log-text-split-stream": "false",
		"logging-format": "json", "masquerade-all": "true", "master": "https://192.0.2.1",
		"metrics-bind-address": "192.0.2.7", "metrics-port": "1", "nodeport-addresses": "primary",
		"oom-score-adj": "1", "pod-bridge-interface": "b", "pod-interface-name-prefix": "v", "profiling": "true",
		"proxy-mode": "nftables", "show-hidden-metrics-for-version": "1.36", "v": "2", "vmodule": "a=1",
		"write-config-to": "f",
	} {
		if _, _, err := load(t, "", "--"+flag+"="+value); err != nil {
			t.Errorf("--%s=%s: %v", flag, value, err)
		}
	}
}

func TestFlagsWithoutMeaningAreNamedAndUnsafeOnesRefused(t *testing.T) {
	for flag, why := range meaninglessFlags {
		_, warnings, err := load(t, "", "--"+flag+"=1")
		if err != nil || len(warnings) != 1 || warnings[0] != "flag --"+flag+" has no meaning here: "+why {
			t.Errorf("--%s: %v, warnings %q", flag, err, warnings)
		}
	}
	for flag, stand := range refusedFlags {
		_, _, err := load(t, "", "--"+flag+"=1")
		if err == nil || !strings.Contains(err.Error(), "--"+flag+"=1 is refused: "+stand.why) {
			t.Errorf("--%s: %v", flag, err)
		}
	}
}

func TestFlagsThatSetTheSameThingActInTheirOrder(t *testing.T) {
	for _, row := range []struct {
		args                    string
		healthz, metrics, ports string
	}{
		{"--healthz-port=0", "", "127.0.0.1:10249", "primary"},
		{"--healthz-port=80 --metrics-port=81", "0.0.0.0:80", "127.0.0.1:81", "primary"},
		{"--bind-address=::1 --metrics-port=81", "0.0.0.0:10256", "[::1]:81", "primary"},
		{"--metrics-bind-address=[2001:db8::1] --healthz-bind-address=", "", "[2001:db8::1]:10249", "primary"},
		// Leading zeros are decimal, as everywhere in Kubernetes.
		{"--bind-address=010.0.0.1 --metrics-bind-address=192.000.2.1", "0.0.0.0:10256", "192.0.2.1:10249", "primary"},
		{"--proxy-mode=iptables", "0.0.0.0:10256", "127.0.0.1:10249", "all"},
		{"--nodeport-addresses=localhost --proxy-mode=iptables", "0.0.0.0:10256", "127.0.0.1:10249", "localhost"},
	} {
		cfg, _, err := load(t, "", strings.Fields(row.args)...)
		if err != nil {
			t.Errorf("%s: %v", row.args, err)
			continue
		}
		if got := strings.Join(cfg.NodePortAddresses, ","); cfg.HealthzBindAddress != row.healthz ||
			cfg.MetricsBindAddress != row.metrics || got != row.ports {
			t.Errorf("%s: %q, %q, %q; want %q, %q, %q", row.args, cfg.HealthzBindAddress, cfg.MetricsBindAddress, got,
				row.healthz, row.metrics, row.ports)
		}
	}
}

func TestTheBindAddressIsCanonical(t *testing.T) {
	for given, want := range map[string]string{"010.0.0.1": "10.0.0.1", "2001:DB8:0::1": "2001:db8::1",
		"::ffff:192.0.2.1": "192.0.2.1"} {
		if cfg, _, err := load(t, "", "--bind-address="+given); err != nil || cfg.BindAddress != want {
			t.Errorf("--bind-address=%s: %v, %v; want %s", given, cfg.BindAddress, err, want)
		}
	}
}

func TestTheNodeNameComesFromFlagFileEnvironmentHostname(t *testing.T) {
	for _, row := range []struct{ file, env, flag, want string }{
		{want: "host-1"},
		{env: " Env ", want: "env"},
		{env: "env", file: "File", want: "file"},
		{env: "env", file: "file", flag: "FLAG", want: "flag"},
	} {
		fset := pflag.NewFlagSet("agent", pflag.ContinueOnError)
		flags := AddFlags(fset)
		flags.getenv = func(string) string { return row.env }
		flags.hostname = func() (string, error) { return "Host-1", nil }
		flags.readFile = func(string) ([]byte, error) { return []byte(shuntHead + "nodeName: " + row.file), nil }
		args := []string{"--config=f"}
		if row.flag != "" {
			args = append(args, "--node-name="+row.flag)
		}
		if err := fset.Parse(args); err != nil {
			t.Fatal(err)
		}
		cfg, _, err := flags.Load()
		if err != nil || cfg.NodeName != row.want {
			t.Errorf("%+v: node name %q, %v", row, cfg.NodeName, err)
		}
	}
}

func TestAnUnusableConfigurationIsAnErrorThatNamesTheField(t *testing.T) {
	kubeProxyHead := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, row := range []struct {
		file string
		args []string
		want string
	}{
		{file: "a: [", want: "read configuration shunt.yaml"},
		{file: "kind: Pod\napiVersion: v1", want: `apiVersion "v1", kind "Pod": want shunt.dev/v1alpha1`},
		{file: "apiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration", want: "want"},
		{file: shuntHead + "maxService: 1", want: `unknown field "maxService"`},
		{file: shuntHead + "MaxServices: 1", want: `unknown field "MaxServices"`},
		{file: shuntHead + "maxServices: 1\nmaxServices: 2", want: "maxServices"},
		{file: shuntHead + "maxServices: -1", want: "maxServices"},
		{file: kubeProxyHead + "mode: ipvs", want: "mode: proxy mode ipvs is refused"},
		{file: kubeProxyHead + "mode: kernelspace", want: "mode: proxy mode \"kernelspace\" is unknown"},
		{file: kubeProxyHead + "featureGates: {NoSuchGate: true}", want: "NoSuchGate"},
		{file: kubeProxyHead + "oomScoreAdj: five", want: "oomScoreAdj"},
		{args: []string{"--config=missing"}, want: "missing"},
		{args: []string{"--node-name= "}, want: "must not be blank"},
		{args: []string{"--feature-gates=NFTablesNetlink"}, want: "want name=true"},
		{args: []string{"--proxy-mode=ipvs"}, want: "ipvs is refused"},
		{args: []string{"--healthz-port=65536"}, want: "0 to 65535"},
		{args: []string{"--config-sync-period=0"}, want: "configSyncPeriod"},
		{args: []string{"--sync-period=0"}, want: "syncPeriod"},
		{args: []string{"--min-sync-period=-1s"}, want: "minSyncPeriod"},
		{args: []string{"--min-sync-period=31s"}, want: "minSyncPeriod: 31s must not exceed"},
		{args: []string{"--bind-address=node"}, want: "bindAddress"},
		{args: []string{"--healthz-bind-address=0.0.0.0:0"}, want: "healthzBindAddress"},
		{args: []string{"--metrics-bind-address=localhost:10249"}, want: "metricsBindAddress"},
		{args: []string{"--nodeport-addresses=primary,primary"}, want: "nodePortAddresses[1]"},
		{args: []string{"--nodeport-addresses=secondary"}, want: "nodePortAddresses[0]"},
		{args: []string{"--detect-local-mode=Guess"}, want: "detectLocalMode"},
		{args: []string{"--detect-local-mode=BridgeInterface"}, want: "podBridgeInterface"},
		{args: []string{"--detect-local-mode=InterfaceNamePrefix"}, want: "podInterfaceNamePrefix"},
		{args: []string{"--cluster-cidr=10.0.0.0"}, want: "clusterCIDR"},
		{args: []string{"--cluster-cidr=10.0.0.0/8,192.0.2.0/24"}, want: "of one family"},
		{args: []string{"--cluster-cidr=10.0.0.0/8,fd00::/64,fd01::/64"}, want: "more than one of each"},
		{args: []string{"--oom-score-adj=1001"}, want: "oomScoreAdj"},
		{args: []string{"--tc-attach=xdp"}, want: "tcAttach"},
		{args: []string{"--devices=eth["}, want: "devices"},
		{args: []string{"--kube-api-burst=-1"}, want: "kubeAPIBurst"},
		{args: []string{"--conntrack-min=-1"}, want: "conntrackMin"},
		{args: []string{"--conntrack-max-per-core=-1"}, want: "conntrackMaxPerCore"},
		{args: []string{"--conntrack-tcp-timeout-established=-1s"}, want: "conntrackTCPTimeoutEstablished"},
		{args: []string{"--conntrack-tcp-timeout-close-wait=-1s"}, want: "conntrackTCPTimeoutCloseWait"},
		{args: []string{"--conntrack-udp-timeout=-1s"}, want: "conntrackUDPTimeout"},
		{args: []string{"--conntrack-udp-timeout-stream=-1s"}, want: "conntrackUDPTimeoutStream"},
		{args: []string{"--socket-lb=some"}, want: "socketLB"},
		{args: []string{"--algorithm=best"}, want: "algorithm"},
		{args: []string{"--bpffs="}, want: "bpffs"},
		{args: []string{"--logging-format=xml"}, want: "loggingFormat"},
	} {
		_, _, err := load(t, row.file, row.args...)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("file %q, flags %q: error %v; want one with %q", row.file, row.args, err, row.want)
		}
	}
}

func TestUnknownAndDoubledFieldsOfAKubeProxyConfigurationAreWarnings(t *testing.T) {
	cfg, warnings, err := load(t, `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
ClusterCIDR: 192.0.2.0/24
detectLocal: {socket: x}
clusterCIDR: 10.0.0.0/8
clusterCIDR: 10.1.0.0/16
`)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(warnings, "\n")
	for _, want := range []string{`unknown field "ClusterCIDR"`, `unknown field "detectLocal.socket"`, `"clusterCIDR" already`} {
		if !strings.Contains(all, want) {
			t.Errorf("warnings lack %q:\n%s", want, all)
		}
	}
	if got := strings.Join(cfg.ClusterCIDRs, ","); got != "10.1.0.0/16" {
		t.Errorf("clusterCIDR %s: want the last one, as kube-proxy takes it", got)
	}
}

func TestTheWrittenConfigurationCanBeReadAgain(t *testing.T) {
	first, _, err := load(t, "", "--max-slots=5", "--cluster-cidr=10.0.0.0/8", "--sync-period=10s", "--node-name=n")
	if err != nil {
		t.Fatal(err)
	}
	text, err := first.YAML()
	if err != nil {
		t.Fatal(err)
	}
	second, warnings, err := load(t, string(text))
	if err != nil || len(warnings) > 0 || !reflect.DeepEqual(first, second) {
		t.Errorf("Load of\n%s= %+v, %v, %q; want %+v", text, second, err, warnings, first)
	}
}

// jsonName returns the name that a file has for a field of Config, empty when it has none.
func jsonName(field string) string {
	f, ok := reflect.TypeFor[Config]().FieldByName(field)
	if !ok || f.Anonymous || !f.IsExported() {
		return ""
	}
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// fieldNames maps the fields of a ShuntConfiguration from their names in lower case.
func fieldNames() map[string]string {
	names := map[string]string{}
	for i := range reflect.TypeFor[Config]().NumField() {
		if name := jsonName(reflect.TypeFor[Config]().Field(i).Name); name != "" {
			names[strings.ToLower(name)] = name
		}
	}
	return names
}
