// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// serviceRow is one frontend. Its JSON names are a contract.
type serviceRow struct {
	portRow
	Kind     string     `json:"kind"`
	Address  netip.Addr `json:"address"`
	Port     uint16     `json:"port"`
	Internal runRow     `json:"internal"`
	External runRow     `json:"external"`
	// ExternalTrafficPolicy is empty for a ClusterIP, which it does not concern.
	ExternalTrafficPolicy  string   `json:"externalTrafficPolicy,omitempty"`
	Algorithm              string   `json:"algorithm"`
	AffinityTimeoutSeconds uint32   `json:"affinityTimeoutSeconds"`
	SourceRanges           []string `json:"sourceRanges,omitempty"`
	// The counters are the service port's: all its frontends show the same.
	Connections uint64 `json:"connections"`
	Refused     uint64 `json:"refused"`
	NoBackend   uint64 `json:"noBackend"`
	// Packets is missing where the packet path has never been on.
	Packets *packetsRow `json:"packets,omitempty"`
}

// packetsRow is the counters of the packet path.
type packetsRow struct {
	Flows          uint64 `json:"flows"`
	PacketsForward uint64 `json:"packetsForward"`
	BytesForward   uint64 `json:"bytesForward"`
	PacketsReply   uint64 `json:"packetsReply"`
	BytesReply     uint64 `json:"bytesReply"`
	Rejected       uint64 `json:"rejected"`
	Dropped        uint64 `json:"dropped"`
}

// runRow is what one kind of client is given.
type runRow struct {
	Set       string `json:"set"`
	Backends  uint32 `json:"backends"`
	Base      uint32 `json:"base"`
	WhenEmpty string `json:"whenEmpty"`
}

func newServicesCommand(common *commonFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "services",
		Short: "List the Service addresses that are programmed in this kernel",
		Example: "  shunt services -n kube-system\n" +
			"  shunt services default/web -o wide",
	}
	return newListing(common, cmd, fromMaps(readServices), serviceColumns)
}

// readServices reads the frontends of the chosen Services, sorted.
func readServices(r maps.Reader, f filter) ([]serviceRow, error) {
	names, err := readNames(r, f)
	if err != nil {
		return nil, err
	}
	ranges, err := readSourceRanges(r)
	if err != nil {
		return nil, err
	}
	var rows []serviceRow
	for entry, err := range r.Services() {
		if err != nil {
			return nil, err
		}
		s, ok := names.get(entry.Value.ServiceID)
		if !ok {
			continue
		}
		row := newServiceRow(entry.Key, entry.Value, s)
		if entry.Value.Flags&maps.ServiceSourceRanges != 0 {
			row.SourceRanges = ranges[row.ServiceID]
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, compareServiceRows)
	return rows, addCounters(r, rows)
}

func newServiceRow(key maps.Frontend, v maps.Service, s *explain.Service) serviceRow {
	address := key.Address.Addr()
	row := serviceRow{
		portRow:   newPortRow(s, model.Protocol(key.Protocol).String(), model.FamilyOf(address).String()),
		Kind:      explain.KindName(v.Kind),
		Address:   address,
		Port:      key.Port,
		Internal:  newRunRow(v.Internal, v.Flags&maps.ServiceInternalLocal != 0, v.Flags&maps.ServiceInternalDrop != 0),
		External:  newRunRow(v.External, v.Flags&maps.ServiceExternalLocal != 0, v.Flags&maps.ServiceExternalDrop != 0),
		Algorithm: algorithmName(v.Algorithm),

		AffinityTimeoutSeconds: v.AffinityTimeout,
	}
	if v.Kind != maps.KindClusterIP {
		row.ExternalTrafficPolicy = "Cluster"
		if v.Flags&maps.ServicePolicyLocal != 0 {
			row.ExternalTrafficPolicy = "Local"
		}
	}
	return row
}

func newRunRow(run maps.Run, local, drop bool) runRow {
	row := runRow{Set: "cluster", Backends: run.Count, Base: run.Base, WhenEmpty: string(explain.Refused)}
	if local {
		row.Set = "local"
	}
	if drop {
		row.WhenEmpty = string(explain.Dropped)
	}
	return row
}

func algorithmName(a uint8) string {
	if a == 0 {
		return "random"
	}
	return fmt.Sprintf("unknown(%d)", a)
}

func compareServiceRows(a, b serviceRow) int {
	return cmp.Or(
		a.comparePorts(b.portRow),
		a.Address.Compare(b.Address),
		cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.ServiceID, b.ServiceID),
	)
}

// readSourceRanges reads all source ranges, sorted, by service id.
func readSourceRanges(r maps.Reader) (map[uint32][]string, error) {
	ranges := map[uint32][]string{}
	for e, err := range r.SourceRanges() {
		if err != nil {
			return nil, err
		}
		ranges[e.ServiceID] = append(ranges[e.ServiceID], explain.RangePrefix(e).String())
	}
	for _, list := range ranges {
		slices.Sort(list)
	}
	return ranges, nil
}

// addCounters reads the counters of all rows at once.
func addCounters(r maps.Reader, rows []serviceRow) error {
	index := map[uint32]int{}
	var ids []uint32
	for _, row := range rows {
		if _, ok := index[row.ServiceID]; !ok {
			index[row.ServiceID] = len(ids)
			ids = append(ids, row.ServiceID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	stats, err := r.ServiceStats(ids)
	if err != nil {
		return err
	}
	packets, err := r.PacketStats(ids)
	if err != nil {
		return err
	}
	for i := range rows {
		at := index[rows[i].ServiceID]
		s := stats[at]
		rows[i].Connections, rows[i].Refused, rows[i].NoBackend = s.Connections, s.Refused, s.NoBackend
		if packets != nil {
			counters := packetsRow(packets[at])
			rows[i].Packets = &counters
		}
	}
	return nil
}

func serviceColumns(rows []serviceRow) []column[serviceRow] {
	columns := portColumns([]column[serviceRow]{
		{title: "FRONTEND", text: func(r serviceRow) string {
			return netip.AddrPortFrom(r.Address, r.Port).String() + "/" + r.Protocol
		}},
		{title: "KIND", text: func(r serviceRow) string { return r.Kind }},
		{title: "BACKENDS", text: func(r serviceRow) string {
			return fmt.Sprintf("%d/%d", r.Internal.Backends, r.External.Backends)
		}},
		{title: "ID", wide: true, text: func(r serviceRow) string { return fmt.Sprint(r.ServiceID) }},
		{title: "INTERNAL", wide: true, text: func(r serviceRow) string { return r.Internal.text() }},
		{title: "EXTERNAL", wide: true, text: func(r serviceRow) string { return r.External.text() }},
		{title: "POLICY", wide: true, text: func(r serviceRow) string { return r.ExternalTrafficPolicy }},
		{title: "AFFINITY", wide: true, text: func(r serviceRow) string { return seconds(uint64(r.AffinityTimeoutSeconds)) }},
		{title: "SOURCES", wide: true, text: func(r serviceRow) string { return strings.Join(r.SourceRanges, ",") }},
		{title: "CONNECTIONS", wide: true, text: func(r serviceRow) string { return strconv.FormatUint(r.Connections, 10) }},
		{title: "REFUSED", wide: true, text: func(r serviceRow) string { return strconv.FormatUint(r.Refused, 10) }},
		{title: "NO-BACKEND", wide: true, text: func(r serviceRow) string { return strconv.FormatUint(r.NoBackend, 10) }},
	}...)
	if slices.ContainsFunc(rows, func(r serviceRow) bool { return r.Packets != nil }) {
		columns = append(columns, packetColumns()...)
	}
	return columns
}

// packetColumns are those of a node with the packet path.
func packetColumns() []column[serviceRow] {
	return []column[serviceRow]{
		{title: "FLOWS", wide: true, text: counter(func(p *packetsRow) uint64 { return p.Flows })},
		{title: "PACKETS", wide: true, text: counter(func(p *packetsRow) uint64 { return p.PacketsForward })},
		{title: "REPLIES", wide: true, text: counter(func(p *packetsRow) uint64 { return p.PacketsReply })},
		{title: "BYTES", wide: true, text: counter(func(p *packetsRow) uint64 { return p.BytesForward + p.BytesReply })},
		{title: "REJECTED", wide: true, text: counter(func(p *packetsRow) uint64 { return p.Rejected })},
		{title: "DROPPED", wide: true, text: counter(func(p *packetsRow) uint64 { return p.Dropped })},
	}
}

// counter shows one counter of the packet path.
func counter(of func(*packetsRow) uint64) func(serviceRow) string {
	return func(r serviceRow) string { return strconv.FormatUint(of(r.Packets), 10) }
}

// text shows a run as set[first cell+count], and what an empty one means.
func (r runRow) text() string {
	if r.Backends == 0 {
		return r.Set + ":" + r.WhenEmpty
	}
	return fmt.Sprintf("%s[%d+%d]", r.Set, r.Base, r.Backends)
}

// seconds shows a duration, nothing for none.
func seconds(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10) + "s"
}
