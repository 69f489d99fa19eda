// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// flowRow is one flow of the packet path. Its JSON names are a contract.
type flowRow struct {
	portRow
	BackendID uint32 `json:"backendId"`
	// The client dials the frontend; the backend is dialled instead, and sees the source.
	Client   netip.AddrPort `json:"client"`
	Frontend netip.AddrPort `json:"frontend"`
	Source   netip.AddrPort `json:"source"`
	Backend  netip.AddrPort `json:"backend"`
	// Masqueraded: the backend sees another address than the client's. FromNode: a process of this node dialled.
	Masqueraded bool           `json:"masqueraded"`
	FromNode    bool           `json:"fromNode"`
	State       maps.FlowState `json:"state"`
	// Half: one of the directions is missing; it is made again with the next packet.
	Half             bool   `json:"half"`
	AgeSeconds       uint64 `json:"ageSeconds"`
	IdleSeconds      uint64 `json:"idleSeconds"`
	RemainingSeconds uint64 `json:"remainingSeconds"`
	PacketsForward   uint64 `json:"packetsForward"`
	BytesForward     uint64 `json:"bytesForward"`
	PacketsReply     uint64 `json:"packetsReply"`
	BytesReply       uint64 `json:"bytesReply"`
}

// flowFilter chooses flows.
type flowFilter struct {
	client, backend string
	expired         bool

	clients  netip.Prefix
	backends func(netip.AddrPort) bool
}

func newConntrackCommand(common *commonFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "conntrack",
		Short: "List the flows that the packet path translates",
		Long: "List the flows that the packet path translates: those of clients outside the cluster, and of pods whose sockets\n" +
			"are not translated. Connections that were translated in a socket are no flows here. Flows that have ended stay\n" +
			"in the map until a new one needs the room; they have no effect and are shown with --expired alone.",
		Example: "  shunt conntrack default/web\n" +
			"  shunt conntrack --client 198.51.100.0/24 --backend 10.244.1.2:8080 -o wide",
	}
	flows := &flowFilter{}
	cmd.Flags().StringVar(&flows.client, "client", "", "only flows of these clients: ADDRESS or ADDRESS/BITS")
	cmd.Flags().StringVar(&flows.backend, "backend", "", "only flows to this backend: ADDRESS or ADDRESS:PORT")
	cmd.Flags().BoolVar(&flows.expired, "expired", false, "also flows that have ended")
	return newListing(common, cmd, func() (readRows[flowRow], error) {
		return func(r maps.Reader, f filter) ([]flowRow, error) {
			return readFlows(r, f, flows, common.env.monotonic())
		}, flows.parse()
	}, flowColumns)
}

// parse reads what the flags say.
func (f *flowFilter) parse() error {
	f.backends = func(netip.AddrPort) bool { return true }
	if f.client != "" {
		clients, err := netip.ParsePrefix(f.client)
		if address, single := netip.ParseAddr(f.client); single == nil {
			clients, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			return fmt.Errorf("choose flows: %q is neither an ADDRESS nor ADDRESS/BITS", f.client)
		}
		f.clients = clients.Masked()
	}
	if f.backend == "" {
		return nil
	}
	if address, err := netip.ParseAddr(f.backend); err == nil {
		f.backends = func(b netip.AddrPort) bool { return b.Addr() == address }
		return nil
	}
	backend, err := netip.ParseAddrPort(f.backend)
	if err != nil {
		return fmt.Errorf("choose flows: %q is neither an ADDRESS nor ADDRESS:PORT", f.backend)
	}
	f.backends = func(b netip.AddrPort) bool { return b == backend }
	return nil
}

func (f *flowFilter) match(r flowRow) bool {
	return (!f.clients.IsValid() || f.clients.Contains(r.Client.Addr())) && f.backends(r.Backend) &&
		(f.expired || r.State != maps.FlowExpired)
}

// errNoPacketPath tells that there is nothing to list.
var errNoPacketPath = errors.New("list flows: the packet path has never been on here: start the agent with --packet-path")

// readFlows reads the chosen flows, sorted.
func readFlows(r maps.Reader, f filter, flows *flowFilter, now uint64) ([]flowRow, error) {
	settings, ok, err := r.PacketSettings()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errNoPacketPath
	}
	names, err := readNames(r, f)
	if err != nil {
		return nil, err
	}
	elements := map[maps.ConntrackKey]maps.ConntrackValue{}
	for entry, err := range r.Flows() {
		if err != nil {
			return nil, err
		}
		elements[entry.Key] = entry.Value
	}
	var rows []flowRow
	for key, value := range elements {
		s, ok := names.get(value.To.ServiceID)
		if !ok {
			continue
		}
		row, ok := flowOf(elements, key, value, s)
		if !ok {
			continue
		}
		row.age(settings, elements, key, now)
		if flows.match(row) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, compareFlowRows)
	return rows, nil
}

// flowOf makes a row of the forward direction, or of a reply that has lost it.
func flowOf(elements map[maps.ConntrackKey]maps.ConntrackValue, key maps.ConntrackKey, v maps.ConntrackValue,
	s *explain.Service) (flowRow, bool) {
	_, both := elements[key.Other(v.To)]
	reply := v.To.Flags&maps.ConntrackReply != 0
	if reply && both {
		return flowRow{}, false // the other element is this flow's row
	}
	row := flowRow{
		portRow:   newPortRow(s, model.Protocol(key.Protocol).String(), model.FamilyOf(key.Source.Addr()).String()),
		BackendID: v.To.BackendID,
		Client:    addrPort(key.Source, key.SourcePort),
		Frontend:  addrPort(key.Destination, key.DestinationPort),
		Source:    addrPort(v.To.Source, v.To.SourcePort),
		Backend:   addrPort(v.To.Destination, v.To.DestinationPort),
		FromNode:  v.To.Flags&maps.ConntrackFromNode != 0,
		Half:      !both,
	}
	if reply {
		row.Client, row.Frontend, row.Source, row.Backend = row.Backend, row.Source, row.Frontend, row.Client
	}
	row.Masqueraded = row.Client.Addr() != row.Source.Addr()
	return row, true
}

func addrPort(a maps.Address, port uint16) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), port) }

// age adds what has passed, in both directions, and what is left of the flow's time.
func (r *flowRow) age(settings maps.PacketSettings, elements map[maps.ConntrackKey]maps.ConntrackValue,
	key maps.ConntrackKey, now uint64) {
	flow := maps.Flow{Protocol: key.Protocol}
	one := elements[key]
	forward, reply := &flow.Forward, &flow.Reply
	if one.To.Flags&maps.ConntrackReply != 0 {
		forward, reply = reply, forward
	}
	*forward = &one
	if other, ok := elements[key.Other(one.To)]; ok {
		*reply = &other
	}
	state, left := flow.State(settings, now)
	r.State, r.RemainingSeconds = state, uint64(left.Seconds())
	r.AgeSeconds = (now - min(now, one.CreatedNs)) / 1e9
	r.IdleSeconds = (now - min(now, flow.LastSeenNs())) / 1e9
	if flow.Forward != nil {
		r.PacketsForward, r.BytesForward = flow.Forward.Packets, flow.Forward.Bytes
	}
	if flow.Reply != nil {
		r.PacketsReply, r.BytesReply = flow.Reply.Packets, flow.Reply.Bytes
	}
}

func compareFlowRows(a, b flowRow) int {
	return cmp.Or(
		a.comparePorts(b.portRow),
		a.Client.Compare(b.Client),
		a.Frontend.Compare(b.Frontend),
		cmp.Compare(a.ServiceID, b.ServiceID),
	)
}

func flowColumns([]flowRow) []column[flowRow] {
	number := func(of func(flowRow) uint64) func(flowRow) string {
		return func(r flowRow) string { return strconv.FormatUint(of(r), 10) }
	}
	return portColumns([]column[flowRow]{
		{title: "PROTOCOL", text: func(r flowRow) string { return r.Protocol }},
		{title: "CLIENT", text: func(r flowRow) string { return r.Client.String() }},
		{title: "FRONTEND", text: func(r flowRow) string { return r.Frontend.String() }},
		{title: "BACKEND", text: func(r flowRow) string { return r.Backend.String() }},
		{title: "STATE", text: func(r flowRow) string { return string(r.State) }},
		{title: "SEEN-AS", wide: true, text: flowRow.seenAs},
		{title: "AGE", wide: true, text: func(r flowRow) string { return fmt.Sprintf("%ds", r.AgeSeconds) }},
		{title: "IDLE", wide: true, text: func(r flowRow) string { return fmt.Sprintf("%ds", r.IdleSeconds) }},
		{title: "REMAINING", wide: true, text: func(r flowRow) string { return seconds(r.RemainingSeconds) }},
		{title: "PACKETS", wide: true, text: number(func(r flowRow) uint64 { return r.PacketsForward })},
		{title: "REPLIES", wide: true, text: number(func(r flowRow) uint64 { return r.PacketsReply })},
		{title: "BYTES", wide: true, text: number(func(r flowRow) uint64 { return r.BytesForward + r.BytesReply })},
	}...)
}

// seenAs is what the backend takes for the client, where it is not the client.
func (r flowRow) seenAs() string {
	if r.Source == r.Client {
		return ""
	}
	return r.Source.String()
}
