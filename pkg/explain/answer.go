// SPDX-License-Identifier: Apache-2.0

package explain

import "net/netip"

// Verdict is what a client experiences.
type Verdict string

// The verdicts.
const (
	// Translated: the connection goes to one of the backends.
	Translated Verdict = "translated"
	// Refused: connect(2) and sendmsg(2) fail at once with ECONNREFUSED.
	Refused Verdict = "refused"
	// Dropped: connect(2) and sendmsg(2) fail at once with ETIMEDOUT, in which a dropped packet would have ended.
	Dropped Verdict = "dropped"
	// Untouched: shunt does nothing; the packet goes where the node's routes send it.
	Untouched Verdict = "untouched"
)

// Reason is why a verdict is what it is.
type Reason string

// The reasons.
const (
	ReasonBackend        Reason = "backend"
	ReasonNoBackend      Reason = "no-backend"
	ReasonPolicy         Reason = "policy"
	ReasonSourceRange    Reason = "source-range"
	ReasonUndefinedPort  Reason = "undefined-port"
	ReasonOnNode         Reason = "address-on-node"
	ReasonNotAService    Reason = "not-a-service"
	ReasonNotANodePort   Reason = "not-a-node-port"
	ReasonProtocol       Reason = "protocol"
	ReasonNoPacketPath   Reason = "no-packet-path"
	ReasonBackendAddress Reason = "backend-address"
	ReasonUnsettled      Reason = "unsettled"
	ReasonClientUnknown  Reason = "client-unknown"
	ReasonHostOnly       Reason = "host-only"
	ReasonNotAttached    Reason = "not-attached"
	ReasonUnallocated    Reason = "unallocated-address"
)

// Answer is what happens to one connection. Its JSON form is part of the command line's contract.
type Answer struct {
	Target   AddressPort `json:"target"`
	Client   Client      `json:"client"`
	Verdict  Verdict     `json:"verdict"`
	Reason   Reason      `json:"reason"`
	Service  *Service    `json:"service,omitempty"`
	Frontend *Frontend   `json:"frontend,omitempty"`
	Affinity *Affinity   `json:"affinity,omitempty"`
	// Backends are those a client of this kind can be given, in the order of the run.
	Backends []Backend `json:"backends,omitempty"`
	Steps    []Step    `json:"steps"`
	// Otherwise tells what would happen in other circumstances.
	Otherwise []string `json:"otherwise,omitempty"`
	// NotHandled tells what shunt leaves alone at this address, and why.
	NotHandled []string `json:"notHandled,omitempty"`
}

// AddressPort is an address with a port and a protocol.
type AddressPort struct {
	Address  netip.Addr `json:"address"`
	Port     uint16     `json:"port"`
	Protocol string     `json:"protocol"`
}

// String writes it as a user does.
func (a AddressPort) String() string {
	return netip.AddrPortFrom(a.Address, a.Port).String() + "/" + a.Protocol
}

// Service is the service port that owns a frontend.
type Service struct {
	ID        uint32 `json:"id"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port,omitempty"`
	Protocol  string `json:"protocol"`
	Family    string `json:"family"`
}

// Frontend is what the lookup found.
type Frontend struct {
	AddressPort
	Kind string `json:"kind"`
	// Set is the endpoint set that this client is given: cluster or local.
	Set string `json:"set"`
	// WhenEmpty is the answer when that set is empty: refused or dropped.
	WhenEmpty    Verdict  `json:"whenEmpty"`
	SourceRanges []string `json:"sourceRanges,omitempty"`
}

// BackendState is the state of a cell of a run.
type BackendState string

// The states of a cell.
const (
	// BackendUsable takes new connections.
	BackendUsable BackendState = "usable"
	// BackendGone has left; the kernel tries the next cells instead.
	BackendGone BackendState = "gone"
)

// Backend is one backend of a run.
type Backend struct {
	ID      uint32     `json:"id"`
	Address netip.Addr `json:"address,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	OnNode  bool       `json:"onNode"`
	// Probability is that of a new connection without affinity.
	Probability float64      `json:"probability"`
	State       BackendState `json:"state"`
}

// Affinity is what session affinity says about this client.
type Affinity struct {
	TimeoutSeconds uint32 `json:"timeoutSeconds"`
	// State is in-force, none, expired, backend-gone or unknown-client.
	State AffinityState `json:"state"`
	// BackendID, Backend and RemainingSeconds are there when State is in-force.
	BackendID        uint32          `json:"backendId,omitempty"`
	Backend          *netip.AddrPort `json:"backend,omitempty"`
	RemainingSeconds uint64          `json:"remainingSeconds,omitempty"`
}

// AffinityState is the state of a client's affinity.
type AffinityState string

// The states of affinity.
const (
	AffinityInForce       AffinityState = "in-force"
	AffinityNone          AffinityState = "none"
	AffinityExpired       AffinityState = "expired"
	AffinityBackendGone   AffinityState = "backend-gone"
	AffinityUnknownClient AffinityState = "unknown-client"
)

// Step is one step of the walk.
type Step struct {
	Topic string `json:"topic"`
	Text  string `json:"text"`
}
