// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// backendRow is one backend. Its JSON names are a contract.
type backendRow struct {
	portRow
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	// Sets are the endpoint sets that the backend is in: cluster, local.
	Sets      []string `json:"sets"`
	OnNode    bool     `json:"onNode"`
	BackendID uint32   `json:"backendId"`
}

func newBackendsCommand(common *commonFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "backends",
		Short:   "List the backends that are programmed in this kernel",
		Example: "  shunt backends default/web",
	}
	return newListing(common, cmd, fromMaps(readBackends), backendColumns)
}

// readBackends reads the backends of the chosen Services, sorted.
func readBackends(r maps.Reader, f filter) ([]backendRow, error) {
	names, err := readNames(r, f)
	if err != nil {
		return nil, err
	}
	var rows []backendRow
	for b, err := range r.Backends() {
		if err != nil {
			return nil, err
		}
		s, ok := names.get(b.ServiceID)
		if !ok {
			continue
		}
		address := b.Address.Addr()
		rows = append(rows, backendRow{
			portRow:   newPortRow(s, model.Protocol(b.Protocol).String(), model.FamilyOf(address).String()),
			Address:   address,
			Port:      b.Port,
			Sets:      setNames(b.Flags),
			OnNode:    b.Flags&maps.BackendOnNode != 0,
			BackendID: b.BackendID,
		})
	}
	slices.SortFunc(rows, compareBackendRows)
	return rows, nil
}

func setNames(flags maps.BackendFlags) []string {
	sets := []string{}
	if flags&maps.BackendCluster != 0 {
		sets = append(sets, "cluster")
	}
	if flags&maps.BackendLocal != 0 {
		sets = append(sets, "local")
	}
	return sets
}

func compareBackendRows(a, b backendRow) int {
	return cmp.Or(
		a.comparePorts(b.portRow),
		a.Address.Compare(b.Address),
		cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.BackendID, b.BackendID),
	)
}

func backendColumns([]backendRow) []column[backendRow] {
	return portColumns([]column[backendRow]{
		{title: "BACKEND", text: func(r backendRow) string {
			return netip.AddrPortFrom(r.Address, r.Port).String() + "/" + r.Protocol
		}},
		{title: "SETS", text: func(r backendRow) string { return strings.Join(r.Sets, ",") }},
		{title: "NODE", text: func(r backendRow) string {
			if r.OnNode {
				return "this"
			}
			return "other"
		}},
		{title: "ID", wide: true, text: func(r backendRow) string { return fmt.Sprint(r.BackendID) }},
		{title: "SERVICE-ID", wide: true, text: func(r backendRow) string { return fmt.Sprint(r.ServiceID) }},
	}...)
}
