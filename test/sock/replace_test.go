// SPDX-License-Identifier: Apache-2.0

package sock

import (
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// TestEveryConnectReachesTheOldOrTheNewSet replaces services as fast as it can, each time with new backends in new
// cells, and deletes the old backends at once, which a real agent does only after a grace period. Other frontends come
// and go, so that the kernel gives the memory of elements to other keys.
func TestEveryConnectReachesTheOldOrTheNewSet(t *testing.T) {
	const replacements = 10000
	w := newWorld(t, func(o *loader.Options) { o.Capacity.Slots, o.Capacity.Services = 1<<16, 64 })
	servers := []*lab.Process{w.pod("a"), w.pod("b"), w.pod("c"), w.pod("d")}
	other := w.pod("foreign")
	var at []netip.AddrPort
	for _, p := range servers {
		at = append(at, p.Listen(tcp, netip.AddrPortFrom(p.Address4, 8080), p.Name))
	}
	foreign := other.Listen(tcp, netip.AddrPortFrom(other.Address4, 8080), other.Name)

	clusterIP := w.program(&service{protocol: protocolTCP, frontends: []netip.AddrPort{addrPort("10.96.0.10:80")},
		backends: at[:2]})
	external := w.program(&service{protocol: protocolTCP, kind: maps.KindExternalIP,
		frontends: []netip.AddrPort{addrPort("192.0.2.10:80")}, backends: at[:2]})
	w.address("10.96.0.10", maps.AddressClusterIP)
	w.address("192.0.2.10", maps.AddressService)
	var noise []*service
	for _, port := range []uint16{1, 2, 3, 4} {
		noise = append(noise, &service{protocol: protocolTCP, backends: []netip.AddrPort{foreign},
			frontends: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("10.96.0.11"), port)}})
	}

	var running []*lab.Series
	for range 2 {
		client := w.pod("client")
		for _, s := range []*service{clusterIP, external} {
			running = append(running, client.StartConnects(process.ConnectsRequest{
				Network: tcp, Address: s.frontends[0], Workers: 2,
			}))
		}
	}
	for i := range replacements {
		sets := [][]netip.AddrPort{at[:2], at[2:], at[1:2], at}
		clusterIP.backends = sets[i%len(sets)]
		external.backends = sets[(i+1)%len(sets)]
		w.slots %= 1 << 15
		w.program(clusterIP)
		w.program(external)
		n := noise[i%len(noise)]
		w.program(n)
		keys, _ := n.elements(maps.Run{})
		if i%2 == 0 {
			_, err := w.maps.DeleteServices(keys)
			w.must(err)
		}
	}
	total := 0
	for _, series := range running {
		result := series.Stop()
		total += result.Total()
		if len(result.Errnos) != 0 || result.Servers["foreign"] != 0 {
			t.Errorf("of %d connects: %v %v", result.Total(), result.Servers, result.Errnos)
		}
	}
	if total < 1000 {
		t.Errorf("only %d connects were made in %d replacements", total, replacements)
	}
	t.Logf("%d connects during %d replacements", total, replacements)
}
