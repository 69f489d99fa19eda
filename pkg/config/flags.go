// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// Flags are the agent's flags. What they were given is kept in the order of the command line and applied by Load on
// top of the file.
type Flags struct {
	// ConfigFile is the value of --config, empty for none.
	ConfigFile string
	// InitOnly asks for the privileged settings of the node (ApplySysctls) and nothing else.
	InitOnly bool
	// Cleanup asks for what `shunt cleanup` does.
	Cleanup bool
	// WriteConfigTo is a file to write the effective configuration to, instead of running.
	WriteConfigTo string

	given    []assignment
	readFile func(string) ([]byte, error)
	getenv   func(string) string
	hostname func() (string, error)
}

type assignment struct{ flag, value string }

// AddFlags registers all flags of the agent on fs and returns where their values go.
func AddFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{readFile: os.ReadFile, getenv: os.Getenv, hostname: os.Hostname}
	fs.StringVar(&f.ConfigFile, "config", "", "file with a ShuntConfiguration or a KubeProxyConfiguration; "+
		"flags override it")
	fs.BoolVar(&f.InitOnly, "init-only", false, "make the node settings that need full privileges, and exit")
	fs.BoolVar(&f.Cleanup, "cleanup", false, "remove everything that shunt left on this node, and exit")
	fs.StringVar(&f.WriteConfigTo, "write-config-to", "", "write the effective configuration to this file, and exit")

	// The values land in a Config that nobody reads: only that Set accepted them matters here, and Load sets them
	// again on the Config that it makes.
	scratch := newState()
	scratch.flagSet().VisitAll(func(flag *pflag.Flag) {
		recorded := *flag
		recorded.Value = &recorder{Value: flag.Value, name: flag.Name, flags: f}
		fs.AddFlag(&recorded)
	})
	return f
}

// recorder remembers what a flag was set to.
type recorder struct {
	pflag.Value
	name  string
	flags *Flags
}

func (r *recorder) Set(value string) error {
	if err := r.Value.Set(value); err != nil {
		return err
	}
	r.flags.given = append(r.flags.given, assignment{r.name, value})
	return nil
}

// state is a Config in the making, with what flags say about it that is no field of its own.
type state struct {
	cfg Config
	// mode is kube-proxy's proxy mode: it selects defaults and the block of a KubeProxyConfiguration to read.
	mode         string
	featureGates map[string]bool
}

func newState() *state { return &state{cfg: Default(), featureGates: map[string]bool{}} }

// flagSet returns the flags that change s.
func (s *state) flagSet() *pflag.FlagSet {
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	s.addClusterFlags(fs)
	s.addDatapathFlags(fs)
	s.addServerFlags(fs)
	s.addConntrackFlags(fs)
	s.addKubeProxyFlags(fs)
	return fs
}

func (s *state) addClusterFlags(fs *pflag.FlagSet) {
	c := &s.cfg
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "kubeconfig file (default: the pod's service account)")
	fs.StringSliceVar(&c.APIServers, "apiserver", c.APIServers,
		"addresses of the API servers, tried in turn (default: the kubeconfig's)")
	fs.StringVar(&c.KubeAPIContentType, "kube-api-content-type", c.KubeAPIContentType,
		"content type of requests to the API server")
	fs.StringVar(&c.KubeAPIAcceptContentTypes, "kube-api-accept-content-types", c.KubeAPIAcceptContentTypes,
		"content types asked from the API server (default: its own choice for the content type)")
	fs.Float32Var(&c.KubeAPIQPS, "kube-api-qps", c.KubeAPIQPS, "requests per second to the API server")
	fs.Int32Var(&c.KubeAPIBurst, "kube-api-burst", c.KubeAPIBurst, "requests to the API server in one burst")
	fs.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration,
		"how often all objects are looked at again")
	fs.StringVar(&c.Manifests, "manifests", c.Manifests,
		"directory of Service and EndpointSlice manifests that takes the place of an API server")
	fs.Var((*nodeNameValue)(&c.NodeName), "node-name",
		"name of the Node this runs on (default: $NODE_NAME, else the hostname)")
	fs.StringVar(&c.BindAddress, "bind-address", c.BindAddress,
		"overrides the node's primary address; nothing is bound to it")
}

func (s *state) addDatapathFlags(fs *pflag.FlagSet) {
	c := &s.cfg
	fs.StringVar(&c.CgroupRoot, "cgroup-root", c.CgroupRoot, "cgroup v2 directory to attach to (default: found)")
	fs.StringVar(&c.BPFFS, "bpffs", c.BPFFS, "mount point of the BPF file system")
	fs.StringVar((*string)(&c.SocketLB), "socket-lb", string(c.SocketLB),
		"whose sockets are translated when they connect: all, host (the node's own processes) or off")
	fs.StringVar(&c.Algorithm, "algorithm", c.Algorithm, "how a backend is chosen: random")
	fs.Uint32Var(&c.MaxServices, "max-services", c.MaxServices, "capacity of map services (0: from memory)")
	fs.Uint32Var(&c.MaxBackends, "max-backends", c.MaxBackends, "capacity of map backends (0: from memory)")
	fs.Uint32Var(&c.MaxSlots, "max-slots", c.MaxSlots, "capacity of map slots (0: from memory)")
	fs.Uint32Var(&c.MaxAffinity, "max-affinity", c.MaxAffinity, "capacity of map affinity (0: from memory)")
	fs.Uint32Var(&c.MaxSourceRanges, "max-source-ranges", c.MaxSourceRanges,
		"capacity of map source_ranges (0: from memory)")
	fs.Uint32Var(&c.MaxFlows, "max-flows", c.MaxFlows, "flows that the packet path tracks at once (0: from memory)")
	fs.BoolVar(&c.PacketPath, "packet-path", c.PacketPath,
		"translate packets on the node's devices: for clients outside the cluster, and pods without a socket here")
	fs.StringSliceVar(&c.Devices, "devices", c.Devices,
		"devices for --packet-path: patterns of names, with ! in front to exclude (default: found by kind)")
	fs.StringVar((*string)(&c.TCAttach), "tc-attach", string(c.TCAttach),
		"how --packet-path gets onto devices: tcx (Linux 6.6), clsact, or auto for the first that the kernel has")

	fs.StringVar((*string)(&c.DetectLocalMode), "detect-local-mode", string(c.DetectLocalMode),
		"how pods are recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	fs.StringSliceVar(&c.ClusterCIDRs, "cluster-cidr", c.ClusterCIDRs,
		"range of the pods' addresses, one or one of each family, for --detect-local-mode=ClusterCIDR")
	fs.StringVar(&c.PodBridgeInterface, "pod-bridge-interface", c.PodBridgeInterface,
		"bridge behind which the pods are, for --detect-local-mode=BridgeInterface")
	fs.StringVar(&c.PodInterfaceNamePrefix, "pod-interface-name-prefix", c.PodInterfaceNamePrefix,
		"how the names of pods' interfaces begin, for --detect-local-mode=InterfaceNamePrefix")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", c.NodePortAddresses,
		"prefixes, or primary, localhost, all: the node addresses that serve node ports; a family of which the list "+
			"has no prefix is served on all addresses")
	fs.BoolVar(&c.LocalhostNodePorts, "localhost-nodeports", c.LocalhostNodePorts,
		"serve node ports on loopback to the node's own processes, unless --nodeport-addresses lists prefixes without it")
	fs.BoolVar(&c.RefuseNodePortBind, "refuse-node-port-bind", c.RefuseNodePortBind,
		"let bind(2) of the node's processes fail with EADDRINUSE for a port that is a node port, instead of reporting it")
	fs.BoolVar(&c.MasqueradeAll, "masquerade-all", c.MasqueradeAll,
		"rewrite the source of all packets to ClusterIPs")
	fs.BoolVar(&c.MasqueradeExternal, "masquerade-external", c.MasqueradeExternal,
		"rewrite the source of packets from outside for this node's own backends too, as kube-proxy does with "+
			"externalTrafficPolicy Cluster: for pods whose answers do not come back through this node")
	fs.BoolVar(&c.AllowServiceExternalIPs, "allow-service-external-ips", c.AllowServiceExternalIPs,
		"serve spec.externalIPs")
	fs.DurationVar(&c.SyncPeriod.Duration, "sync-period", c.SyncPeriod.Duration,
		"when a failed sync is repeated; twice of it without progress is unhealthy")
	fs.DurationVar(&c.MinSyncPeriod.Duration, "min-sync-period", c.MinSyncPeriod.Duration, "pause between two syncs")
}

func (s *state) addServerFlags(fs *pflag.FlagSet) {
	c := &s.cfg
	fs.StringVar(&c.HealthzBindAddress, "healthz-bind-address", c.HealthzBindAddress,
		"IP:port of /healthz, /livez and /readyz; empty disables them")
	fs.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress,
		"IP:port of /metrics, /proxyMode and /configz; empty disables them")
	fs.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", c.BindAddressHardFail,
		"exit when one of the two addresses cannot be bound, instead of trying again")
	fs.BoolVar(&c.Profiling, "profiling", c.Profiling, "serve /debug/pprof beside /metrics")
	fs.Int32Var(&c.OOMScoreAdj, "oom-score-adj", c.OOMScoreAdj, "the agent's oom_score_adj, -1000 to 1000")
	fs.StringVar(&c.LoggingFormat, "logging-format", c.LoggingFormat, "text or json")
	fs.Uint32Var(&c.Verbosity, "verbosity", c.Verbosity, "0 to 10; debug lines from 4 on")
}

func (s *state) addConntrackFlags(fs *pflag.FlagSet) {
	c := &s.cfg
	fs.Int32Var(&c.ConntrackMaxPerCore, "conntrack-max-per-core", c.ConntrackMaxPerCore,
		"raise nf_conntrack_max to this many per CPU (0: leave it)")
	fs.Int32Var(&c.ConntrackMin, "conntrack-min", c.ConntrackMin,
		"raise nf_conntrack_max to at least this, when --conntrack-max-per-core is set")
	fs.DurationVar(&c.ConntrackTCPTimeoutEstablished.Duration, "conntrack-tcp-timeout-established",
		c.ConntrackTCPTimeoutEstablished.Duration, "idle timeout of established TCP connections (0: leave it)")
	fs.DurationVar(&c.ConntrackTCPTimeoutCloseWait.Duration, "conntrack-tcp-timeout-close-wait",
		c.ConntrackTCPTimeoutCloseWait.Duration, "timeout of TCP connections in CLOSE_WAIT (0: leave it)")
	fs.BoolVar(&c.ConntrackTCPBeLiberal, "conntrack-tcp-be-liberal", c.ConntrackTCPBeLiberal,
		"let TCP packets outside the window pass")
	fs.DurationVar(&c.ConntrackUDPTimeout.Duration, "conntrack-udp-timeout", c.ConntrackUDPTimeout.Duration,
		"idle timeout of unreplied UDP flows (0: leave it)")
	fs.DurationVar(&c.ConntrackUDPTimeoutStream.Duration, "conntrack-udp-timeout-stream",
		c.ConntrackUDPTimeoutStream.Duration, "idle timeout of replied UDP flows (0: leave it)")
}

// nodeNameValue is a node name: trimmed, lower case, and not blank when it is given.
type nodeNameValue string

func (v *nodeNameValue) String() string { return string(*v) }
func (v *nodeNameValue) Type() string   { return "string" }

func (v *nodeNameValue) Set(value string) error {
	name := canonicalNodeName(value)
	if name == "" {
		return fmt.Errorf("a node name must not be blank")
	}
	*v = nodeNameValue(name)
	return nil
}

func canonicalNodeName(name string) string { return strings.ToLower(strings.TrimSpace(name)) }
