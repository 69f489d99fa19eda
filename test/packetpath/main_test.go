// SPDX-License-Identifier: Apache-2.0

// Package packetpath proves the packet path of the real agent: it finds the devices itself, as they come and go, and
// programs what manifests say; clients outside the cluster and pods whose sockets are left alone send real traffic. What
// the programs do with each kind of device, packet and load is the subject of package packet.
package packetpath

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/firewall"
	"github.com/shunt-lb/shunt/test/lab/process"
)

func TestMain(m *testing.M) { agentlab.Main(m) }

// world is a node with the agent, packet path on and sockets left alone, beside a node without and an outside client.
type world struct {
	*agentlab.World
	client *lab.Process
	// near and far serve, on this node and on the other one.
	near, far *lab.Process
}

// side is one family's addresses.
type side struct {
	name     string
	node     netip.Addr
	client   netip.Addr
	number   int // of the family
	near     netip.Addr
	far      netip.Addr
	external string // the beginning of external addresses
	cluster  string // and of ClusterIPs
}

func newWorld(t *testing.T, layout lab.Layout) *world {
	t.Helper()
	w := &world{World: agentlab.NewLayout(t, layout)}
	w.near, w.far = agentlab.Serve(w.Node, "near"), agentlab.Serve(w.Neighbour, "far")
	client := w.Lab.Client(lab.ClientOptions{})
	// External addresses are routed to the node, as a load balancer's announcement would.
	w.Must(client.AddRoute(netip.MustParsePrefix("203.0.113.0/24"), client.Device, w.Node.Address4))
	w.Must(client.AddRoute(netip.MustParsePrefix("2001:db8:ff::/64"), client.Device, w.Node.Address6))
	w.client = client.Process()
	// As each node has; it leads nowhere, for the other node knows none of the Services' addresses.
	w.Must(w.Node.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), client.Device, w.Neighbour.Address4))
	w.Must(w.Node.AddRoute(netip.MustParsePrefix("::/0"), client.Device, w.Neighbour.Address6))
	// What a careful node has: strict reverse path filters, and a firewall that trusts nothing it cannot follow.
	w.Must(w.Node.Set("ipv4/conf/all/rp_filter", "1"))
	w.Must(firewall.DropInvalid(w.Node))
	w.Write("ranges", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\n"+
		"spec: {cidrs: [10.96.0.0/16, 'fd00:96::/112']}")
	return w
}

// start starts the agent with the packet path alone.
func (w *world) start(flags ...string) {
	w.T.Helper()
	w.StartAgent(append([]string{
		"--packet-path", "--socket-lb=off", "--max-flows=4096", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
	}, flags...)...)
	w.awaitAttached()
}

// sides are both families.
func (w *world) sides() []side {
	return []side{
		{"IPv4", w.Node.Address4, w.client.Address4, 4, w.near.Address4, w.far.Address4, "203.0.113.", "10.96.0."},
		{"IPv6", w.Node.Address6, w.client.Address6, 6, w.near.Address6, w.far.Address6, "2001:db8:ff::", "fd00:96::"},
	}
}

// at is an address and port.
func at(address string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), port)
}

// service writes a dual-stack Service with TCP and UDP on port 80, under all kinds of addresses: their last part is
// number, and 30000 plus number is the node port. spec is YAML in flow style, without braces.
func (w *world) service(name string, number int, spec string, pods ...*lab.Process) {
	w.T.Helper()
	if spec != "" {
		spec += ", "
	}
	ports := fmt.Sprintf("[{name: tcp, port: 80, protocol: TCP, nodePort: %d}, {name: udp, port: 80, protocol: UDP, "+
		"nodePort: %[1]d}]", 30000+number)
	text := agentlab.Service(name, fmt.Sprintf("{type: LoadBalancer, %sipFamilies: [IPv4, IPv6], "+
		"clusterIP: 10.96.0.%d, clusterIPs: [10.96.0.%[2]d, 'fd00:96::%[2]d'], externalIPs: [203.0.113.%[2]d, "+
		"'2001:db8:ff::%[2]d'], ports: %[3]s}", spec, number, ports))
	text += fmt.Sprintf("\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.%d}, {ip: '2001:db8:ff::%[1]d'}]}}", 100+number)
	documents := []string{text}
	endpointPorts := fmt.Sprintf("[{name: tcp, port: %d, protocol: TCP}, {name: udp, port: %[1]d, protocol: UDP}]",
		agentlab.ServerPort)
	for _, family := range []string{"4", "6"} {
		endpoints := agentlab.Ready(pods...)
		if family == "6" {
			endpoints = agentlab.Ready6(pods...)
		}
		for i, pod := range pods {
			endpoints[i].Node = w.Neighbour.Name
			if w.Node.Pods4.Contains(pod.Address4) || pod.Address4 == w.Node.Address4 {
				endpoints[i].Node = w.Node.Name
			}
		}
		if len(endpoints) > 0 {
			documents = append(documents, agentlab.Slice(name, name+"-"+family, endpointPorts, endpoints...))
		}
	}
	w.Write(name, documents...)
}

// external are the ways to a Service from outside.
func (s side) frontends(number int) map[string]netip.AddrPort {
	return map[string]netip.AddrPort{
		"node port":             netip.AddrPortFrom(s.node, uint16(30000+number)),
		"external address":      at(fmt.Sprint(s.external, number), 80),
		"load-balancer address": at(fmt.Sprint(s.external, 100+number), 80),
	}
}

func (s side) clusterIP(number int) netip.AddrPort { return at(fmt.Sprint(s.cluster, number), 80) }

// ask has an answer, or the errno instead of it.
func ask(client *lab.Process, network string, to netip.AddrPort) (server string, seen netip.Addr) {
	socket := client.Dial(network, to)
	defer socket.Close()
	if !socket.OK() {
		return socket.Errno, netip.Addr{}
	}
	answer := socket.Exchange("who")
	if !answer.OK() {
		return answer.Errno, netip.Addr{}
	}
	return answer.Server, answer.Peer.Addr()
}

// expect requires that a server answers, and which client it sees.
func (w *world) expect(t *testing.T, client *lab.Process, network string, to netip.AddrPort, server string, seen netip.Addr) {
	t.Helper()
	got, peer := ask(client, network, to)
	if got != server || peer != seen {
		t.Errorf("%s to %s reaches %s, which sees %s, want %s and %s", network, to, got, peer, server, seen)
	}
}

var networks = []string{process.TCP, process.UDP}

// layouts are the ways to connect pods, and to attach programs.
var layouts = []struct {
	name   string
	layout lab.Layout
	flags  []string
}{
	{"routed pods, TCX", lab.Routed, []string{"--tc-attach=tcx"}},
	{"bridged pods, TCX", lab.Bridged, []string{"--tc-attach=tcx"}},
	{"routed pods, clsact", lab.Routed, []string{"--tc-attach=clsact"}},
	{"bridged pods, clsact", lab.Bridged, []string{"--tc-attach=clsact"}},
}
