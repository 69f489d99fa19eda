// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
)

// desired is a whole desired state.
type desired map[model.ServiceName][]model.ServicePort

// dice throws what its bytes say, and zeros when they are used up.
type dice struct{ bytes []byte }

func (d *dice) roll(sides int) int {
	if len(d.bytes) == 0 {
		return 0
	}
	b := d.bytes[0]
	d.bytes = d.bytes[1:]
	return int(b) % sides
}

func (d *dice) coin() bool { return d.roll(2) == 1 }

// state throws a desired state from a small world, in which the same frontends and backends come again and again.
func (d *dice) state() desired {
	all := desired{}
	taken := map[model.FrontendKey]bool{}
	for s := range d.roll(5) {
		name := model.ServiceName{Namespace: "ns", Name: fmt.Sprint("s", s)}
		for port := range d.roll(3) {
			p := d.port(name, fmt.Sprint("p", port), taken)
			all[name] = append(all[name], p)
		}
	}
	return all
}

func (d *dice) port(service model.ServiceName, port string, taken map[model.FrontendKey]bool) model.ServicePort {
	p := model.ServicePort{Name: model.ServicePortName{
		ServiceName: service, Port: port, Protocol: model.TCP, Family: model.IPv4,
	}}
	for range d.roll(6) {
		p.Backends = append(p.Backends, model.Backend{
			Address: netip.AddrFrom4([4]byte{10, 244, 0, byte(d.roll(6))}),
			Port:    8080,
			OnNode:  d.coin(),
			Cluster: true,
			Local:   d.coin(),
		})
	}
	for i := range p.Backends {
		// One in three is in the local set alone.
		p.Backends[i].Cluster = !p.Backends[i].Local || d.roll(3) > 0
	}
	slices.SortFunc(p.Backends, func(a, b model.Backend) int { return a.Address.Compare(b.Address) })
	p.Backends = slices.CompactFunc(p.Backends, func(a, b model.Backend) bool { return a.Address == b.Address })
	for range 1 + d.roll(3) {
		f := d.frontend()
		if !taken[f.FrontendKey] {
			taken[f.FrontendKey] = true
			p.Frontends = append(p.Frontends, f)
		}
	}
	if d.coin() {
		p.Affinity = time.Duration(d.roll(3)) * 1500 * time.Millisecond
	}
	for i := range d.roll(4) {
		p.SourceRanges = append(p.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(i + d.roll(3))}), 8))
	}
	slices.SortFunc(p.SourceRanges, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	p.SourceRanges = slices.Compact(p.SourceRanges)
	return p
}

func (d *dice) frontend() model.Frontend {
	f := model.Frontend{Kind: model.Kind(1 + d.roll(4)), PolicyLocal: d.coin()}
	f.FrontendKey = model.FrontendKey{Port: uint16(80 + d.roll(2)), Protocol: model.TCP}
	f.Address = netip.AddrFrom4([4]byte{10, 96, 0, byte(d.roll(4))})
	if f.Kind == model.NodePort {
		f.Address = netip.IPv4Unspecified()
	}
	f.Internal = model.Target{Local: d.coin()}
	f.External = model.Target{Local: d.coin()}
	f.Internal.Drop, f.External.Drop = f.Internal.Local, f.External.Local
	return f
}

// changes returns the way from one desired state to another: all Services of both.
func changes(from, to desired) []plan.Change {
	var all []plan.Change
	for name, ports := range to {
		all = append(all, plan.Change{Service: name, Ports: ports})
	}
	for name := range from {
		if _, stays := to[name]; !stays {
			all = append(all, plan.Change{Service: name})
		}
	}
	slices.SortFunc(all, func(a, b plan.Change) int { return a.Service.Compare(b.Service) })
	return all
}

// owners tells which service port has which frontend.
func (d desired) owners() map[model.FrontendKey]model.ServicePortName {
	all := map[model.FrontendKey]model.ServicePortName{}
	for _, ports := range d {
		for _, p := range ports {
			for _, f := range p.Frontends {
				all[f.FrontendKey] = p.Name
			}
		}
	}
	return all
}

// content is what the maps hold, without ids: lines by service port.
type content map[model.ServicePortName][]string

func (c content) add(name model.ServicePortName, format string, values ...any) {
	c[name] = append(c[name], fmt.Sprintf(format, values...))
}

// content says what the maps should hold.
func (d desired) content() content {
	c := content{}
	for _, ports := range d {
		for _, p := range ports {
			if len(p.Frontends) == 0 {
				continue
			}
			c.add(p.Name, "name")
			for _, b := range p.Backends {
				c.add(p.Name, "backend %s", backendLine(b.Address, b.Port, b.Cluster, b.Local, b.OnNode))
			}
			for _, r := range p.SourceRanges {
				c.add(p.Name, "range %s", r)
			}
			for _, f := range p.Frontends {
				affinity := int((p.Affinity + time.Second - 1) / time.Second)
				c.add(p.Name, "frontend %s kind %d policy-local %t ranges %t affinity %d internal %s external %s",
					f.FrontendKey, f.Kind, f.PolicyLocal, f.Kind == model.LoadBalancer && len(p.SourceRanges) > 0, affinity,
					targetLine(p.Backends, f.Internal), targetLine(p.Backends, f.External))
			}
		}
	}
	return c.sorted()
}

func (c content) sorted() content {
	for _, lines := range c {
		slices.Sort(lines)
	}
	return c
}

func backendLine(a netip.Addr, port uint16, cluster, local, onNode bool) string {
	return fmt.Sprintf("%s:%d cluster %t local %t on-node %t", a, port, cluster, local, onNode)
}

func targetLine(backends []model.Backend, t model.Target) string {
	var members []string
	for _, b := range backends {
		if t.Local && b.Local || !t.Local && b.Cluster {
			members = append(members, fmt.Sprintf("%s:%d", b.Address, b.Port))
		}
	}
	return setLine(t.Local, t.Drop && len(members) == 0, members)
}

func setLine(local, drop bool, members []string) string {
	return fmt.Sprintf("{local %t drop %t %s}", local, drop, strings.Join(members, " "))
}

// contentOf says what the maps hold. Backends in no set are waiting to be deleted and not shown.
func contentOf(t *testing.T, f *maps.Fake) content {
	t.Helper()
	c := content{}
	name := func(id uint32) model.ServicePortName {
		n, ok, _ := f.ServiceName(id)
		if !ok {
			t.Fatalf("service id %d has no name", id)
		}
		return PortName(n)
	}
	for e := range f.ServiceNames() {
		c.add(PortName(e.Value), "name")
	}
	for b := range f.Backends() {
		c.add(name(b.ServiceID), "backend %s", backendLine(b.Address.Addr(), b.Port, b.Flags&maps.BackendCluster != 0,
			b.Flags&maps.BackendLocal != 0, b.Flags&maps.BackendOnNode != 0))
	}
	for r := range f.SourceRanges() {
		c.add(name(r.ServiceID), "range %s", planPrefix(r))
	}
	for e := range f.Services() {
		s := e.Value
		c.add(name(s.ServiceID), "frontend %s kind %d policy-local %t ranges %t affinity %d internal %s external %s",
			modelKey(e.Key), s.Kind, s.Flags&maps.ServicePolicyLocal != 0, s.Flags&maps.ServiceSourceRanges != 0,
			s.AffinityTimeout,
			runLine(f, s.Internal, s.Flags&maps.ServiceInternalLocal != 0, s.Flags&maps.ServiceInternalDrop != 0),
			runLine(f, s.External, s.Flags&maps.ServiceExternalLocal != 0, s.Flags&maps.ServiceExternalDrop != 0))
	}
	return c.sorted()
}

func runLine(f *maps.Fake, r maps.Run, local, drop bool) string {
	ids, _ := f.Slots(r)
	var members []string
	for _, id := range ids {
		b, _, _ := f.Backend(id)
		members = append(members, fmt.Sprintf("%s:%d", b.Address.Addr(), b.Port))
	}
	return setLine(local, drop, members)
}

// addressContent says what addresses should hold for the frontends.
func (d desired) addressContent() map[netip.Addr]maps.AddressFlags {
	all := map[netip.Addr]maps.AddressFlags{}
	for _, ports := range d {
		for _, p := range ports {
			for _, f := range p.Frontends {
				switch f.Kind {
				case model.ClusterIP:
					all[f.Address] |= maps.AddressClusterIP
				case model.ExternalIP, model.LoadBalancer:
					all[f.Address] |= maps.AddressService
				}
			}
		}
	}
	return all
}
