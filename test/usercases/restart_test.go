// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// pinnedLinks are the ids of the pinned links and of the programs that they run.
func pinnedLinks(w *agentlab.World) (links map[string]link.ID, programs map[string]ebpf.ProgramID) {
	w.T.Helper()
	links, programs = map[string]link.ID{}, map[string]ebpf.ProgramID{}
	directory := filepath.Join(w.Pins(), attach.LinksName)
	entries, err := os.ReadDir(directory)
	w.Must(err)
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		l, err := link.LoadPinnedLink(filepath.Join(directory, e.Name()), nil)
		w.Must(err)
		info, err := l.Info()
		l.Close()
		w.Must(err)
		links[e.Name()], programs[e.Name()] = info.ID, info.Program
	}
	return links, programs
}

// conversation is a socket that goes on talking to one server.
type conversation struct {
	*lab.Socket
	what   string
	to     netip.AddrPort // of an unconnected UDP socket
	server string
}

func (c *conversation) talk(t *testing.T) {
	t.Helper()
	got := c.ExchangeWith(c.to, "still there?")
	if c.server == "" {
		c.server = got.Server
	}
	if !got.OK() || got.Server != c.server {
		t.Errorf("%s: %s%s, before %s", c.what, got.Server, got.Errno, c.server)
	}
}

// converse opens TCP, connected and unconnected UDP sockets to each form of an address.
func converse(t *testing.T, number int, from ...*lab.Process) []*conversation {
	t.Helper()
	var all []*conversation
	for _, client := range from {
		for _, to := range forms(number, 80) {
			what := fmt.Sprintf("%s from %s", to, client.Name)
			all = append(all, &conversation{Socket: client.Dial(tcp, to), what: "TCP " + what},
				&conversation{Socket: client.Dial(udp, to), what: "connected UDP " + what},
				&conversation{Socket: client.Open(process.SocketRequest{Network: udp, Family: familyOf(to)}), to: to,
					what: "unconnected UDP " + what})
		}
	}
	for _, c := range all {
		c.talk(t)
	}
	return all
}

// Case A18: an agent that is killed, a change while it is away, and the start of another one, under load.
func TestARestartFailsNoConnectionAndKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	pods := []*lab.Process{agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b"), agentlab.Serve(w.Node, "c")}
	stable, changing := both("stable", 90, "", isReady, pods...), func(pods ...*lab.Process) []string {
		return both("changing", 91, "", isReady, pods...)
	}
	bound := both("bound", 92, affinityFields(10800), isReady, pods...)
	w.Write("stable", stable...)
	w.Write("changing", changing(pods[0], pods[1])...)
	w.Write("bound", bound...)
	w.StartAgent()
	from := clients(w)
	talks := append(converse(t, 90, from...), converse(t, 92, from...)...)
	homes := map[*lab.Process]string{}
	for _, client := range from {
		homes[client] = agentlab.Reach(client, tcp, forms(92, 80)[0])
	}
	ids := func(service string) []string {
		var all []string
		for _, f := range frontends(w) {
			if f.Name == service {
				all = append(all, fmt.Sprintf("%s id %d", f, f.ServiceID))
			}
		}
		return append(all, w.Shunt("backends", "default/"+service, "-o", "json"))
	}
	idsBefore := append(ids("stable"), ids("bound")...)
	links, programs := pinnedLinks(w)

	var load []*lab.Series
	for _, number := range []int{90, 91, 92} {
		for _, to := range forms(number, 80)[:2] {
			client := w.Node.Pod(lab.PodOptions{}).Process()
			load = append(load, client.StartConnects(process.ConnectsRequest{Network: tcp, Address: to}))
		}
		host, to := w.Node.Process(), forms(number, 80)[0]
		load = append(load, host.StartConnects(process.ConnectsRequest{Network: udp, Address: to}))
	}
	steps := []struct {
		name   string
		before func()
		flags  []string
	}{
		{"killed", func() { w.Agent.Kill() }, nil},
		{"killed, an endpoint changes meanwhile", func() {
			w.Agent.Kill()
			w.Write("changing", changing(pods[1], pods[2])...)
		}, nil},
		{"told to end, another configuration", func() {
			w.Agent.Signal(unix.SIGTERM)
			w.Must(w.Agent.Wait())
		}, []string{"--localhost-nodeports=false", "--max-services=1024", "--max-affinity=4096"}},
	}
	for _, step := range steps {
		w.Run(step.name, func(t *testing.T) {
			step.before()
			for _, c := range talks {
				c.talk(t)
			}
			w.StartAgent(step.flags...)
			for _, c := range talks {
				c.talk(t)
			}
			if after := append(ids("stable"), ids("bound")...); !slices.Equal(after, idsBefore) {
				t.Errorf("ids changed from\n\t%s\nto\n\t%s", list(idsBefore), list(after))
			}
			for client, home := range homes {
				expectOnly(t, client, tcp, forms(92, 80)[0], home)
			}
			linksNow, programsNow := pinnedLinks(w)
			for name, id := range links {
				if linksNow[name] != id || programsNow[name] == programs[name] {
					t.Errorf("link %s: id %d, before %d; program %d, before %d",
						name, linksNow[name], id, programsNow[name], programs[name])
				}
			}
			programs = programsNow
		})
	}
	awaitUsable(w, "changing", pods[1], pods[2])
	for _, to := range forms(91, 80) {
		if result := from[0].Connects(tcp, to, 40); result.Servers["a"] > 0 || result.Failed() > 0 {
			t.Errorf("%s: %v %v after the change", to, result.Servers, result.Errnos)
		}
	}
	total := 0
	for _, series := range load {
		result := series.Stop()
		total += result.Total()
		if result.Failed() > 0 || result.Total() == 0 {
			t.Errorf("under load: %v %v", result.Servers, result.Errnos)
		}
	}
	t.Logf("%d connections meanwhile", total)
}

// Case B12, as far as it has no kube-proxy in it: flows from before shunt, and its own, pass by its ends and starts.
func TestOpenFlowsPassByEveryStartAndEnd(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	pods := []*lab.Process{agentlab.Serve(w.Node, "a"), agentlab.Serve(w.Neighbour, "b")}
	from := clients(w)
	ports := "[{name: u, port: 80, protocol: UDP, nodePort: 30089}, {name: t, port: 80, nodePort: 30089}]"
	w.Write("web", append([]string{dual("web", 93, "type: LoadBalancer", ports) +
		"\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.93}]}}"}, dualSlices("web", bothTargets, isReady, pods...)...)...)
	var flows []*conversation
	open := func(count int, addresses ...netip.AddrPort) {
		for i := range count {
			for _, to := range addresses {
				network := []string{tcp, udp}[i%2]
				c := &conversation{Socket: from[i/2%2].Dial(network, to), what: fmt.Sprintf("%s %s", network, to)}
				c.talk(t)
				flows = append(flows, c)
			}
		}
	}
	open(12, netip.AddrPortFrom(pods[0].Address4, 8080), netip.AddrPortFrom(pods[1].Address6, 8080)) // before shunt
	w.StartAgent()
	open(16, forms(93, 80)[0], forms(93, 80)[1], agentlab.At("192.0.2.93:80"), netip.AddrPortFrom(w.Node.Address4, 30089),
		netip.AddrPortFrom(w.Node.Address6, 30089))
	for round := range 10 {
		switch round % 3 {
		case 0:
			w.Agent.Kill()
		case 1:
			w.Agent.Signal(unix.SIGTERM)
			w.Must(w.Agent.Wait())
		case 2: // also when everything of shunt goes: it is in no flow's way
			w.Agent.Kill()
			w.Shunt("cleanup")
		}
		for _, c := range flows {
			c.talk(t)
		}
		w.StartAgent()
		for _, c := range flows {
			c.talk(t)
		}
	}
}

// After `shunt cleanup` nothing is translated, and an agent starts as on a new node.
func TestAnAgentStartsAnewAfterACleanup(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	a := agentlab.Serve(w.Node, "a")
	w.Write("web", both("web", 94, affinityFields(600), isReady, a)...)
	from := clients(w)
	for range 3 {
		w.StartAgent()
		for _, to := range forms(94, 80) {
			expectReached(t, from[0], tcp, to, "a")
			expectReached(t, from[1], udp, to, "a")
		}
		if output, stderr, err := w.TryShunt("cleanup"); err == nil {
			t.Errorf("cleanup beside an agent succeeds: %s%s", output, stderr)
		}
		w.Agent.Signal(unix.SIGTERM)
		w.Must(w.Agent.Wait())
		w.Shunt("cleanup")
		if _, err := os.Stat(w.Pins()); err == nil {
			t.Error("cleanup leaves the pin directory")
		}
		if got := agentlab.Reach(from[1], tcp, forms(94, 80)[0]); got != "ENETUNREACH" {
			t.Errorf("after a cleanup the ClusterIP leads to %s", got)
		}
	}
}
