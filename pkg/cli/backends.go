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
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	PortName  string     `json:"portName"`
	Protocol  string     `json:"protocol"`
	Family    string     `json:"family"`
	Address   netip.Addr `json:"address"`
	Port      uint16     `json:"port"`
	// Sets are the endpoint sets that the backend is in: cluster, local.
	Sets      []string `json:"sets"`
	OnNode    bool     `json:"onNode"`
	BackendID uint32   `json:"backendId"`
	ServiceID uint32   `json:"serviceId"`
}

func newBackendsCommand(common *commonFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "backends",
		Short:   "List the backends that are programmed in this kernel",
		Example: "  shunt backends default/web",
	}
	choose := addFilter(cmd)
	output := addFormat(cmd, formatTable, formatWide, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := choose.filter(args)
		if err != nil {
			return err
		}
		return common.withMaps(func(r maps.Reader) error {
			rows, err := readBackends(r, f)
			if err != nil {
				return err
			}
			return printListing(cmd.OutOrStdout(), output.value, rows, backendColumns())
		})
	}
	return cmd
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
			Namespace: s.Namespace, Name: s.Name, PortName: s.Port,
			Protocol:  model.Protocol(b.Protocol).String(),
			Family:    model.FamilyOf(address).String(),
			Address:   address,
			Port:      b.Port,
			Sets:      setNames(b.Flags),
			OnNode:    b.Flags&maps.BackendOnNode != 0,
			BackendID: b.BackendID,
			ServiceID: b.ServiceID,
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
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.PortName, b.PortName),
		cmp.Compare(a.Protocol, b.Protocol),
		cmp.Compare(a.Family, b.Family),
		a.Address.Compare(b.Address),
		cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.BackendID, b.BackendID),
	)
}

func backendColumns() []column[backendRow] {
	return []column[backendRow]{
		{title: "NAMESPACE", text: func(r backendRow) string { return r.Namespace }},
		{title: "NAME", text: func(r backendRow) string { return nameOrID(r.Name, r.ServiceID) }},
		{title: "PORT", text: func(r backendRow) string { return r.PortName }},
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
	}
}
