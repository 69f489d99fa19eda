// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/writer"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// attachPrograms loads and attaches the programs without an agent.
func attachPrograms(t *testing.T, node *lab.Node) {
	t.Helper()
	directory, err := loader.Lock(node.BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	defer directory.Close()
	cookie, err := node.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	datapath, err := loader.Load(loader.Options{
		Directory: directory, NetnsCookie: cookie,
		Capacity: loader.Capacity{Services: 256, Backends: 1 << 16, Slots: 1 << 17, Affinity: 256, SourceRanges: 64},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer datapath.Close()
	if err := attach.Sockets(directory, node.CgroupRoot, datapath.Programs); err != nil {
		t.Fatal(err)
	}
}

// group is a Service with the servers that it may ever have.
type group struct {
	name    string
	address netip.AddrPort
	pods    []*lab.Process
	ports   []netip.AddrPort
}

func newGroup(node *lab.Node, number int) *group {
	g := &group{name: fmt.Sprintf("s%d", number), address: agentlab.At(fmt.Sprintf("10.96.0.%d:80", number))}
	for i := range 4 {
		pod := agentlab.Serve(node, fmt.Sprintf("%s-%d", g.name, i))
		g.pods = append(g.pods, pod)
		g.ports = append(g.ports, netip.AddrPortFrom(pod.Address4, 8080))
	}
	return g
}

// having is the Service with these of its servers.
func (g *group) having(servers ...int) programService {
	s := programService{Name: g.name, Address: g.address.Addr()}
	for _, i := range servers {
		s.Backends = append(s.Backends, g.ports[i])
	}
	return s
}

// owns says that a server belongs to the group.
func (g *group) owns(server string) bool { return strings.HasPrefix(server, g.name+"-") }

// steady leaves enough of the machine to the programs under test; without a pause a connect follows the other.
var steady = process.ConnectsRequest{Workers: 1, Pause: time.Millisecond}

// hammer keeps connecting to each group from processes of their own until stop, which checks that no connect failed
// and none reached a server of another group.
func hammer(t *testing.T, node *lab.Node, how process.ConnectsRequest, groups ...*group) (stop func()) {
	t.Helper()
	series := map[*group][]*lab.Series{}
	for _, g := range groups {
		for range 2 {
			client := node.Pod(lab.PodOptions{}).Process()
			how.Network, how.Address = tcp, g.address
			series[g] = append(series[g], client.StartConnects(how))
		}
	}
	return func() {
		t.Helper()
		total := 0
		for g, all := range series {
			for _, one := range all {
				result := one.Stop()
				total += result.Total()
				if result.Failed() > 0 || result.Total() == 0 {
					t.Errorf("connects to %s: %d succeeded, failed: %v", g.name, result.Total(), result.Errnos)
				}
				for server := range result.Servers {
					if !g.owns(server) {
						t.Errorf("a connect to %s reached %s", g.name, server)
					}
				}
			}
		}
		t.Logf("%d connects meanwhile", total)
	}
}

func TestADeathBetweenAnyTwoMapOperationsIsHealedAndNoConnectFails(t *testing.T) {
	node := lab.New(t).Node(lab.NodeOptions{})
	attachPrograms(t, node)
	stable, changing := newGroup(node, 1), newGroup(node, 2)
	client := node.Pod(lab.PodOptions{}).Process()
	states := [][]programService{
		{stable.having(0, 1), changing.having(0, 1)},
		{stable.having(0, 1), changing.having(2, 3), {Name: "extra", Address: netip.MustParseAddr("10.96.0.9")}},
		{stable.having(1, 2), changing.having(1, 2, 3)},
	}
	run := func(state []programService, killAt int) (alive bool) {
		t.Helper()
		programmer := node.Process()
		defer programmer.Kill()
		var result programResult
		err := programmer.Call("program", programRequest{BPFFS: node.BPFFS, Services: state, KillAt: killAt}, &result)
		if err != nil && (killAt == 0 || !errors.Is(err, lab.ErrProcessEnded)) {
			t.Fatalf("program: %v", err)
		}
		return err == nil
	}
	run(states[0], 0)
	stop := hammer(t, node, steady, stable, changing)
	deaths := 0
	for from := range states {
		to := states[(from+1)%len(states)]
		for killAt := 1; !run(to, killAt); killAt++ {
			deaths++
			run(to, 0)
			checkReached(t, client, changing, to[1])
			run(states[from], 0)
			checkReached(t, client, changing, states[from][1])
		}
	}
	stop()
	if deaths < 30 {
		t.Errorf("%d deaths: fewer than there are operations", deaths)
	}
	t.Logf("%d deaths", deaths)
	checkLeftovers(t, node, states[0])
}

// checkReached connects some times and wants exactly the servers of the state.
func checkReached(t *testing.T, client *lab.Process, g *group, state programService) {
	t.Helper()
	wanted := map[string]bool{}
	for _, backend := range state.Backends {
		for i, port := range g.ports {
			if port == backend {
				wanted[g.pods[i].Name] = true
			}
		}
	}
	result := client.Connects(tcp, g.address, 20)
	for server := range result.Servers {
		if !wanted[server] {
			t.Errorf("%s reached %s, which it has not any more: it has %v", g.name, server, wanted)
		}
	}
	if result.Failed() > 0 {
		t.Errorf("connects to %s failed: %v", g.name, result.Errnos)
	}
}

// checkLeftovers wants the maps to hold the state and nothing else.
func checkLeftovers(t *testing.T, node *lab.Node, state []programService) {
	t.Helper()
	kernel, err := maps.Open(node.BPFFS+"/"+loader.DirectoryName, maps.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	backends := 0
	for _, s := range state {
		backends += len(s.Backends)
	}
	usage, err := kernel.Usage()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{
		maps.MapServices: len(state), maps.MapBackends: backends, maps.MapServiceNames: len(state),
	} {
		if got := int(usage[name].Used); got != want {
			t.Errorf("map %s has %d elements, want %d", name, got, want)
		}
	}
}

func TestConnectsDuringTenThousandChangesReachTheOldOrTheNewSet(t *testing.T) {
	const changesToMake = 10_000
	node := lab.New(t).Node(lab.NodeOptions{})
	attachPrograms(t, node)
	directory, err := loader.Lock(node.BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	defer directory.Close()
	kernel, err := maps.Open(directory.Path, maps.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	w := writer.New(kernel, plan.New(writer.LimitsOf(kernel)), writer.Options{})

	groups := []*group{newGroup(node, 1), newGroup(node, 2)}
	sets := [][]int{{0, 1}, {2, 3}, {0, 1, 2, 3}, {3}}
	cluster := desire([]programService{groups[0].having(sets[0]...), groups[1].having(sets[0]...)})
	if err := w.Write(changes(cluster)).Err(); err != nil {
		t.Fatal(err)
	}
	client := node.Pod(lab.PodOptions{}).Process()
	stop := hammer(t, node, process.ConnectsRequest{Workers: 2}, groups...)
	for i := 1; i <= changesToMake; i++ {
		g := groups[i%len(groups)]
		state := g.having(sets[i/len(groups)%len(sets)]...)
		setService(cluster, state)
		if err := w.Write(changes(cluster)).Err(); err != nil {
			t.Fatal(err)
		}
		if err := w.Collect().Err(); err != nil {
			t.Fatal(err)
		}
		if i%500 == 0 {
			checkReached(t, client, g, state)
		}
	}
	stop()
}
