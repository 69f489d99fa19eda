// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

const now = 1_000_000e9

// node is a Fake that a test programs in the words of the kernel.
type node struct {
	*maps.Fake
	datapath Datapath
	t        *testing.T
	cells    uint32
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Fake: maps.NewFake(nil), datapath: wholeDatapath(), t: t, cells: 1}
	n.address("10.0.0.1", maps.AddressOnNode|maps.AddressNodePorts)
	n.address("172.16.0.1", maps.AddressOnNode)
	return n
}

// wholeDatapath has all that programs can have.
func wholeDatapath() Datapath {
	return Datapath{
		Hooks: []string{"connect4", "connect6", "sendmsg4", "sendmsg6"}, NodeCookie: 1,
		NodeAddresses:     []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		LoopbackNodePorts: true, SetRetval: true, ReadKernel: true,
	}
}

func (n *node) explainer() Explainer {
	return Explainer{Reader: n, Datapath: n.datapath, Now: func() uint64 { return now }}
}

func (n *node) must(_ int, err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) address(a string, flags maps.AddressFlags) {
	n.must(n.PutAddresses([]maps.Address{maps.AddressOf(netip.MustParseAddr(a))}, []maps.AddressFlags{flags}))
}

func (n *node) service(addrPort string, p model.Protocol, s maps.Service) {
	a := netip.MustParseAddrPort(addrPort)
	key := maps.Frontend{Address: maps.AddressOf(a.Addr()), Port: a.Port(), Protocol: uint8(p)}
	s.FrontendCheck = key.Check()
	n.must(n.PutServices([]maps.Frontend{key}, []maps.Service{s}))
	name := maps.ServiceName{Protocol: uint8(p), Family: uint8(model.FamilyOf(a.Addr()))}
	copy(name.Namespace[:], "default")
	copy(name.Name[:], fmt.Sprintf("svc%d", s.ServiceID))
	n.must(n.PutServiceNames([]uint32{s.ServiceID}, []maps.ServiceName{name}))
	switch s.Kind {
	case maps.KindClusterIP:
		n.address(a.Addr().String(), maps.AddressClusterIP)
	case maps.KindExternalIP, maps.KindLoadBalancer:
		n.address(a.Addr().String(), maps.AddressService)
	}
}

// run writes a run of backends: id n has the address 10.244.1.n, and is on this node when its flags say so.
func (n *node) run(service uint32, flags maps.BackendFlags, ids ...uint32) maps.Run {
	n.t.Helper()
	for _, id := range ids {
		n.backend(service, id, flags)
	}
	return n.cellsOf(ids...)
}

func (n *node) cellsOf(ids ...uint32) maps.Run {
	run := maps.Run{Base: n.cells, Count: uint32(len(ids))}
	n.cells += run.Count
	if err := n.PutSlots(run.Base, ids); err != nil {
		n.t.Fatal(err)
	}
	return run
}

func (n *node) backend(service, id uint32, flags maps.BackendFlags) {
	n.must(n.PutBackends([]maps.Backend{{
		BackendID: id, ServiceID: service, Port: 8080, Protocol: uint8(model.TCP), Flags: flags,
		Address: maps.AddressOf(netip.AddrFrom4([4]byte{10, 244, 1, byte(id)})),
	}}))
}

func (n *node) explain(target, from string) Answer {
	n.t.Helper()
	to, err := ParseTarget(target)
	if err != nil {
		n.t.Fatal(err)
	}
	client, err := ParseClient(from)
	if err != nil {
		n.t.Fatal(err)
	}
	answers, err := n.explainer().Explain(to, client)
	if err != nil {
		n.t.Fatal(err)
	}
	if len(answers) != 1 {
		n.t.Fatalf("%d answers", len(answers))
	}
	return answers[0]
}

// The decision table of traffic policies. The planner turns each situation into what is programmed here: which run
// each kind of client has, which set it is, and what an empty one means.
func TestPoliciesDecideWhoGetsWhat(t *testing.T) {
	t.Parallel()
	const local = maps.BackendCluster | maps.BackendLocal | maps.BackendOnNode
	const internalLocal = maps.ServiceInternalLocal | maps.ServiceInternalDrop
	const externalLocal = maps.ServicePolicyLocal | maps.ServiceExternalLocal | maps.ServiceExternalDrop
	for _, tc := range []struct {
		name     string
		kind     maps.ServiceKind
		flags    maps.ServiceFlags
		cluster  []uint32 // ids of the cluster set
		local    []uint32 // of these, on this node
		from     string
		internal string // which set the planner gave: cluster, local or none
		external string
		verdict  Verdict
		reason   Reason
		set      string
		backends int
	}{
		{"ClusterIP, iTP Cluster", maps.KindClusterIP, 0, []uint32{1, 2}, []uint32{1}, "node", "cluster", "cluster",
			Translated, ReasonBackend, "cluster", 2},
		{"ClusterIP, iTP Cluster, remote endpoints alone", maps.KindClusterIP, 0, []uint32{1, 2}, nil, "10.244.1.99",
			"cluster", "cluster", Translated, ReasonBackend, "cluster", 2},
		{"ClusterIP, iTP Cluster, nothing usable", maps.KindClusterIP, 0, nil, nil, "node", "none", "none",
			Refused, ReasonNoBackend, "cluster", 0},
		{"ClusterIP, iTP Local", maps.KindClusterIP, internalLocal, []uint32{1, 2}, []uint32{1}, "node", "local", "local",
			Translated, ReasonBackend, "local", 1},
		{"ClusterIP, iTP Local, remote endpoints alone", maps.KindClusterIP, internalLocal, []uint32{1, 2}, nil, "node",
			"none", "none", Dropped, ReasonPolicy, "local", 0},
		{"ClusterIP, iTP Local, nothing usable", maps.KindClusterIP, maps.ServiceInternalLocal, nil, nil, "node", "none",
			"none", Refused, ReasonNoBackend, "local", 0},
		{"node port, eTP Local, a pod", maps.KindNodePort, externalLocal, []uint32{1, 2}, nil, "10.244.1.99", "cluster",
			"none", Translated, ReasonBackend, "cluster", 2},
		{"node port, eTP Local, a host process", maps.KindNodePort, externalLocal, []uint32{1, 2}, []uint32{2}, "node",
			"cluster", "local", Translated, ReasonBackend, "cluster", 2},
		{"node port, eTP Local, outside", maps.KindNodePort, externalLocal, []uint32{1, 2}, []uint32{2}, "external",
			"cluster", "local", Untouched, ReasonNoPacketPath, "local", 1},
		{"node port, eTP Local, no detector, a pod", maps.KindNodePort,
			externalLocal | maps.ServiceInternalLocal | maps.ServiceInternalDrop, []uint32{1}, nil, "10.244.1.99", "none",
			"none", Dropped, ReasonPolicy, "local", 0},
		{"node port, nothing usable", maps.KindNodePort, 0, nil, nil, "node", "none", "none", Refused, ReasonNoBackend,
			"cluster", 0},
		{"external IP, iTP Local does not matter", maps.KindExternalIP, 0, []uint32{1, 2}, nil, "node", "cluster", "cluster",
			Translated, ReasonBackend, "cluster", 2},
		{"load balancer, eTP Local, a pod", maps.KindLoadBalancer, externalLocal, []uint32{1, 2}, nil, "10.244.1.99",
			"cluster", "none", Translated, ReasonBackend, "cluster", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.run(7, maps.BackendCluster, tc.cluster...)
			n.run(7, local, tc.local...)
			runs := map[string]maps.Run{"cluster": n.cellsOf(tc.cluster...), "local": n.cellsOf(tc.local...)}
			addresses := map[maps.ServiceKind][2]string{
				maps.KindClusterIP:    {"10.96.0.1:80", "10.96.0.1:80"},
				maps.KindNodePort:     {"0.0.0.0:30080", "10.0.0.1:30080"},
				maps.KindExternalIP:   {"192.0.2.1:80", "192.0.2.1:80"},
				maps.KindLoadBalancer: {"192.0.2.2:80", "192.0.2.2:80"},
			}[tc.kind]
			n.service(addresses[0], model.TCP, maps.Service{ServiceID: 7, Kind: tc.kind, Flags: tc.flags,
				Internal: runs[tc.internal], External: runs[tc.external]})
			a := n.explain(addresses[1], tc.from)
			if a.Verdict != tc.verdict || a.Reason != tc.reason || a.Frontend.Set != tc.set || len(a.Backends) != tc.backends {
				t.Errorf("got %s because of %s, %s set with %d backends; want %s, %s, %s, %d", a.Verdict, a.Reason,
					a.Frontend.Set, len(a.Backends), tc.verdict, tc.reason, tc.set, tc.backends)
			}
			if a.Service.Name != "svc7" || a.Frontend.Kind != KindName(tc.kind) {
				t.Errorf("service %v, frontend %v", a.Service, a.Frontend)
			}
		})
	}
}

// The order of frontend_match in bpf/frontend.h, and what it leaves alone.
func TestLookupFollowsTheKernel(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one := n.run(1, maps.BackendCluster, 1)
	other := n.run(2, maps.BackendCluster, 2)
	n.service("10.96.0.1:80", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP, Internal: one})
	n.service("0.0.0.0:30080", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindNodePort, Internal: one})
	n.service("[::]:30080", model.TCP, maps.Service{ServiceID: 3, Kind: maps.KindNodePort, Internal: n.run(3, 1, 3)})
	n.service("10.0.0.1:30080", model.UDP, maps.Service{ServiceID: 2, Kind: maps.KindExternalIP, Internal: other})
	n.service("10.0.0.1:80", model.TCP, maps.Service{ServiceID: 2, Kind: maps.KindExternalIP, Internal: other})
	n.service("10.96.0.2:132", model.SCTP, maps.Service{ServiceID: 4, Kind: maps.KindClusterIP})
	n.address("10.0.0.1", maps.AddressOnNode|maps.AddressNodePorts|maps.AddressService)
	n.address("fd00::1", maps.AddressOnNode|maps.AddressNodePorts)
	n.address("10.96.0.3", maps.AddressClusterIP|maps.AddressOnNode)
	n.address("10.96.0.4", maps.AddressClusterIP|maps.AddressNodePorts)
	for _, tc := range []struct {
		name, target, from string
		verdict            Verdict
		reason             Reason
		service            string
	}{
		{"exact frontend", "10.96.0.1:80", "node", Translated, ReasonBackend, "svc1"},
		{"the v4-mapped form is the IPv4 address", "[::ffff:10.96.0.1]:80", "node", Translated, ReasonBackend, "svc1"},
		{"another protocol of a ClusterIP", "10.96.0.1:80/udp", "node", Refused, ReasonUndefinedPort, ""},
		{"another port of a ClusterIP", "10.96.0.1:81", "10.244.1.99", Refused, ReasonUndefinedPort, ""},
		{"another port of a ClusterIP from outside", "10.96.0.1:81", "external", Untouched, ReasonNoPacketPath, ""},
		{"node port on a node address", "10.0.0.1:30080", "10.244.1.99", Translated, ReasonBackend, "svc1"},
		{"node port of the other family", "[fd00::1]:30080", "node", Translated, ReasonBackend, "svc3"},
		{"external IP on a node address", "10.0.0.1:80", "node", Translated, ReasonBackend, "svc2"},
		{"external IP before node port", "10.0.0.1:30080/udp", "node", Translated, ReasonBackend, "svc2"},
		{"a node address that serves none", "172.16.0.1:30080", "node", Untouched, ReasonNotAService, ""},
		{"another node's address", "10.0.0.2:30080", "node", Untouched, ReasonNotAService, ""},
		{"no node port of that number", "10.0.0.1:30081", "node", Untouched, ReasonNotANodePort, ""},
		{"loopback of the node", "127.0.0.1:30080", "node", Translated, ReasonBackend, "svc1"},
		{"any loopback of the node", "127.1.2.3:30080", "node", Translated, ReasonBackend, "svc1"},
		{"IPv6 loopback of the node", "[::1]:30080", "node", Translated, ReasonBackend, "svc3"},
		{"unspecified on the node", "0.0.0.0:30080", "node", Translated, ReasonBackend, "svc1"},
		{"loopback inside a pod stays the pod", "127.0.0.1:30080", "10.244.1.99", Untouched, ReasonNotAService, ""},
		{"unspecified inside a pod stays the pod", "0.0.0.0:30080", "10.244.1.99", Untouched, ReasonNotAService, ""},
		{"loopback from outside", "127.0.0.1:30080", "external", Untouched, ReasonNotAService, ""},
		{"a client that is the node by its address", "127.0.0.1:30080", "10.0.0.1", Translated, ReasonBackend, "svc1"},
		{"a client that is the node by loopback", "127.0.0.1:30080", "127.0.0.1", Translated, ReasonBackend, "svc1"},
		{"a ClusterIP on the node's own device", "10.96.0.3:53", "node", Untouched, ReasonOnNode, ""},
		{"a node port on a ClusterIP's address", "10.96.0.4:30080", "node", Translated, ReasonBackend, "svc1"},
		{"an undefined port there", "10.96.0.4:31000", "node", Refused, ReasonUndefinedPort, ""},
		{"an undefined port of an external IP", "10.0.0.1:443", "node", Untouched, ReasonNotANodePort, ""},
		{"a backend's own address", "10.244.1.1:8080", "node", Untouched, ReasonBackendAddress, ""},
		{"nobody's address", "203.0.113.9:80", "node", Untouched, ReasonNotAService, ""},
		{"SCTP", "10.96.0.2:132/sctp", "node", Untouched, ReasonProtocol, "svc4"},
		{"SCTP of nobody", "203.0.113.9:132/sctp", "node", Untouched, ReasonProtocol, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			a := n.explain(tc.target, tc.from)
			var service string
			if a.Service != nil {
				service = a.Service.Name
			}
			if a.Verdict != tc.verdict || a.Reason != tc.reason || service != tc.service {
				t.Errorf("got %s because of %s for %q, want %s, %s, %q", a.Verdict, a.Reason, service, tc.verdict, tc.reason,
					tc.service)
			}
			if len(a.Steps) == 0 || a.Steps[len(a.Steps)-1].Text == "" {
				t.Errorf("no words: %+v", a.Steps)
			}
		})
	}
}

// The cells that backend_select in bpf/select.h would try.
func TestProbabilitiesCountTheCellsThatAreTriedNext(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		cells []uint32 // odd ids exist, even ones are gone
		want  []float64
	}{
		{"alike", []uint32{1, 3, 5, 7}, []float64{.25, .25, .25, .25}},
		{"the next takes a gone one's share", []uint32{1, 2, 3, 5}, []float64{.25, 0, .5, .25}},
		{"the first follows the last", []uint32{1, 3, 5, 2}, []float64{.5, .25, .25, 0}},
		{"a backend in two cells", []uint32{1, 1, 3}, []float64{1. / 3, 1. / 3, 1. / 3}},
		{"four are tried", []uint32{2, 4, 6, 8, 1}, []float64{0, 0, 0, 0, .8}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			for id := uint32(1); id < 9; id += 2 {
				n.backend(1, id, maps.BackendCluster)
			}
			n.service("10.96.0.1:80", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP,
				Internal: n.cellsOf(tc.cells...)})
			a := n.explain("10.96.0.1:80", "node")
			for i, b := range a.Backends {
				if math.Abs(b.Probability-tc.want[i]) > 1e-9 {
					t.Errorf("cell %d: probability %v, want %v", i, b.Probability, tc.want[i])
				}
				if gone := b.ID%2 == 0; gone != (b.State == BackendGone) {
					t.Errorf("cell %d is %s", i, b.State)
				}
			}
		})
	}
}

func TestARunOfBackendsThatAreAllGoneIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.backend(2, 4, maps.BackendCluster) // another service's
	n.service("10.96.0.1:80", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP, Internal: n.cellsOf(2, 4)})
	if a := n.explain("10.96.0.1:80", "node"); a.Verdict != Refused || a.Reason != ReasonUnsettled {
		t.Errorf("got %s because of %s", a.Verdict, a.Reason)
	}
}

func TestAffinityIsTheClients(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	run := n.run(1, maps.BackendCluster, 1, 2)
	n.service("10.96.0.1:80", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP, Internal: run,
		AffinityTimeout: 60})
	n.backend(1, 3, maps.BackendLocal)
	bind := func(client string, cookie uint64, backend uint32, ageSeconds uint64) {
		key := maps.AffinityKey{ServiceID: 1, NetnsCookie: cookie}
		if client != "" {
			key.Client = maps.AddressOf(netip.MustParseAddr(client))
		}
		n.PutAffinity(key, maps.AffinityValue{BackendID: backend, LastUsedNs: now - ageSeconds*1e9})
	}
	bind("10.244.1.90", 0, 2, 10)
	bind("", 1, 2, 20)
	bind("", 91, 1, 59)
	bind("", 92, 1, 60)
	bind("", 93, 9, 0)
	bind("", 94, 3, 0)
	for _, tc := range []struct {
		name, from string
		state      AffinityState
		backend    uint32
		remaining  uint64
	}{
		{"by address", "10.244.1.90", AffinityInForce, 2, 50},
		{"by network namespace, in its last second", "netns:91", AffinityInForce, 1, 1},
		{"expired at its timeout", "netns:92", AffinityExpired, 0, 0},
		{"backend gone", "netns:93", AffinityBackendGone, 0, 0},
		{"backend no longer in the set", "netns:94", AffinityBackendGone, 0, 0},
		{"none yet", "netns:95", AffinityNone, 0, 0},
		{"none yet, by address", "10.244.1.95", AffinityNone, 0, 0},
		{"none yet, for the other family's address", "fd00::90", AffinityUnknownClient, 0, 0},
		{"the node", "node", AffinityInForce, 2, 40},
		{"the node, by its address", "10.0.0.1", AffinityInForce, 2, 40},
		{"the node, by its network namespace", "netns:1", AffinityInForce, 2, 40},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			a := n.explain("10.96.0.1:80", tc.from)
			got := *a.Affinity
			if got.State != tc.state || got.BackendID != tc.backend || got.RemainingSeconds != tc.remaining {
				t.Errorf("got %+v, want %s, backend %d, %d s left", got, tc.state, tc.backend, tc.remaining)
			}
			if a.Verdict != Translated {
				t.Errorf("verdict %s", a.Verdict)
			}
		})
	}
}

func TestSourceRangesGuardLoadBalancerAddresses(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	run := n.run(1, maps.BackendCluster, 1)
	n.service("10.96.0.1:80", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP, Internal: run})
	n.service("192.0.2.1:80", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindLoadBalancer, Internal: run,
		Flags: maps.ServiceSourceRanges})
	n.must(n.PutSourceRanges([]maps.SourceRange{
		{PrefixBits: 32 + 96 + 24, ServiceID: 1, Address: maps.AddressOf(netip.MustParseAddr("10.0.9.0"))},
		{PrefixBits: 32 + 96 + 32, ServiceID: 1, Address: maps.AddressOf(netip.MustParseAddr("10.0.0.1"))},
		{PrefixBits: 32 + 96, ServiceID: 2, Address: maps.AddressOf(netip.MustParseAddr("0.0.0.0"))},
	}))
	for _, tc := range []struct {
		target, from string
		verdict      Verdict
		reason       Reason
	}{
		{"192.0.2.1:80", "10.0.9.9", Translated, ReasonBackend},
		{"192.0.2.1:80", "10.0.8.1", Dropped, ReasonSourceRange},
		{"192.0.2.1:80", "node", Translated, ReasonBackend},
		{"192.0.2.1:80", "netns:9", Untouched, ReasonClientUnknown},
		{"192.0.2.1:80", "fd00::9", Untouched, ReasonClientUnknown},
		{"192.0.2.1:80", "external", Untouched, ReasonNoPacketPath},
		{"10.96.0.1:80", "10.0.8.1", Translated, ReasonBackend},
	} {
		a := n.explain(tc.target, tc.from)
		if a.Verdict != tc.verdict || a.Reason != tc.reason {
			t.Errorf("%s from %s: got %s because of %s, want %s, %s", tc.target, tc.from, a.Verdict, a.Reason, tc.verdict,
				tc.reason)
		}
	}
	got := n.explain("192.0.2.1:80", "10.0.9.9").Frontend.SourceRanges
	if want := []string{"10.0.0.1/32", "10.0.9.0/24"}; !slices.Equal(got, want) {
		t.Errorf("source ranges %v, want %v", got, want)
	}
	n.datapath.ReadKernel = false
	if a := n.explain("192.0.2.1:80", "10.0.9.9"); a.Reason != ReasonClientUnknown {
		t.Errorf("without the pod's address: %s", a.Reason)
	}
	n.datapath.NodeAddresses = nil
	if a := n.explain("192.0.2.1:80", "node"); a.Reason != ReasonClientUnknown {
		t.Errorf("without the node's address: %s", a.Reason)
	}
}

func TestAServicesNameMeansItsFrontends(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.service("10.96.0.1:80", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP})
	n.service("0.0.0.0:30080", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindNodePort})
	n.service("[::]:30080", model.TCP, maps.Service{ServiceID: 2, Kind: maps.KindNodePort})
	for target, want := range map[string]string{
		"default/svc1":       "10.0.0.1:30080/TCP 10.96.0.1:80/TCP",
		"default/svc1:80":    "10.96.0.1:80/TCP",
		"default/svc1:30080": "10.0.0.1:30080/TCP",
		"default/svc1/tcp":   "10.0.0.1:30080/TCP 10.96.0.1:80/TCP",
		"default/svc2":       "[::]:30080/TCP", // no address of that family serves node ports
		"default/svc1/udp":   "none of that name",
		"default/svc1:81":    "no port",
		"default/svc9":       "none of that name",
		"other/svc1":         "none of that name",
	} {
		to, err := ParseTarget(target)
		if err != nil {
			t.Fatal(err)
		}
		answers, err := n.explainer().Explain(to, Client{Kind: Node})
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", target, err)
			}
			continue
		}
		var got []string
		for _, a := range answers {
			got = append(got, a.Target.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", target, got, want)
		}
	}
}

func TestWhatIsAttachedAndHowItWasLoadedCounts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name         string
		change       func(*Datapath)
		target, from string
		verdict      Verdict
		reason       Reason
	}{
		{"nothing attached", func(d *Datapath) { d.Hooks = nil }, "10.96.0.1:80", "node", Untouched, ReasonNotAttached},
		{"nothing attached, an undefined port", func(d *Datapath) { d.Hooks = nil }, "10.96.0.1:81", "node", Untouched,
			ReasonNotAttached},
		{"the other family's hook alone", func(d *Datapath) { d.Hooks = []string{"connect6"} }, "10.96.0.1:80", "node",
			Untouched, ReasonNotAttached},
		{"one of UDP's two hooks", func(d *Datapath) { d.Hooks = []string{"connect4"} }, "10.96.0.1:53/udp", "node", Untouched,
			ReasonNotAttached},
		{"TCP needs connect alone", func(d *Datapath) { d.Hooks = []string{"connect4"} }, "10.96.0.1:80", "node", Translated,
			ReasonBackend},
		{"host only, a pod", func(d *Datapath) { d.HostOnly = true }, "10.96.0.1:80", "10.244.1.9", Untouched, ReasonHostOnly},
		{"host only, the node", func(d *Datapath) { d.HostOnly = true }, "10.96.0.1:80", "node", Translated, ReasonBackend},
		{"no node ports on loopback", func(d *Datapath) { d.LoopbackNodePorts = false }, "127.0.0.1:30080", "node", Untouched,
			ReasonNotAService},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			run := n.run(1, maps.BackendCluster, 1)
			n.service("10.96.0.1:80", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP, Internal: run})
			n.service("10.96.0.1:53", model.UDP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP, Internal: run})
			n.service("0.0.0.0:30080", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindNodePort, Internal: run})
			tc.change(&n.datapath)
			if a := n.explain(tc.target, tc.from); a.Verdict != tc.verdict || a.Reason != tc.reason {
				t.Errorf("got %s because of %s, want %s, %s", a.Verdict, a.Reason, tc.verdict, tc.reason)
			}
		})
	}
}

func TestPacketsAreTranslatedWhereNoSocketIs(t *testing.T) {
	n := newNode(t)
	all, local := n.run(1, maps.BackendCluster|maps.BackendOnNode, 1), maps.Run{}
	n.service("0.0.0.0:30080", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindNodePort, Internal: all, External: all})
	n.service("0.0.0.0:30081", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindNodePort, Internal: all, External: local,
		Flags: maps.ServiceExternalLocal | maps.ServiceExternalDrop | maps.ServicePolicyLocal})
	n.service("10.96.0.1:80", model.TCP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP, Internal: all, External: all})
	n.service("10.96.0.1:81", model.SCTP, maps.Service{ServiceID: 1, Kind: maps.KindClusterIP, Internal: all, External: all})
	n.address("10.96.0.1", maps.AddressClusterIP)
	settings := maps.DefaultPacketSettings()
	settings.Services[0] = maps.Prefix{Address: maps.AddressOf(netip.MustParseAddr("10.96.0.0")), Bits: 96 + 16}
	n.EnablePackets(settings)
	n.datapath.PacketDevices = 3
	for _, tc := range []struct {
		name, target, from string
		change             func(*Datapath)
		verdict            Verdict
		reason             Reason
		hook               string // the beginning of the step
	}{
		{"outside", "10.0.0.1:30080", "external", nil, Translated, ReasonBackend, "tc: where the client's packets enter"},
		{"policy", "10.0.0.1:30081", "external", nil, Dropped, ReasonPolicy, "tc"},
		{"undefined port", "10.96.0.1:82", "external", nil, Refused, ReasonUndefinedPort, ""},
		{"unallocated", "10.96.7.7:80", "external", nil, Dropped, ReasonUnallocated, ""},
		{"a socket goes first", "10.96.0.1:80", "10.244.1.9", nil, Translated, ReasonBackend, "connect4"},
		{"no hooks", "10.96.0.1:80", "10.244.1.9", func(d *Datapath) { d.Hooks = nil }, Translated, ReasonBackend, "tc"},
		{"host only", "10.96.0.1:80", "10.244.1.9", func(d *Datapath) { d.HostOnly = true }, Translated, ReasonBackend, "tc"},
		{"node", "10.96.0.1:80", "node", func(d *Datapath) { d.Hooks = nil }, Translated, ReasonBackend,
			"tc: where the packets leave"},
		{"SCTP", "10.96.0.1:81/sctp", "10.244.1.9", nil, Translated, ReasonBackend, "tc"},
		{"off", "10.0.0.1:30080", "external", func(d *Datapath) { d.PacketDevices = 0 }, Untouched, ReasonNoPacketPath, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := n.datapath
			if tc.change != nil {
				tc.change(&n.datapath)
			}
			a := n.explain(tc.target, tc.from)
			n.datapath = before
			hook := ""
			for _, s := range a.Steps {
				if s.Topic == "Hook" {
					hook = s.Text
				}
			}
			if a.Verdict != tc.verdict || a.Reason != tc.reason || !strings.HasPrefix(hook, tc.hook) {
				t.Errorf("%s, %s, at %q, want %s, %s, %q", a.Verdict, a.Reason, hook, tc.verdict, tc.reason, tc.hook)
			}
		})
	}
}

func TestEachReasonIsInTheDocumentation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Reason{
		ReasonBackend, ReasonNoBackend, ReasonPolicy, ReasonSourceRange, ReasonUndefinedPort, ReasonOnNode,
		ReasonNotAService, ReasonNotANodePort, ReasonProtocol, ReasonNoPacketPath, ReasonBackendAddress, ReasonUnsettled,
		ReasonClientUnknown, ReasonHostOnly, ReasonNotAttached,
	} {
		if !strings.Contains(string(page), "`"+string(r)+"`") {
			t.Errorf("reason %s is not documented", r)
		}
	}
}
