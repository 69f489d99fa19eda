// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/shunt-lb/shunt/pkg/model"
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
	// Addresses are the client's own, one of each family at most; none when they are not known.
	Addresses []netip.Addr `json:"addresses,omitempty"`
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
	return Client{Kind: Pod, Addresses: []netip.Addr{a.Unmap().WithZone("")}}, nil
}

// Address returns the client's address of a family; invalid when it is not known.
func (c Client) Address(f model.Family) netip.Addr {
	for _, a := range c.Addresses {
		if model.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// String names the client in a sentence.
func (c Client) String() string {
	var who string
	switch {
	case c.Kind == Node:
		who = "a process of the node"
	case c.Kind == External:
		who = "a client outside the node"
	case c.PID != 0:
		who = "process " + strconv.Itoa(c.PID) + " in a pod"
	case len(c.Addresses) > 0:
		who = "a pod"
	default:
		who = "a process in the network namespace " + strconv.FormatUint(c.NetnsCookie, 10)
	}
	if len(c.Addresses) == 0 {
		return who
	}
	words := make([]string, len(c.Addresses))
	for i, a := range c.Addresses {
		words[i] = a.String()
	}
	return who + " (" + strings.Join(words, ", ") + ")"
}
