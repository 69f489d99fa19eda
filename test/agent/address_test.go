// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

func TestABindToANodePortFailsWhereTheFlagSaysSo(t *testing.T) {
	w := agentlab.New(t)
	w.Write("np",
		agentlab.Service("np", "{type: NodePort, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd00:96::1'], "+
			"ipFamilies: [IPv4, IPv6], ports: [{port: 80, nodePort: 30080}]}"),
		agentlab.Slice("np", "np-a", "[{name: '', port: 8080, protocol: TCP}]"))
	host, pod := w.Node.Process(), w.Node.Pod(lab.PodOptions{}).Process()
	for _, row := range []struct {
		flags []string
		want  string
	}{{nil, ""}, {[]string{"--refuse-node-port-bind"}, "EADDRINUSE"}, {nil, ""}} {
		w.StartAgent(row.flags...)
		for _, bind := range []struct {
			client  *lab.Process
			network string
			address string
			want    string
		}{
			{host, tcp, "0.0.0.0:30080", row.want}, {host, tcp, "[::]:30080", row.want},
			{host, udp, "0.0.0.0:30080", ""}, // the Service has TCP alone
			{host, tcp, "0.0.0.0:30081", ""}, {pod, tcp, "0.0.0.0:30080", ""},
		} {
			address := agentlab.At(bind.address)
			family := 4
			if address.Addr().Is6() {
				family = 6
			}
			socket := bind.client.Open(process.SocketRequest{Network: bind.network, Family: family, Bind: address})
			if socket.Errno != bind.want {
				t.Errorf("agent %v: %s bind of %s to %s: %q, want %q", row.flags, bind.network, bind.client.Name, bind.address,
					socket.Errno, bind.want)
			}
			if socket.OK() {
				socket.Close()
			}
		}
		w.Agent.Kill()
		_ = w.Agent.Wait() // killed
	}
}

// TestSourceRangesJudgeTheNodeByItsBindAddress: of several addresses the flag says which one is the node's.
func TestSourceRangesJudgeTheNodeByItsBindAddress(t *testing.T) {
	w := agentlab.New(t)
	server := agentlab.Serve(w.Node, "server")
	for _, address := range []string{"172.20.0.77/24", "fd00:172:20::77/64"} {
		w.Must(w.Node.AddAddress("eth0", netip.MustParsePrefix(address)))
	}
	w.Write("lb",
		agentlab.Service("lb", "{type: LoadBalancer, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd00:96::1'], "+
			"ipFamilies: [IPv4, IPv6], ports: [{port: 80}], "+
			"loadBalancerSourceRanges: [172.20.0.77/32, 'fd00:172:20::77/128']}")+
			"\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {ip: '2001:db8:ff::1'}]}}",
		agentlab.Slice("lb", "lb-4", "[{name: '', port: 8080, protocol: TCP}]", agentlab.Ready(server)...),
		agentlab.Slice("lb", "lb-6", "[{name: '', port: 8080, protocol: TCP}]", agentlab.Ready6(server)...))
	host := w.Node.Process()
	const denied = "ETIMEDOUT"
	for _, row := range []struct {
		bind   string
		v4, v6 string
	}{
		{"0.0.0.0", denied, denied},
		{"172.20.0.77", "server", denied},
		{"fd00:172:20::77", denied, "server"},
		{"::", denied, denied},
	} {
		w.StartAgent("--bind-address=" + row.bind)
		for address, want := range map[string]string{"203.0.113.1:80": row.v4, "[2001:db8:ff::1]:80": row.v6} {
			if got := agentlab.Reach(host, tcp, agentlab.At(address)); got != want {
				t.Errorf("--bind-address=%s: the node dials %s and gets %s, want %s", row.bind, address, got, want)
			}
		}
		w.Agent.Kill()
		_ = w.Agent.Wait() // killed
	}
}
