// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The type of shunt's own configuration file.
const (
	APIVersion = "shunt.dev/v1alpha1"
	Kind       = "ShuntConfiguration"
)

// The ports of the two servers, kube-proxy's own so that probes and scrapers need no change.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

// Duration is a time.Duration that a file writes as "30s".
type Duration = metav1.Duration

// SocketLB says whose sockets are translated when they connect.
type SocketLB string

// The values of SocketLB.
const (
	SocketLBAll  SocketLB = "all"
	SocketLBHost SocketLB = "host"
	SocketLBOff  SocketLB = "off"
)

// TCAttach says how the packet programs get onto devices.
type TCAttach string

// The values of TCAttach.
const (
	TCAttachAuto   TCAttach = "auto"
	TCAttachTCX    TCAttach = "tcx"
	TCAttachClsact TCAttach = "clsact"
)

// LocalMode says how a client is recognised as a pod of the cluster.
type LocalMode string

// The values of LocalMode, kube-proxy's own.
const (
	LocalModeClusterCIDR         LocalMode = "ClusterCIDR"
	LocalModeNodeCIDR            LocalMode = "NodeCIDR"
	LocalModeBridgeInterface     LocalMode = "BridgeInterface"
	LocalModeInterfaceNamePrefix LocalMode = "InterfaceNamePrefix"
)

// AlgorithmRandom picks a backend at random for each connection.
const AlgorithmRandom = "random"

// The keywords of NodePortAddresses.
const (
	NodePortsPrimary   = "primary"
	NodePortsLocalhost = "localhost"
	NodePortsAll       = "all"
)

// The log formats.
const (
	LogText = "text"
	LogJSON = "json"
)

// Config is the effective configuration of an agent. It is also the ShuntConfiguration of a file: a field's name there
// is its flag's name without the dashes.
type Config struct {
	metav1.TypeMeta `json:",inline"`

	// Kubeconfig is a file; empty means the pod's own service account.
	Kubeconfig string `json:"kubeconfig"`
	// APIServers are tried in turn. They must be reachable without a Service. Empty: the kubeconfig's server.
	APIServers                []string `json:"apiserver"`
	KubeAPIContentType        string   `json:"kubeAPIContentType"`
	KubeAPIAcceptContentTypes string   `json:"kubeAPIAcceptContentTypes"`
	KubeAPIQPS                float32  `json:"kubeAPIQPS"`
	KubeAPIBurst              int32    `json:"kubeAPIBurst"`
	// ConfigSyncPeriod is how often the informers hand over everything again.
	ConfigSyncPeriod Duration `json:"configSyncPeriod"`
	// Manifests is a directory that takes the API server's place.
	Manifests string `json:"manifests"`
	// NodeName is compared byte for byte with the endpoints' nodeName.
	NodeName string `json:"nodeName"`
	// BindAddress overrides the node's primary address; nothing is bound to it. Unspecified: the Node object's.
	BindAddress string `json:"bindAddress"`

	// CgroupRoot is the cgroup v2 directory to attach to; empty: found.
	CgroupRoot string   `json:"cgroupRoot"`
	BPFFS      string   `json:"bpffs"`
	SocketLB   SocketLB `json:"socketLB"`
	Algorithm  string   `json:"algorithm"`
	// The capacities of the maps; 0: from the node's memory.
	MaxServices     uint32 `json:"maxServices"`
	MaxBackends     uint32 `json:"maxBackends"`
	MaxSlots        uint32 `json:"maxSlots"`
	MaxAffinity     uint32 `json:"maxAffinity"`
	MaxSourceRanges uint32 `json:"maxSourceRanges"`
	MaxFlows        uint32 `json:"maxFlows"`
	// PacketPath translates packets on the node's devices, for clients without a socket here.
	PacketPath bool `json:"packetPath"`
	// Devices are patterns of names, with ! in front to exclude; none: chosen by kind.
	Devices  []string `json:"devices"`
	TCAttach TCAttach `json:"tcAttach"`

	DetectLocalMode        LocalMode `json:"detectLocalMode"`
	ClusterCIDRs           []string  `json:"clusterCIDR"`
	PodBridgeInterface     string    `json:"podBridgeInterface"`
	PodInterfaceNamePrefix string    `json:"podInterfaceNamePrefix"`
	// NodePortAddresses are prefixes and keywords; never empty after Load.
	NodePortAddresses []string `json:"nodePortAddresses"`
	// LocalhostNodePorts serves node ports on loopback and on the unspecified address to the node's own processes,
	// unless NodePortAddresses lists prefixes and none of them covers loopback (see LoopbackNodePorts).
	LocalhostNodePorts bool `json:"localhostNodePorts"`
	// RefuseNodePortBind makes it an error for the node's processes to bind a port that a node port uses.
	RefuseNodePortBind bool `json:"refuseNodePortBind"`
	// MasqueradeAll gives connections to ClusterIPs that come from outside the socket path a node's source address.
	MasqueradeAll bool `json:"masqueradeAll"`
	// MasqueradeExternal gives a node's source address to what comes from outside for a backend of this node, too.
	MasqueradeExternal bool `json:"masqueradeExternal"`
	// AllowServiceExternalIPs is the feature gate of that name: without it spec.externalIPs counts as empty.
	AllowServiceExternalIPs bool `json:"allowServiceExternalIPs"`
	// SyncPeriod is when a failed sync is repeated at the latest; twice of it without progress is unhealthy.
	SyncPeriod Duration `json:"syncPeriod"`
	// MinSyncPeriod is the pause between two syncs.
	MinSyncPeriod Duration `json:"minSyncPeriod"`

	// HealthzBindAddress and MetricsBindAddress are IP:port; empty: no such server.
	HealthzBindAddress  string `json:"healthzBindAddress"`
	MetricsBindAddress  string `json:"metricsBindAddress"`
	BindAddressHardFail bool   `json:"bindAddressHardFail"`
	Profiling           bool   `json:"profiling"`

	OOMScoreAdj int32 `json:"oomScoreAdj"`
	// The kernel's own connection tracking; 0 (false) leaves a setting alone.
	ConntrackMaxPerCore            int32    `json:"conntrackMaxPerCore"`
	ConntrackMin                   int32    `json:"conntrackMin"`
	ConntrackTCPTimeoutEstablished Duration `json:"conntrackTCPTimeoutEstablished"`
	ConntrackTCPTimeoutCloseWait   Duration `json:"conntrackTCPTimeoutCloseWait"`
	ConntrackTCPBeLiberal          bool     `json:"conntrackTCPBeLiberal"`
	ConntrackUDPTimeout            Duration `json:"conntrackUDPTimeout"`
	ConntrackUDPTimeoutStream      Duration `json:"conntrackUDPTimeoutStream"`

	LoggingFormat string `json:"loggingFormat"`
	// Verbosity is kube-proxy's: from 4 on the log holds debug lines.
	Verbosity uint32 `json:"verbosity"`

	// conntrackBestEffort: the conntrack values that are set are kube-proxy's defaults, which nobody asked for by
	// name, so a node that does not let them be written is no error.
	conntrackBestEffort map[string]bool
}

// Default returns the configuration of an agent that is told nothing.
func Default() Config {
	return Config{
		TypeMeta:                metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		KubeAPIContentType:      "application/vnd.kubernetes.protobuf",
		KubeAPIQPS:              5,
		KubeAPIBurst:            10,
		ConfigSyncPeriod:        Duration{Duration: 15 * time.Minute},
		BindAddress:             "0.0.0.0",
		BPFFS:                   "/sys/fs/bpf",
		SocketLB:                SocketLBAll,
		Algorithm:               AlgorithmRandom,
		PacketPath:              true,
		TCAttach:                TCAttachAuto,
		DetectLocalMode:         LocalModeClusterCIDR,
		NodePortAddresses:       []string{NodePortsPrimary},
		LocalhostNodePorts:      true,
		AllowServiceExternalIPs: true,
		SyncPeriod:              Duration{Duration: 30 * time.Second},
		HealthzBindAddress:      defaultHealthzAddress("0.0.0.0"),
		MetricsBindAddress:      defaultMetricsAddress("0.0.0.0"),
		OOMScoreAdj:             -999,
		LoggingFormat:           LogText,
	}
}
