// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// Case A04: one number, two protocols, at each kind of address; each comes and goes without the other.
func TestProtocolsOfOnePortNumberNeverInteract(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	u, s := w.Node.Pod(lab.PodOptions{Name: "datagrams"}).Process(), w.Node.Pod(lab.PodOptions{Name: "streams"}).Process()
	for _, ip := range []netip.Addr{u.Address4, u.Address6} {
		u.Listen(udp, netip.AddrPortFrom(ip, 5353), u.Name)
	}
	for _, ip := range []netip.Addr{s.Address4, s.Address6} {
		s.Listen(tcp, netip.AddrPortFrom(ip, 5354), s.Name)
	}
	const (
		dns    = "{name: dns, port: 53, protocol: UDP, nodePort: 30053}"
		dnsTCP = "{name: dns-tcp, port: 53, protocol: TCP, nodePort: 30053}"
	)
	manifests := func(ports string) []string {
		all := []string{dual("kube-dns", 10, "type: NodePort, externalIPs: [192.0.2.53]", ports)}
		all = append(all, dualSlices("kube-dns", "[{name: dns, port: 5353, protocol: UDP}]", isReady, u)...)
		return append(all, rename(dualSlices("kube-dns", "[{name: dns-tcp, port: 5354, protocol: TCP}]", isReady, s))...)
	}
	from := clients(w)
	w.Write("kube-dns", manifests("["+dns+", "+dnsTCP+"]")...)
	w.StartAgent()
	clusterIPs := forms(10, 53)
	addresses := append(clusterIPs, agentlab.At("192.0.2.53:53"), netip.AddrPortFrom(w.Node.Address4, 30053),
		netip.AddrPortFrom(w.Node.Address6, 30053))
	flow := from[0].Open(process.SocketRequest{Network: udp, Family: 4})
	stream := from[0].Dial(tcp, addresses[0])
	for _, row := range []struct{ name, ports, udp, tcp string }{
		{"both", "[" + dns + ", " + dnsTCP + "]", u.Name, s.Name},
		{"UDP alone", "[" + dns + "]", u.Name, refused},
		{"both again, in the other order", "[" + dnsTCP + ", " + dns + "]", u.Name, s.Name},
		{"TCP alone", "[" + dnsTCP + "]", refused, s.Name},
	} {
		w.Run(row.name, func(t *testing.T) {
			w.Write("kube-dns", manifests(row.ports)...)
			for _, to := range clusterIPs {
				w.AwaitReached(from[0], udp, to, row.udp)
				w.AwaitReached(from[0], tcp, to, row.tcp)
			}
			for _, client := range from {
				for _, to := range addresses {
					if row.udp != refused {
						expectReached(t, client, udp, to, row.udp)
					}
					if row.tcp != refused {
						expectReached(t, client, tcp, to, row.tcp)
					}
				}
			}
			if got := flow.ExchangeWith(addresses[0], "who"); got.Server+got.Errno != row.udp {
				t.Errorf("an unconnected socket: %s%s, want %s", got.Server, got.Errno, row.udp)
			}
			if got := stream.Exchange("who"); got.Server != s.Name {
				t.Errorf("an open connection: %s%s", got.Server, got.Errno)
			}
		})
	}
}

// Case A10: a port's name has another number in each slice.
func TestAPortNameIsANumberOfItsOwnInEachSlice(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a, b := agentlab.Serve(w.Node, "a"), w.Neighbour.Pod(lab.PodOptions{Name: "b"}).Process()
	agentlab.Listen(b, 9090)
	slices := func(name, ports string, pod *lab.Process) []string {
		return []string{
			agentlab.Slice("api", name+"-4", ports, agentlab.Ready(pod)...),
			agentlab.Slice("api", name+"-6", ports, agentlab.Ready6(pod)...),
		}
	}
	service := dual("api", 11, "", "[{name: http, port: 80, targetPort: http}, {name: raw, port: 81, protocol: UDP}]")
	manifests := []string{service}
	manifests = append(manifests, slices("a", "[{name: http, port: 8080}, {name: raw, port: 8080, protocol: UDP}]", a)...)
	manifests = append(manifests, slices("b", "[{name: http, port: 9090}, {name: raw, port: 9090, protocol: UDP}]", b)...)
	manifests = append(manifests, slices("c", "[{name: http, port: null}, {name: raw, port: null, protocol: UDP}]",
		agentlab.Serve(w.Node, "c"))...)
	w.Write("api", manifests...)
	w.StartAgent()
	for _, client := range clients(w) {
		for i, http := range forms(11, 80) {
			for network, to := range map[string]netip.AddrPort{tcp: http, udp: forms(11, 81)[i]} {
				const count = 60 // that one of two gets none of 60 happens once in 10^18
				result := client.Connects(network, to, count)
				if result.Servers["a"]+result.Servers["b"] != count || result.Servers["a"] == 0 || result.Servers["b"] == 0 {
					t.Errorf("%s %s from %s: %v %v", network, to, client.Name, result.Servers, result.Errnos)
				}
			}
		}
	}
	// The pod that is replaced by one with another number: one address, first one port, then the other.
	agentlab.Listen(a, 8081)
	w.Write("api", append([]string{service}, slices("a", "[{name: http, port: 8081}]", a)...)...)
	w.Eventually("the new number alone", func() (bool, string) {
		got := w.Shunt("backends", "default/api", "-o", "json")
		return !strings.Contains(got, `"port": 8080`) && strings.Contains(got, `"port": 8081`), got
	})
	for _, to := range forms(11, 80) {
		expectOnly(t, clients(w)[0], tcp, to, "a")
	}
}

// nodeManifest is the Node object of a node, with its addresses.
func nodeManifest(node *lab.Node, labels string, addresses ...netip.Addr) string {
	text := ""
	for _, address := range addresses {
		text += fmt.Sprintf("{type: InternalIP, address: '%s'}, ", address)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {%s}}\nstatus: {addresses: [%s]}",
		node.Name, labels, text)
}

// Case A11: node ports on the node's own addresses and, for its own processes, on loopback; and nowhere else.
func TestNodePortsAreServedOnTheAddressesThatAreAskedForAndNowhereElse(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	server := agentlab.Serve(w.Node, "server")
	second := netip.MustParseAddr("172.20.0.77")
	w.Must(w.Node.AddAddress("eth0", netip.PrefixFrom(second, 24)))
	w.Write("node", nodeManifest(w.Node, "", w.Node.Address4, w.Node.Address6))
	w.Write("np", both("np", 12, "type: NodePort", isReady, server)...)
	const ports = "[{name: u, port: 80, protocol: UDP, nodePort: 30081}, {name: t, port: 80, protocol: TCP, nodePort: 30081}]"
	w.Write("np", append([]string{dual("np", 12, "type: NodePort", ports)},
		dualSlices("np", bothTargets, isReady, server)...)...)

	pod, host := w.Node.Pod(lab.PodOptions{Name: "client"}).Process(), w.Node.Process()
	on := func(address string) netip.AddrPort {
		ip := netip.MustParseAddr(address)
		return netip.AddrPortFrom(ip, 30081)
	}
	type expectation struct {
		from *lab.Process
		to   netip.AddrPort
		want string
	}
	loopback := func(want string) []expectation {
		var all []expectation
		for _, address := range []string{"127.0.0.1", "127.8.7.6", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"} {
			all = append(all, expectation{host, on(address), want}, expectation{pod, on(address), refused})
		}
		return all
	}
	own := func(want string, addresses ...string) []expectation {
		var all []expectation
		for _, address := range addresses {
			all = append(all, expectation{host, on(address), want}, expectation{pod, on(address), want})
		}
		return all
	}
	first4, first6, mapped := w.Node.Address4.String(), w.Node.Address6.String(), "::ffff:"+w.Node.Address4.String()
	elsewhere := own(refused, w.Neighbour.Address4.String(), w.Neighbour.Address6.String(), server.Address4.String())
	for _, row := range []struct {
		flags []string
		want  [][]expectation
	}{
		{nil, [][]expectation{loopback("server"), own("server", first4, first6, mapped), own(refused, second.String()), elsewhere}},
		{[]string{"--nodeport-addresses=all"},
			[][]expectation{loopback("server"), own("server", first4, first6, mapped, second.String()), elsewhere}},
		{[]string{"--nodeport-addresses=172.20.0.77/32,fd00:172:20::/64"},
			[][]expectation{loopback(refused), own("server", first6, second.String()), own(refused, first4, mapped), elsewhere}},
		{[]string{"--localhost-nodeports=false"},
			[][]expectation{loopback(refused), own("server", first4, first6), elsewhere}},
		{[]string{"--nodeport-addresses=127.0.0.0/8,::1/128"},
			[][]expectation{loopback("server"), own(refused, first4, first6, second.String()), elsewhere}},
	} {
		w.Run(fmt.Sprint(row.flags), func(t *testing.T) {
			if w.Agent != nil {
				w.Agent.Kill()
			}
			w.StartAgent(row.flags...)
			for _, group := range row.want {
				for _, e := range group {
					for _, network := range []string{tcp, udp} {
						expectReached(t, e.from, network, e.to, e.want)
					}
				}
			}
		})
	}
	// A pod's own loopback stays the pod's, also where it uses that port itself.
	pod.Listen(tcp, agentlab.At("127.0.0.1:30081"), "own")
	expectReached(t, pod, tcp, on("127.0.0.1"), "own")
}

// Case A11, its family: the node's addresses come and go while the agent runs.
func TestNodePortsFollowTheNodesAddresses(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	server := agentlab.Serve(w.Node, "server")
	w.Write("np", agentlab.Service("np", "{type: NodePort, clusterIP: 10.96.0.13, ports: [{port: 80, nodePort: 30083}]}"),
		agentlab.Slice("np", "np-a", "[{name: '', port: 8080}]", agentlab.Ready(server)...))
	w.StartAgent("--nodeport-addresses=all")
	late := netip.MustParseAddr("172.20.0.78")
	for _, client := range clients(w) {
		expectReached(t, client, tcp, netip.AddrPortFrom(w.Node.Address4, 30083), "server")
		w.Must(w.Node.AddAddress("eth0", netip.PrefixFrom(late, 24)))
		w.AwaitReached(client, tcp, netip.AddrPortFrom(late, 30083), "server")
		w.Must(w.Node.RemoveAddress("eth0", netip.PrefixFrom(late, 24)))
		w.Eventually("the address that has gone serves nobody", func() (bool, string) {
			got := agentlab.Reach(client, tcp, netip.AddrPortFrom(late, 30083))
			return got != "server", got
		})
	}
}

// Case B10: a process that takes a port which a node port uses is reported and keeps it; a free choice of the kernel
// is never one of them.
func TestAProcessOnANodePortIsReported(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	server, host := agentlab.Serve(w.Node, "server"), w.Node.Process()
	const ports = "[{name: u, port: 80, protocol: UDP, nodePort: 30090}, {name: t, port: 80, protocol: TCP, nodePort: 30090}]"
	manifests := append([]string{dual("np", 14, "type: NodePort", ports)}, dualSlices("np", bothTargets, isReady, server)...)
	w.StartAgent()
	before := bind(host, tcp, agentlab.At("0.0.0.0:30090"))
	w.Write("np", manifests...)
	w.AwaitReached(host, tcp, netip.AddrPortFrom(w.Node.Address4, 30090), "server")
	before.Close()
	for _, row := range []struct{ network, address string }{
		{tcp, "0.0.0.0:30090"}, {udp, "0.0.0.0:30090"}, {tcp, "[::]:30090"}, {udp, "[::]:30090"},
		{tcp, netip.AddrPortFrom(w.Node.Address4, 30090).String()},
	} {
		mark := len(w.LogText())
		socket := bind(host, row.network, agentlab.At(row.address))
		if !socket.OK() {
			t.Errorf("bind %s %s: %s", row.network, row.address, socket.Errno)
		}
		awaitLog(w, mark, "default/np", "30090", fmt.Sprint(host.PID()))
		socket.Close()
	}
	// By choice it is refused, with the errno of a port that is taken.
	w.Agent.Kill()
	w.StartAgent("--refuse-node-port-bind")
	for _, address := range []string{"0.0.0.0:30090", "[::]:30090", netip.AddrPortFrom(w.Node.Address6, 30090).String()} {
		for _, network := range []string{tcp, udp} {
			if socket := bind(host, network, agentlab.At(address)); socket.Errno != "EADDRINUSE" {
				t.Errorf("bind %s %s: %q, want EADDRINUSE", network, address, socket.Errno)
			}
			pod := w.Node.Pod(lab.PodOptions{}).Process()
			if socket := bind(pod, network, netip.AddrPortFrom(agentlab.At("[::]:0").Addr(), 30090)); !socket.OK() {
				t.Errorf("bind %s in a pod: %s", network, socket.Errno)
			}
		}
	}
	mark := len(w.LogText())
	for _, network := range []string{tcp, udp} {
		var ports []int
		w.Must(host.Call("bind-any", bindAnyRequest{Network: network, Count: 10_000}, &ports))
		for _, port := range ports {
			if port >= 30000 && port <= 32767 {
				t.Fatalf("%s: a free choice of the kernel is %d, in the range of node ports", network, port)
			}
		}
	}
	if said := w.LogText()[mark:]; strings.Contains(said, "default/np") {
		t.Errorf("free choices are reported: %s", said)
	}
}

func bind(p *lab.Process, network string, address netip.AddrPort) *lab.Socket {
	return p.Open(process.SocketRequest{Network: network, Family: familyOf(address), Bind: address})
}
