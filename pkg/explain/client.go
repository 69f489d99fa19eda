// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// ClientKind tells where a client is.
type ClientKind string

// The places a client can be in.
const (
	// Node is a process in the node's own network namespace.
	Node ClientKind = "node"
	// Pod is a process in another network namespace of this node.
	Pod ClientKind = "pod"
	// External is a client outside the node, of which only packets are seen.
	External ClientKind = "external"
)

// Client is who dials.
type Client struct {
	Kind ClientKind `json:"kind"`
	// Address is invalid when it is not known.
	Address netip.Addr `json:"address,omitzero"`
	// NetnsCookie is 0 when it is not known.
	NetnsCookie uint64 `json:"netnsCookie,omitempty"`
	// PID is the process that the network namespace was asked for by; 0 for none.
	PID int `json:"pid,omitempty"`
}

// ParseClient reads node, external, an address, netns:COOKIE or pid:PID. An address is a pod's until Explain finds
// that it is one of the node's own; the cookie of a PID's network namespace is for the caller to find.
func ParseClient(s string) (Client, error) {
	switch s {
	case "", string(Node):
		return Client{Kind: Node}, nil
	case string(External):
		return Client{Kind: External}, nil
	}
	if cookie, ok := strings.CutPrefix(s, "netns:"); ok {
		n, err := strconv.ParseUint(cookie, 10, 64)
		if err != nil || n == 0 {
			return Client{}, fmt.Errorf("read client %q: a network namespace's cookie is a positive number, as shunt "+
				"affinity shows it", s)
		}
		return Client{Kind: Pod, NetnsCookie: n}, nil
	}
	if pid, ok := strings.CutPrefix(s, "pid:"); ok {
		n, err := strconv.Atoi(pid)
		if err != nil || n <= 0 {
			return Client{}, fmt.Errorf("read client %q: a process id is a positive number", s)
		}
		return Client{Kind: Pod, PID: n}, nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return Client{}, fmt.Errorf("read client %q: give node, external, a pod's address, pid:PID or netns:COOKIE", s)
	}
	return Client{Kind: Pod, Address: a.Unmap().WithZone("")}, nil
}

// String names the client in a sentence.
func (c Client) String() string {
	switch {
	case c.Kind == Node && c.Address.IsValid():
		return "a process of the node (" + c.Address.String() + ")"
	case c.Kind == Node:
		return "a process of the node"
	case c.Kind == External && c.Address.IsValid():
		return "a client outside the node (" + c.Address.String() + ")"
	case c.Kind == External:
		return "a client outside the node"
	case c.Address.IsValid():
		return "the pod " + c.Address.String()
	case c.PID != 0:
		return "process " + strconv.Itoa(c.PID)
	}
	return "a process in the network namespace " + strconv.FormatUint(c.NetnsCookie, 10)
}
