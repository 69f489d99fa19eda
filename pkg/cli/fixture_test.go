// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// The node that the tests read: its clock, and the cookies of its own and of a pod's network namespace.
const (
	fixtureNow  = 1_000_000_000_000
	nodeCookie  = 1
	podCookie   = 4711
	podPID      = 321
	webID       = 1
	dnsID       = 2
	shopID      = 3
	shop6ID     = 4
	emptyID     = 5
	remoteOnly  = 6
	balancerID  = 7
	goneBackend = 99
)

// fixture programs a Fake by hand; each step fails the test if it fails.
type fixture struct {
	*maps.Fake
	t    *testing.T
	next uint32
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Fake: maps.NewFake(nil), t: t, next: 8}
	f.name(webID, "default", "web", "http", model.TCP, model.IPv4)
	f.name(dnsID, "kube-system", "kube-dns", "dns", model.UDP, model.IPv4)
	f.name(shopID, "default", "shop", "", model.TCP, model.IPv4)
	f.name(shop6ID, "default", "shop", "", model.TCP, model.IPv6)
	f.name(emptyID, "default", "empty", "http", model.TCP, model.IPv4)
	f.name(remoteOnly, "default", "remote", "http", model.TCP, model.IPv4)
	f.name(balancerID, "prod", "edge", "https", model.TCP, model.IPv4)

	web := f.run(f.backend(11, webID, "10.244.1.5:8080", maps.BackendCluster|maps.BackendLocal|maps.BackendOnNode),
		f.backend(12, webID, "10.244.2.7:8080", maps.BackendCluster),
		f.backend(13, webID, "10.244.2.8:8080", maps.BackendCluster))
	webLocal := f.run(11)
	f.service("10.96.0.10:80", maps.Service{ServiceID: webID, Internal: web, External: web, Kind: maps.KindClusterIP})
	f.service("0.0.0.0:30080", maps.Service{ServiceID: webID, Internal: web, External: webLocal, Kind: maps.KindNodePort,
		Flags: maps.ServicePolicyLocal | maps.ServiceExternalLocal | maps.ServiceExternalDrop})

	dns := f.run(f.backend(21, dnsID, "10.244.1.53:5353", maps.BackendCluster|maps.BackendOnNode))
	f.service("10.96.0.2:53", maps.Service{ServiceID: dnsID, Internal: dns, External: dns, Kind: maps.KindClusterIP})

	shop := f.run(f.backend(31, shopID, "10.244.1.40:80", maps.BackendCluster|maps.BackendOnNode),
		f.backend(32, shopID, "10.244.2.40:80", maps.BackendCluster))
	f.service("10.96.0.6:80", maps.Service{ServiceID: shopID, Internal: shop, External: shop, Kind: maps.KindClusterIP,
		AffinityTimeout: 10800})
	shop6 := f.run(f.backend(41, shop6ID, "[fd00:10:244:1::28]:80", maps.BackendCluster|maps.BackendOnNode))
	f.service("[fd00:10:96::6]:80", maps.Service{ServiceID: shop6ID, Internal: shop6, External: shop6,
		Kind: maps.KindClusterIP, AffinityTimeout: 10800})

	f.service("10.96.0.7:80", maps.Service{ServiceID: emptyID, Kind: maps.KindClusterIP})
	f.service("10.96.0.8:80", maps.Service{ServiceID: remoteOnly, Kind: maps.KindClusterIP,
		Flags: maps.ServiceInternalLocal | maps.ServiceInternalDrop})

	edge := f.run(f.backend(71, balancerID, "10.244.1.70:8443", maps.BackendCluster|maps.BackendOnNode))
	f.service("10.96.0.9:443", maps.Service{ServiceID: balancerID, Internal: edge, External: edge,
		Kind: maps.KindClusterIP})
	f.service("192.0.2.20:443", maps.Service{ServiceID: balancerID, Internal: edge, External: edge,
		Kind: maps.KindLoadBalancer, Flags: maps.ServiceSourceRanges})
	f.service("192.0.2.21:443", maps.Service{ServiceID: balancerID, Internal: edge, External: edge,
		Kind: maps.KindExternalIP})
	f.must(f.PutSourceRanges([]maps.SourceRange{
		{PrefixBits: 32 + 96 + 24, ServiceID: balancerID, Address: address("10.0.9.0")},
		{PrefixBits: 32 + 96 + 16, ServiceID: balancerID, Address: address("10.244.0.0")},
	}))

	for a, flags := range map[string]maps.AddressFlags{
		"10.96.0.10": maps.AddressClusterIP, "10.96.0.2": maps.AddressClusterIP, "10.96.0.6": maps.AddressClusterIP,
		"fd00:10:96::6": maps.AddressClusterIP, "10.96.0.7": maps.AddressClusterIP, "10.96.0.8": maps.AddressClusterIP,
		"10.96.0.9": maps.AddressClusterIP, "192.0.2.20": maps.AddressService, "192.0.2.21": maps.AddressService,
		"10.0.0.1": maps.AddressOnNode | maps.AddressNodePorts, "172.16.0.1": maps.AddressOnNode,
	} {
		f.must(f.PutAddresses([]maps.Address{address(a)}, []maps.AddressFlags{flags}))
	}
	f.AddServiceStats(webID, maps.ServiceStats{Connections: 1000})
	f.AddServiceStats(emptyID, maps.ServiceStats{Refused: 7, NoBackend: 7})
	f.bindings()
	return f
}

// newPacketFixture is a node with the packet path on.
func newPacketFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.EnablePackets(maps.DefaultPacketSettings())
	f.AddPacketStats(webID, maps.PacketStats{Flows: 4, PacketsForward: 40, BytesForward: 4000, PacketsReply: 30,
		BytesReply: 90000, Rejected: 2, Dropped: 1})
	data, fin := maps.ConntrackSeenData, maps.ConntrackSeenFin
	f.flow(flow{client: "198.51.100.7:40000", frontend: "10.0.0.1:30080", backend: "10.244.1.5:8080", id: 11,
		seen: data, replySeen: data})
	f.flow(flow{client: "198.51.100.8:40001", frontend: "10.0.0.1:30080", source: "10.0.0.1:61001",
		backend: "10.244.2.7:8080", id: 12, flags: maps.ConntrackRedirect, seen: data | fin, replySeen: data})
	f.flow(flow{client: "198.51.100.8:40002", frontend: "10.0.0.1:30080", backend: "10.244.1.5:8080", id: 11,
		seen: data | fin, replySeen: data | fin, idle: 300})
	f.flow(flow{client: "198.51.100.9:40003", frontend: "10.0.0.1:30080", backend: "10.244.1.5:8080", id: 11,
		seen: data, half: true})
	return f
}

// flow is a flow of web.
type flow struct {
	client, frontend, source, backend string
	id                                uint32
	flags                             maps.ConntrackFlags
	seen, replySeen                   maps.ConntrackSeen
	idle                              uint64
	half                              bool // the forward direction is missing
}

func (f *fixture) flow(l flow) {
	if l.source == "" {
		l.source = l.client
	}
	client, frontend := netip.MustParseAddrPort(l.client), netip.MustParseAddrPort(l.frontend)
	source, backend := netip.MustParseAddrPort(l.source), netip.MustParseAddrPort(l.backend)
	element := func(from, to, newFrom, newTo netip.AddrPort, flags maps.ConntrackFlags, seen maps.ConntrackSeen) {
		f.PutFlow(maps.ConntrackKey{
			Source: maps.AddressOf(from.Addr()), SourcePort: from.Port(), Destination: maps.AddressOf(to.Addr()),
			DestinationPort: to.Port(), Protocol: uint8(model.TCP),
		}, maps.ConntrackValue{
			To: maps.Translation{
				Source: maps.AddressOf(newFrom.Addr()), SourcePort: newFrom.Port(), Destination: maps.AddressOf(newTo.Addr()),
				DestinationPort: newTo.Port(), Flags: l.flags | flags, ServiceID: webID, BackendID: l.id,
			},
			CreatedNs: fixtureNow - (l.idle+60)*1e9, LastSeenNs: fixtureNow - (l.idle+5)*1e9, Packets: 10, Bytes: 1000,
			Seen: seen,
		})
	}
	if !l.half {
		element(client, frontend, source, backend, 0, l.seen)
	}
	element(backend, source, frontend, client, maps.ConntrackReply, l.replySeen)
}

func (f *fixture) bindings() {
	f.PutAffinity(maps.AffinityKey{ServiceID: shopID, NetnsCookie: nodeCookie},
		maps.AffinityValue{BackendID: 32, LastUsedNs: fixtureNow - 100e9})
	f.PutAffinity(maps.AffinityKey{ServiceID: shopID, Client: address("10.244.1.9")},
		maps.AffinityValue{BackendID: 31, LastUsedNs: fixtureNow})
	f.PutAffinity(maps.AffinityKey{ServiceID: shopID, NetnsCookie: podCookie},
		maps.AffinityValue{BackendID: goneBackend, LastUsedNs: fixtureNow})
	f.PutAffinity(maps.AffinityKey{ServiceID: webID, NetnsCookie: podCookie},
		maps.AffinityValue{BackendID: 11, LastUsedNs: fixtureNow})
}

func (f *fixture) must(_ int, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) name(id uint32, namespace, name, port string, p model.Protocol, family model.Family) {
	n := maps.ServiceName{Protocol: uint8(p), Family: uint8(family)}
	copy(n.Namespace[:], namespace)
	copy(n.Name[:], name)
	copy(n.Port[:], port)
	f.must(f.PutServiceNames([]uint32{id}, []maps.ServiceName{n}))
}

// backend programs a backend and returns its id.
func (f *fixture) backend(id, service uint32, addrPort string, flags maps.BackendFlags) uint32 {
	a := netip.MustParseAddrPort(addrPort)
	b := maps.Backend{BackendID: id, ServiceID: service, Address: maps.AddressOf(a.Addr()), Port: a.Port(), Flags: flags,
		Protocol: uint8(model.TCP)}
	if service == dnsID {
		b.Protocol = uint8(model.UDP)
	}
	f.must(f.PutBackends([]maps.Backend{b}))
	return id
}

// run writes backend ids into fresh cells.
func (f *fixture) run(ids ...uint32) maps.Run {
	run := maps.Run{Base: f.next, Count: uint32(len(ids))}
	f.next += run.Count
	if err := f.PutSlots(run.Base, ids); err != nil {
		f.t.Fatal(err)
	}
	return run
}

func (f *fixture) service(addrPort string, s maps.Service) {
	a := netip.MustParseAddrPort(addrPort)
	key := maps.Frontend{Address: maps.AddressOf(a.Addr()), Port: a.Port(), Protocol: uint8(model.TCP)}
	if s.ServiceID == dnsID {
		key.Protocol = uint8(model.UDP)
	}
	s.FrontendCheck = key.Check()
	f.must(f.PutServices([]maps.Frontend{key}, []maps.Service{s}))
}

func address(s string) maps.Address { return maps.AddressOf(netip.MustParseAddr(s)) }
