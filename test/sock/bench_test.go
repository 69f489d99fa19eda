// SPDX-License-Identifier: Apache-2.0

package sock

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab/process"
	"golang.org/x/sys/unix"
)

// BenchmarkConnect4 prints what the kernel measures of the program itself, per call (run-ns/op): the connects are of UDP
// sockets, which send nothing. The usual ns/op is that of the whole client, socket and all.
func BenchmarkConnect4(b *testing.B) {
	w := newWorld(b)
	client, server := w.pod("client"), w.pod("server")
	hit := w.serve(udp, "10.96.0.10:53", server)
	sticky := w.serve(udp, "10.96.0.11:53", server)
	sticky.affinity = time.Hour
	w.program(sticky)
	w.address("10.96.0.10", maps.AddressClusterIP)
	nodePorts(w, server)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	w.must(err)
	b.Cleanup(func() { stats.Close() })
	var program *ebpf.Program
	for _, p := range w.datapath.Programs {
		if p.Name == "sock_connect4" {
			program = p.Program
		}
	}
	for _, row := range []struct {
		name string
		to   netip.AddrPort
	}{
		{"miss", netip.AddrPortFrom(server.Address4, 53)},
		{"hit", hit.frontends[0]},
		{"affinity", sticky.frontends[0]},
		{"nodeport", at(w.node.Address4, nodePort)},
		{"refused", addrPort("10.96.0.10:1")},
	} {
		b.Run(row.name, func(b *testing.B) {
			before, err := program.Stats()
			w.must(err)
			client.StartConnects(process.ConnectsRequest{Network: udp, Address: row.to, Count: b.N, Workers: 1,
				Silent: true, Timeout: usual}).Stop()
			after, err := program.Stats()
			w.must(err)
			b.ReportMetric(float64(after.Runtime-before.Runtime)/float64(after.RunCount-before.RunCount), "run-ns/op")
		})
	}
}
