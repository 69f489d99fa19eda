// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// affinityRow is one client's binding. Its JSON names are a contract.
type affinityRow struct {
	portRow
	// A client is an address or a network namespace. Node is true for this node's own processes.
	ClientAddress netip.Addr `json:"clientAddress,omitzero"`
	NetnsCookie   uint64     `json:"netnsCookie,omitempty"`
	Node          bool       `json:"node"`
	// BackendAddress and BackendPort are missing when the backend is gone.
	BackendID      uint32     `json:"backendId"`
	BackendAddress netip.Addr `json:"backendAddress,omitzero"`
	BackendPort    uint16     `json:"backendPort,omitempty"`
	// State is in-force, expired or backend-gone.
	State            explain.AffinityState `json:"state"`
	IdleSeconds      uint64                `json:"idleSeconds"`
	RemainingSeconds uint64                `json:"remainingSeconds"`
}

func newAffinityCommand(common *commonFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "affinity",
		Short: "List which clients session affinity binds to which backends",
		Long: "List which clients session affinity binds to which backends. A pod is known by the cookie of its network\n" +
			"namespace, the node's own processes together are one client. Entries that have expired, or whose backend is\n" +
			"gone, stay in the map until others need the room; they have no effect.",
		Example: "  shunt affinity default/web",
	}
	return newListing(common, cmd, func() (readRows[affinityRow], error) {
		datapath, err := common.env.datapath(common.bpffs)
		return func(r maps.Reader, f filter) ([]affinityRow, error) {
			return readAffinity(r, f, datapath.NodeCookie, common.env.monotonic())
		}, err
	}, affinityColumns)
}

// readAffinity reads the affinity of the chosen Services, sorted.
func readAffinity(r maps.Reader, f filter, nodeCookie, now uint64) ([]affinityRow, error) {
	names, err := readNames(r, f)
	if err != nil {
		return nil, err
	}
	timeouts, err := readTimeouts(r)
	if err != nil {
		return nil, err
	}
	var rows []affinityRow
	for entry, err := range r.AffinityEntries() {
		if err != nil {
			return nil, err
		}
		s, ok := names.get(entry.Key.ServiceID)
		if !ok {
			continue
		}
		row := newAffinityRow(entry.Key, entry.Value, s, nodeCookie)
		row.age(entry.Value.LastUsedNs, now, timeouts[row.ServiceID])
		b, ok, err := r.Backend(row.BackendID)
		if err != nil {
			return nil, err
		}
		if ok && b.ServiceID == row.ServiceID {
			row.BackendAddress, row.BackendPort = b.Address.Addr(), b.Port
		} else {
			row.State, row.RemainingSeconds = explain.AffinityBackendGone, 0
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, compareAffinityRows)
	return rows, nil
}

func newAffinityRow(key maps.AffinityKey, v maps.AffinityValue, s *explain.Service, nodeCookie uint64) affinityRow {
	row := affinityRow{
		portRow:     newPortRow(s, s.Protocol, s.Family),
		NetnsCookie: key.NetnsCookie,
		Node:        key.NetnsCookie != 0 && key.NetnsCookie == nodeCookie,
		BackendID:   v.BackendID,
	}
	if key.Client != (maps.Address{}) {
		row.ClientAddress = key.Client.Addr()
	}
	return row
}

// age works out what is left of an entry's time. A Service without affinity any more leaves it expired.
func (r *affinityRow) age(lastUsed, now uint64, timeout uint32) {
	r.IdleSeconds = (now - min(lastUsed, now)) / 1e9
	r.State = explain.AffinityExpired
	if r.IdleSeconds < uint64(timeout) {
		r.State = explain.AffinityInForce
		r.RemainingSeconds = uint64(timeout) - r.IdleSeconds
	}
}

// readTimeouts reads the affinity timeout of each service id that has one.
func readTimeouts(r maps.Reader) (map[uint32]uint32, error) {
	timeouts := map[uint32]uint32{}
	for entry, err := range r.Services() {
		if err != nil {
			return nil, err
		}
		if entry.Value.AffinityTimeout != 0 {
			timeouts[entry.Value.ServiceID] = entry.Value.AffinityTimeout
		}
	}
	return timeouts, nil
}

func compareAffinityRows(a, b affinityRow) int {
	return cmp.Or(
		a.comparePorts(b.portRow),
		cmp.Compare(a.ServiceID, b.ServiceID),
		a.ClientAddress.Compare(b.ClientAddress),
		cmp.Compare(a.NetnsCookie, b.NetnsCookie),
	)
}

func (r affinityRow) client() string {
	switch {
	case r.Node:
		return "node"
	case r.ClientAddress.IsValid():
		return r.ClientAddress.String()
	}
	return fmt.Sprintf("netns:%d", r.NetnsCookie)
}

func affinityColumns([]affinityRow) []column[affinityRow] {
	return portColumns([]column[affinityRow]{
		{title: "PROTOCOL", text: func(r affinityRow) string { return r.Protocol }},
		{title: "CLIENT", text: affinityRow.client},
		{title: "BACKEND", text: func(r affinityRow) string {
			if r.BackendAddress.IsValid() {
				return netip.AddrPortFrom(r.BackendAddress, r.BackendPort).String()
			}
			return fmt.Sprintf("(id %d)", r.BackendID)
		}},
		{title: "STATE", text: func(r affinityRow) string { return string(r.State) }},
		{title: "REMAINING", text: func(r affinityRow) string { return seconds(r.RemainingSeconds) }},
		{title: "FAMILY", wide: true, text: func(r affinityRow) string { return r.Family }},
		{title: "IDLE", wide: true, text: func(r affinityRow) string { return fmt.Sprintf("%ds", r.IdleSeconds) }},
		{title: "NETNS-COOKIE", wide: true, text: func(r affinityRow) string {
			if r.NetnsCookie == 0 {
				return ""
			}
			return fmt.Sprint(r.NetnsCookie)
		}},
		{title: "BACKEND-ID", wide: true, text: func(r affinityRow) string { return fmt.Sprint(r.BackendID) }},
		{title: "SERVICE-ID", wide: true, text: func(r affinityRow) string { return fmt.Sprint(r.ServiceID) }},
	}...)
}
