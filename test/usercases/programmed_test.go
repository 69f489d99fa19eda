// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

// frontend is a line of `shunt services -o json`, as far as it is used here.
type frontend struct {
	Name      string     `json:"name"`
	PortName  string     `json:"portName"`
	Protocol  string     `json:"protocol"`
	Kind      string     `json:"kind"`
	Address   netip.Addr `json:"address"`
	Port      uint16     `json:"port"`
	ServiceID uint32     `json:"serviceId"`
	Internal  struct {
		Backends  int    `json:"backends"`
		WhenEmpty string `json:"whenEmpty"`
	} `json:"internal"`
	SourceRanges []string `json:"sourceRanges"`
	Connections  uint64   `json:"connections"`
	Refused      uint64   `json:"refused"`
	NoBackend    uint64   `json:"noBackend"`
}

// String is "10.96.0.1:80/TCP ClusterIP web 2".
func (f frontend) String() string {
	return fmt.Sprintf("%s/%s %s %s %d", netip.AddrPortFrom(f.Address, f.Port), f.Protocol, f.Kind, f.Name, f.Internal.Backends)
}

func frontends(w *agentlab.World) []frontend {
	w.T.Helper()
	var all []frontend
	w.Must(json.Unmarshal([]byte(w.Shunt("services", "-o", "json")), &all))
	return all
}

// lines are the frontends as text, sorted.
func lines(all []frontend) []string {
	var text []string
	for _, f := range all {
		text = append(text, f.String())
	}
	slices.Sort(text)
	return text
}

// awaitFrontends waits until these are the frontends, and no others.
func awaitFrontends(w *agentlab.World, want ...string) {
	w.T.Helper()
	slices.Sort(want)
	w.Eventually("frontends\n\t"+list(want), func() (bool, string) {
		got := lines(frontends(w))
		return slices.Equal(got, want), "\n\t" + list(got)
	})
}

// backend is a line of `shunt backends -o json`, as far as it is used here.
type backend struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	Sets    []string   `json:"sets"`
}

// awaitUsable waits until these pods, in each family, are what a Service's ports lead to, and nothing else.
func awaitUsable(w *agentlab.World, service string, pods ...*lab.Process) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("%s leads to %d pods", service, len(pods)), func() (bool, string) {
		var all []backend
		w.Must(json.Unmarshal([]byte(w.Shunt("backends", "default/"+service, "-o", "json")), &all))
		found := map[netip.Addr]bool{}
		for _, b := range all {
			if len(b.Sets) > 0 {
				found[b.Address] = true
			}
		}
		ok := len(found) == 2*len(pods)
		for _, pod := range pods {
			ok = ok && found[pod.Address4] && found[pod.Address6]
		}
		for _, f := range frontends(w) {
			ok = ok && (f.Name != service || f.Internal.Backends == len(pods))
		}
		return ok, fmt.Sprint(all)
	})
}

// awaitElements waits until the maps have exactly as many elements, so that nothing has been left behind.
func awaitElements(w *agentlab.World, want map[string]int) {
	w.T.Helper()
	kernel, err := maps.Open(w.Pins(), maps.Options{ReadOnly: true})
	w.Must(err)
	defer kernel.Close()
	w.Eventually(fmt.Sprintf("elements of maps: %v", want), func() (bool, string) {
		usage, err := kernel.Usage()
		w.Must(err)
		ok := true
		var seen []string
		for name, count := range want {
			ok = ok && int(usage[name].Used) == count
			seen = append(seen, fmt.Sprintf("%s %d", name, usage[name].Used))
		}
		slices.Sort(seen)
		return ok, strings.Join(seen, ", ")
	})
}

// boundTo is a line of `shunt affinity -o json`, as far as it is used here.
type boundTo struct {
	Name             string     `json:"name"`
	ClientAddress    netip.Addr `json:"clientAddress"`
	Node             bool       `json:"node"`
	BackendAddress   netip.Addr `json:"backendAddress"`
	State            string     `json:"state"`
	RemainingSeconds int        `json:"remainingSeconds"`
}

func bindings(w *agentlab.World, service string) []boundTo {
	w.T.Helper()
	var all []boundTo
	w.Must(json.Unmarshal([]byte(w.Shunt("affinity", "default/"+service, "-o", "json")), &all))
	return all
}

// counters are the counters of a Service's ports of one protocol, summed over families.
func counters(w *agentlab.World, service, protocol string) (sum frontend) {
	w.T.Helper()
	seen := map[uint32]bool{}
	for _, f := range frontends(w) {
		if f.Name != service || f.Protocol != protocol || seen[f.ServiceID] {
			continue
		}
		seen[f.ServiceID] = true
		sum.Connections += f.Connections
		sum.Refused += f.Refused
		sum.NoBackend += f.NoBackend
	}
	return sum
}

// awaitLog waits until the agent has said all of the words in one line since a mark.
func awaitLog(w *agentlab.World, mark int, words ...string) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("the agent says %q", words), func() (bool, string) {
		said := w.LogText()[mark:]
		for line := range strings.Lines(said) {
			all := true
			for _, word := range words {
				all = all && strings.Contains(line, word)
			}
			if all {
				return true, line
			}
		}
		return false, said
	})
}

// expectCounter wants a counter to have grown by so much.
func expectCounter(t *testing.T, what string, before, after uint64, want int) {
	t.Helper()
	if after-before != uint64(want) {
		t.Errorf("counter %s grew by %d, want %d", what, after-before, want)
	}
}
