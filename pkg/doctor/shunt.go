// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	shuntmaps "github.com/shunt-lb/shunt/pkg/maps"
)

// The words of the checks.
const (
	wordAgent  = "agent"
	wordHealth = "agent-health"
	wordMaps   = "maps"
	wordFill   = "map-fill"
	wordLinks  = "programs"
)

func checkAgent(f Facts) []Finding {
	switch {
	case f.HolderErr != nil:
		return []Finding{warn(wordAgent, "", "cannot tell whether an agent runs: %v", f.HolderErr)}
	case f.Holder != 0:
		return []Finding{pass(wordAgent, "process %d writes the maps", f.Holder)}
	case f.installed():
		return []Finding{warn(wordAgent, "start shunt agent", "no agent runs: what is programmed goes on working, but no "+
			"change reaches the kernel")}
	}
	return []Finding{warn(wordAgent, "start shunt agent", "no agent runs, and nothing is programmed")}
}

// installed tells whether anything of shunt is in the kernel.
func (f Facts) installed() bool { return !errors.Is(f.MapsErr, shuntmaps.ErrNotPinned) }

// checkHealth asks the agent only if there is one.
func checkHealth(f Facts) []Finding {
	if f.Holder == 0 {
		return nil
	}
	switch {
	case f.Health.Err != nil:
		return []Finding{warn(wordHealth, "if the agent has another --healthz-bind-address, give it with --healthz-address",
			"%s does not answer: %v", f.Health.URL, f.Health.Err)}
	case f.Health.Status != http.StatusOK:
		return []Finding{fail(wordHealth, "see the agent's log", "%s answers %d: changes have been waiting for long",
			f.Health.URL, f.Health.Status)}
	}
	return []Finding{pass(wordHealth, "%s answers 200", f.Health.URL)}
}

func checkMaps(f Facts) []Finding {
	var layout *shuntmaps.LayoutError
	switch {
	case f.MapsErr == nil:
		return []Finding{pass(wordMaps, "%d services, %d backends in %s", f.Usage[shuntmaps.MapServices].Used,
			f.Usage[shuntmaps.MapBackends].Used, f.Pins)}
	case !f.installed():
		return []Finding{warn(wordMaps, "start shunt agent; if it runs with another --bpffs, give that here",
			"nothing is pinned in %s", f.Pins)}
	case errors.As(f.MapsErr, &layout):
		return []Finding{fail(wordMaps, "restart the agent with this version, or use the agent's", "%v", f.MapsErr)}
	}
	return []Finding{fail(wordMaps, "", "%v", f.MapsErr)}
}

// fillWarning is the part of a map, in percent, that makes a warning.
const fillWarning = 80

// checkFill looks at the maps that the agent fills. The LRU maps are full in normal work.
func checkFill(f Facts) []Finding {
	if f.MapsErr != nil {
		return nil
	}
	var findings []Finding
	var highest uint64
	for _, name := range slices.Sorted(maps.Keys(f.Usage)) {
		u := f.Usage[name]
		if name == shuntmaps.MapAffinity || u.Capacity == 0 || !growing(name) {
			continue
		}
		percent := 100 * uint64(u.Used) / uint64(u.Capacity)
		highest = max(highest, percent)
		full := shuntmaps.FullError{Map: name, Size: u.Capacity}
		switch {
		case u.Used >= u.Capacity:
			findings = append(findings, fail(wordFill, "raise the agent's "+full.Flag(), "map %s is full: %d of %d elements",
				name, u.Used, u.Capacity))
		case percent >= fillWarning:
			findings = append(findings, warn(wordFill, "raise the agent's "+full.Flag(), "map %s is %d%% full: %d of %d "+
				"elements", name, percent, u.Used, u.Capacity))
		}
	}
	if len(findings) == 0 {
		return []Finding{pass(wordFill, "the fullest map is %d%% full", highest)}
	}
	return findings
}

// growing tells the maps that hold an element for each thing from arrays of counters, and from conntrack, where flows that
// have ended stay until others need the room.
func growing(name string) bool {
	return name != shuntmaps.MapMeta && name != shuntmaps.MapDrops && name != shuntmaps.MapServiceStats &&
		name != shuntmaps.MapConntrack
}

// checkLinks looks at each hook: a link that is gone, or one that holds a program in a cgroup that is, translates
// nothing.
func checkLinks(f Facts) []Finding {
	if !f.installed() {
		return nil
	}
	if f.LinksErr != nil {
		return []Finding{fail(wordLinks, "", "cannot read the links: %v", f.LinksErr)}
	}
	var findings []Finding
	attached := map[string][]string{}
	var missing []string
	for _, h := range hooks() {
		i := slices.IndexFunc(f.Links, func(l Link) bool { return l.Hook == h.name })
		if i < 0 {
			missing = append(missing, h.name)
			continue
		}
		attached[f.Links[i].where()] = append(attached[f.Links[i].where()], h.name)
	}
	if len(missing) == len(hooks()) && len(f.Packets) > 0 {
		return []Finding{pass(wordLinks, "none: the agent leaves sockets alone (--socket-lb=off), packets are translated")}
	}
	if len(missing) > 0 {
		findings = append(findings, fail(wordLinks, "start shunt agent, or restart it", "not attached: %s: these calls are "+
			"not translated", strings.Join(missing, ", ")))
	}
	for _, where := range slices.Sorted(maps.Keys(attached)) {
		names := strings.Join(attached[where], ", ")
		if len(attached[where]) == len(hooks()) {
			names = "all"
		}
		if strings.HasPrefix(where, rootWords) {
			findings = append(findings, pass(wordLinks, "%s attached to %s", names, where))
			continue
		}
		findings = append(findings, warn(wordLinks, "start the agent without --cgroup-root to translate for all processes",
			"%s attached to %s: processes elsewhere are not translated", names, where))
	}
	return findings
}

const rootWords = "the root cgroup"

// where names the cgroup of a link.
func (l Link) where() string {
	if l.Root {
		return rootWords + " " + l.Cgroup
	}
	return "the cgroup " + l.Cgroup
}
