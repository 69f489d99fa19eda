// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// readRows reads what the maps have of the chosen Services, sorted.
type readRows[R any] func(maps.Reader, filter) ([]R, error)

// newListing makes cmd list rows. Before the maps are opened, prepare reads what else is needed: flags, the machine.
func newListing[R any](common *commonFlags, cmd *cobra.Command, prepare func() (readRows[R], error),
	columns func([]R) []column[R]) *cobra.Command {
	choose := addFilter(cmd)
	output := addFormat(cmd, formatTable, formatWide, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := choose.filter(args)
		if err != nil {
			return err
		}
		read, err := prepare()
		if err != nil {
			return err
		}
		return common.withMaps(func(r maps.Reader) error {
			rows, err := read(r, f)
			if err != nil {
				return err
			}
			return printListing(cmd.OutOrStdout(), output.value, rows, columns(rows))
		})
	}
	return cmd
}

// fromMaps is the preparation of a listing that needs none.
func fromMaps[R any](read readRows[R]) func() (readRows[R], error) {
	return func() (readRows[R], error) { return read, nil }
}

// portRow is the service port that a row is about. Its JSON names are a contract.
type portRow struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	PortName  string `json:"portName"`
	Protocol  string `json:"protocol"`
	Family    string `json:"family"`
	ServiceID uint32 `json:"serviceId"`
}

// newPortRow is the row of a service port, whose protocol and family the element says where it has no name.
func newPortRow(s *explain.Service, protocol, family string) portRow {
	return portRow{
		Namespace: s.Namespace, Name: s.Name, PortName: s.Port, Protocol: protocol, Family: family, ServiceID: s.ID,
	}
}

// servicePort is what all rows have.
func (r portRow) servicePort() portRow { return r }

// comparePorts sorts by name; the service id means nothing.
func (r portRow) comparePorts(other portRow) int {
	return cmp.Or(
		cmp.Compare(r.Namespace, other.Namespace),
		cmp.Compare(r.Name, other.Name),
		cmp.Compare(r.PortName, other.PortName),
		cmp.Compare(r.Protocol, other.Protocol),
		cmp.Compare(r.Family, other.Family),
	)
}

// portColumns are the first of each listing, and further are the others.
func portColumns[R interface{ servicePort() portRow }](further ...column[R]) []column[R] {
	return append([]column[R]{
		{title: "NAMESPACE", text: func(r R) string { return r.servicePort().Namespace }},
		{title: "NAME", text: func(r R) string { return nameOrID(r.servicePort().Name, r.servicePort().ServiceID) }},
		{title: "PORT", text: func(r R) string { return r.servicePort().PortName }},
	}, further...)
}
