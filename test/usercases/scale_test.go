// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab"
)

// many are ready endpoints with made-up addresses of one family, from the first-th on.
func many(six bool, first, count int, conditions string) []agentlab.Endpoint {
	var all []agentlab.Endpoint
	for i := first; i < first+count; i++ {
		address := fmt.Sprintf("10.245.%d.%d", i/250, i%250+1)
		if six {
			address = fmt.Sprintf("fd00:10:245::%x", i+1)
		}
		all = append(all, agentlab.Endpoint{Address: netip.MustParseAddr(address), Conditions: conditions})
	}
	return all
}

// slices12 are the slices of both families of a Service with many endpoints.
func slices12(service string, endpoints int) []string {
	const count = 12
	var all []string
	for i := range count {
		from, to := i*endpoints/count, (i+1)*endpoints/count
		for _, six := range []bool{false, true} {
			name := fmt.Sprintf("%s-%d-%v", service, i, six)
			all = append(all, agentlab.Slice(service, name, bothTargets, many(six, from, to-from, isReady)...))
		}
	}
	return all
}

// chiSquared measures how far counts are from even.
func chiSquared(counts map[netip.AddrPort]int, cells, total int) float64 {
	expected := float64(total) / float64(cells)
	sum := float64(cells-len(counts)) * expected // cells that nothing fell into
	for _, count := range counts {
		sum += (float64(count) - expected) * (float64(count) - expected) / expected
	}
	return sum
}

// Case A16: many slices, an address in two of them, no bias, and nothing stale when the Service shrinks.
func TestALargeServiceInManySlicesIsEvenAndShrinksToWhatIsLeft(t *testing.T) {
	t.Parallel()
	const endpoints, selected = 1100, 100_000
	w := agentlab.New(t)
	service := dual("large", 80, "", bothPorts)
	// For a moment the first endpoint is in another slice too, not ready there; the last one twice ready.
	copies := func(six bool) string {
		conditions := []string{isUnready, isReady}
		both := append(many(six, 0, 1, conditions[0]), many(six, endpoints-1, 1, conditions[1])...)
		return agentlab.Slice("large", fmt.Sprintf("large-copies-%v", six), bothTargets, both...)
	}
	w.Write("large", append([]string{service, copies(false), copies(true)}, slices12("large", endpoints)...)...)
	w.StartAgent("--max-backends=8192", "--max-slots=32768")
	want := map[string]int{maps.MapServices: 4, maps.MapBackends: 4 * endpoints, maps.MapServiceNames: 4}
	awaitElements(w, want)
	client := w.Node.Pod(lab.PodOptions{}).Process()
	for _, row := range []struct {
		to    netip.AddrPort
		count int
	}{{forms(80, 80)[0], selected}, {forms(80, 80)[1], selected / 4}} {
		var result selectionResult
		w.Must(client.Call("select", selectionRequest{Address: row.to, Count: row.count}, &result))
		if len(result.Errnos) > 0 {
			t.Errorf("%s: %v", row.to, result.Errnos)
		}
		// The mean is 1099, the standard deviation 47; six of them are passed by once in 10^9.
		freedom := float64(endpoints - 1)
		most := freedom + 6*math.Sqrt(2*freedom)
		if got := chiSquared(result.Backends, endpoints, row.count); got > most {
			t.Errorf("%s: chi-squared of %d selections is %.0f, at most %.0f is even", row.to, row.count, got, most)
		} else {
			t.Logf("%s: chi-squared of %d selections over %d backends is %.0f", row.to, row.count, len(result.Backends), got)
		}
	}
	// Endpoints move between slices: nobody misses one.
	w.Write("large", append([]string{service}, slices12("large", endpoints)...)...)
	awaitElements(w, want)
	w.Write("large", append([]string{service}, slices12("large", 3)...)...)
	awaitElements(w, map[string]int{maps.MapServices: 4, maps.MapBackends: 4 * 3, maps.MapServiceNames: 4})
	var result selectionResult
	w.Must(client.Call("select", selectionRequest{Address: forms(80, 80)[0], Count: 3000}, &result))
	if len(result.Backends) != 3 || chiSquared(result.Backends, 3, 3000) > 40 {
		t.Errorf("three endpoints are left, selected are %v", result.Backends)
	}
	for _, f := range frontends(w) {
		if f.Internal.Backends != 3 {
			t.Errorf("%s has a run of another length", f)
		}
	}
}

// Case A16, its end: a map is full. What is programmed goes on, other Services too, and the fault names what to do.
func TestAFullMapIsReportedAndHurtsNobodyElse(t *testing.T) {
	t.Parallel()
	w := agentlab.New(t)
	server := agentlab.Serve(w.Node, "server")
	grown := func(endpoints int) []string {
		return []string{
			agentlab.Service("grown", "{clusterIP: 10.96.0.81, ports: [{name: t, port: 80}]}"),
			agentlab.Slice("grown", "grown-a", bothTargets,
				append(many(false, 0, endpoints, isReady), agentlab.Ready(server)...)...),
		}
	}
	w.Write("grown", grown(0)...)
	w.Write("other", agentlab.Simple("other", "10.96.0.82", agentlab.Ready(server)...)...)
	w.StartAgent("--max-backends=64", "--max-slots=1024")
	client := w.Node.Pod(lab.PodOptions{}).Process()
	w.AwaitReached(client, tcp, agentlab.At("10.96.0.81:80"), "server")
	mark := len(w.LogText())
	w.Write("grown", grown(200)...)
	awaitLog(w, mark, "default/grown", "backends", "64", "--max-backends")
	expectOnly(t, client, tcp, agentlab.At("10.96.0.81:80"), "server")
	expectOnly(t, client, tcp, agentlab.At("10.96.0.82:80"), "server")
	w.Write("late", agentlab.Simple("late", "10.96.0.83", agentlab.Ready(server)...)...)
	w.AwaitReached(client, tcp, agentlab.At("10.96.0.83:80"), "server")
	host := w.Node.Process()
	for name, want := range map[string]string{
		"shunt_map_capacity_elements": `{map="backends"} 64`, "shunt_map_elements": `{map="backends"} 3`,
	} {
		w.Eventually("metric "+name, func() (bool, string) {
			text := metrics(w, host)
			return strings.Contains(text, name+want+"\n"), text
		})
	}
	w.Eventually("metric of failures", func() (bool, string) {
		text := metrics(w, host)
		return strings.Contains(text, "shunt_sync_failures_total{family=\"IPv4\"}"), text
	})
	w.Write("grown", grown(10)...)
	awaitElements(w, map[string]int{maps.MapBackends: 10 + 3})
}

// metrics are the lines about shunt's maps that the agent serves.
func metrics(w *agentlab.World, host *lab.Process) string {
	socket := host.Dial(tcp, agentlab.At("127.0.0.1:10249"))
	defer socket.Close()
	socket.Send(netip.AddrPort{}, "GET /metrics HTTP/1.0\r\n\r\n")
	var text strings.Builder
	for {
		got := socket.Receive(agentlab.Patience)
		if text.WriteString(got.Data); !got.OK() || got.EOF {
			return text.String()
		}
	}
}

// Case A17: many Services, of which one changes; and all of them go and come three times.
func TestManyServicesComeAndGoWithoutATrace(t *testing.T) {
	t.Parallel()
	const services, perFile = 2000, 100
	w := agentlab.New(t)
	server := agentlab.Serve(w.Node, "server")
	writeAll := func() {
		for file := range services / perFile {
			var documents []string
			for i := range perFile {
				n := file*perFile + i
				name := fmt.Sprintf("s%d", n)
				documents = append(documents, agentlab.Simple(name, fmt.Sprintf("10.97.%d.%d", n/250, n%250+1),
					many(false, n%100, 10, isReady)...)...)
			}
			w.Write(fmt.Sprintf("many-%d", file), documents...)
		}
	}
	w.Write("one", agentlab.Simple("one", "10.96.0.84", agentlab.Ready(server)...)...)
	w.StartAgent("--max-services=4096", "--max-backends=65536", "--max-slots=131072")
	loaded := map[string]int{
		maps.MapServices: services + 1, maps.MapBackends: 10*services + 1, maps.MapServiceNames: services + 1,
	}
	empty := map[string]int{maps.MapServices: 1, maps.MapBackends: 1, maps.MapServiceNames: 1}
	client := w.Node.Pod(lab.PodOptions{}).Process()
	var resident []int
	for range 3 {
		writeAll()
		awaitElements(w, loaded)
		expectReached(t, client, tcp, agentlab.At("10.96.0.84:80"), "server")
		for file := range services / perFile {
			w.Remove(fmt.Sprintf("many-%d", file))
		}
		awaitElements(w, empty)
		resident = append(resident, residentKiB(w))
	}
	t.Logf("resident after each round: %v KiB", resident)
	if resident[2] > resident[0]*3/2 {
		t.Errorf("resident memory grows from round to round: %v KiB", resident)
	}
}

// residentKiB is the agent's resident memory.
func residentKiB(w *agentlab.World) int {
	w.T.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.Agent.PID()))
	w.Must(err)
	_, after, found := strings.Cut(string(status), "VmRSS:")
	fields := strings.Fields(after)
	if !found || len(fields) == 0 {
		w.T.Fatal("no VmRSS")
	}
	kib, err := strconv.Atoi(fields[0])
	w.Must(err)
	return kib
}
