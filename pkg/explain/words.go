// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// KindName is the word for a kind of frontend in all output.
func KindName(k maps.ServiceKind) string {
	switch k {
	case maps.KindClusterIP:
		return "ClusterIP"
	case maps.KindExternalIP:
		return "ExternalIP"
	case maps.KindLoadBalancer:
		return "LoadBalancer"
	case maps.KindNodePort:
		return "NodePort"
	}
	return fmt.Sprintf("unknown(%d)", uint8(k))
}

func kindWords(k maps.ServiceKind, port uint16) string {
	switch k {
	case maps.KindNodePort:
		return fmt.Sprintf("Node port %d", port)
	case maps.KindExternalIP:
		return "External IP"
	case maps.KindLoadBalancer:
		return "Load-balancer address"
	}
	return KindName(k)
}

// ServiceOf returns the names that belong to a service id.
func ServiceOf(id uint32, n maps.ServiceName) *Service {
	return &Service{
		ID:        id,
		Namespace: maps.Text(n.Namespace[:]),
		Name:      maps.Text(n.Name[:]),
		Port:      maps.Text(n.Port[:]),
		Protocol:  model.Protocol(n.Protocol).String(),
		Family:    model.Family(n.Family).String(),
	}
}

// String names the service port in a sentence.
func (s *Service) String() string {
	name := "Service " + s.Namespace + "/" + s.Name
	if s.Port != "" {
		name += ", port " + s.Port
	}
	return name
}

func compareAddressPorts(a, b AddressPort) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// WriteText writes the answer for people.
func (a Answer) WriteText(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, dialled by %s: %s\n\n", a.Target, a.Client, strings.ToUpper(string(a.Verdict)))
	for _, s := range a.Steps {
		writeParagraph(&b, fmt.Sprintf("  %-10s", s.Topic), s.Text)
	}
	a.writeBackends(&b)
	writeList(&b, "Otherwise", a.Otherwise)
	writeList(&b, "Not handled", a.NotHandled)
	_, err := io.WriteString(out, b.String())
	return err
}

// lineWidth is where the texts are broken.
const lineWidth = 100

// writeParagraph writes text beside its topic.
func writeParagraph(b *strings.Builder, topic, text string) {
	line := topic
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case len(line)+1+len(word) > lineWidth:
			fmt.Fprintln(b, line)
			line = strings.Repeat(" ", len(topic)) + word
		default:
			line += " " + word
		}
	}
	fmt.Fprintln(b, line)
}

func writeList(b *strings.Builder, title string, items []string) {
	if len(items) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n", title)
	for _, item := range items {
		writeParagraph(b, "  - ", item)
	}
}

func (a Answer) writeBackends(b *strings.Builder) {
	if len(a.Backends) == 0 {
		return
	}
	fmt.Fprintln(b)
	t := tabwriter.NewWriter(b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "  BACKEND\tPROBABILITY\tSTATE")
	for _, backend := range a.Backends {
		address, state := netip.AddrPortFrom(backend.Address, backend.Port).String(), "another node"
		if backend.OnNode {
			state = "on this node"
		}
		if backend.State == BackendGone {
			address, state = fmt.Sprintf("(id %d)", backend.ID), "gone"
		}
		if a.Affinity != nil && a.Affinity.State == AffinityInForce && a.Affinity.BackendID == backend.ID {
			state += ", this client's by affinity"
		}
		fmt.Fprintf(t, "  %s\t%.1f%%\t%s\n", address, 100*backend.Probability, state)
	}
	t.Flush()
}
