// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const probePatience = 300 * time.Millisecond

func (s *story) setTheScene() error {
	s.show(s.node.Name, "%s  shunt's agent runs here", s.node.Address4)
	for _, pod := range []*lab.Process{s.client, s.second} {
		s.show("  pod "+pod.Name, "%s  a client", pod.Address4)
	}
	for _, pod := range []*server{s.web[0], s.web[1], s.dns, s.database, s.shopfront} {
		s.show("  pod "+pod.Name, "%s  a server", pod.Address4)
	}
	s.show(s.other.Name, "%s", s.other.Address4)
	for _, pod := range []*server{s.web[2], s.reports} {
		s.show("  pod "+pod.Name, "%s  a server", pod.Address4)
	}
	s.show(s.customer.Name, "%s  a client outside the cluster", s.customer.Address4)
	s.say("There is no API server: Services and EndpointSlices are files. This is one of them:")
	if err := s.publishAll(); err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(s.manifests, "service-web.yaml"))
	if err != nil {
		return err
	}
	s.quote("service-web.yaml", string(manifest))
	before := s.client.Dial(process.TCP, s.webService.frontend())
	s.claim(!before.OK(), "Without shunt a connect from pod %s to %s ends in %s.",
		s.client.Name, s.webService.frontend(), before.Errno)
	if err := s.startAgent(); err != nil {
		return err
	}
	for service, backends := range map[*service]int{
		s.webService: 3, s.shop: 3, s.dnsService: 1, s.empty: 0, s.shopfrontService: 1, s.reportsService: 1,
	} {
		if err := s.await(service, backends); err != nil {
			return err
		}
	}
	s.quote("$ shunt agent \\", strings.Join(s.agentFlags(), " \\\n")+" &")
	return s.quoteShunt("services")
}

func (s *story) nobodyHasTheAddress() error {
	address := s.webService.addresses[0]
	addresses, err := s.nodeAddresses()
	if err != nil {
		return err
	}
	var texts []string
	for _, owned := range addresses {
		texts = append(texts, owned.String())
	}
	s.show("addresses of "+s.node.Name, "%s", strings.Join(texts, " "))
	s.claim(!slices.Contains(addresses, address), "No device of the node has %s.", address)

	asked := s.outside.ARP("eth0", address, probePatience)
	known := s.outside.ARP("eth0", s.node.Address4, probePatience)
	s.show("ARP who-has "+s.node.Address4.String(), "%s", answer(known))
	s.show("ARP who-has "+address.String(), "%s", answer(asked))
	inPod := s.client.ARP("eth0", address, probePatience)
	s.show("the same, inside the pod", "%s", answer(inPod))
	s.claim(known.Answered && !asked.Answered && !inPod.Answered,
		"Nobody answers ARP for %s, neither on the nodes' network nor to the pod.", address)
	return nil
}

func (s *story) oneConnection() error {
	frontend := s.webService.frontend()
	if err := s.quoteShunt("explain", frontend.String(), "--from", "pid:"+strconv.Itoa(s.client.PID())); err != nil {
		return err
	}
	s.say("So much for the maps. Now pod %s dials:", s.client.Name)
	pod := []netip.Addr{s.client.Address4, s.client.Address6}
	s.followConnection(s.client, pod, frontend)
	s.say("The same over IPv6, and by a process of the node itself:")
	s.followConnection(s.client, pod, netip.AddrPortFrom(s.webService.addresses[1], s.webService.port))
	node, err := s.nodeAddresses() // which of them is the source depends on the way to the backend
	if err != nil {
		return err
	}
	s.followConnection(s.node.Process(), node, frontend)
	return nil
}

// followConnection dials and asks each side what it sees; own are the client's addresses.
func (s *story) followConnection(client *lab.Process, own []netip.Addr, frontend netip.AddrPort) {
	capture := client.Capture("")
	socket := client.Dial(process.TCP, frontend)
	if !socket.OK() {
		s.claim(false, "connect from %s to %s succeeds; it ended in %s.", client.Name, frontend, socket.Errno)
		return
	}
	defer socket.Close()
	seen, answered := socket.Inspect(), socket.Exchange("hello")
	s.show("connect(2) asked for", "%s", frontend)
	s.show("the kernel dialled", "%s  (/proc/net/tcp)", seen.KernelRemote)
	s.show("the backend that answered", "%s", answered.Server)
	s.show("the client, as it saw it", "%s", answered.Peer)
	s.show("getpeername(2) says", "%s", seen.Peer)
	carried := 0
	for _, pair := range capture.Stop() {
		ends := []netip.Addr{pair.Source, pair.Destination}
		if slices.Contains(ends, seen.KernelRemote.Addr()) {
			s.show("packets seen", "%s > %s: %d", pair.Source, pair.Destination, pair.Packets)
		}
		if slices.Contains(ends, frontend.Addr()) {
			carried += pair.Packets
		}
	}
	s.show("packets with "+frontend.Addr().String(), "%d", carried)

	chosen := s.byAddress(seen.KernelRemote)
	s.claim(answered.OK() && chosen != nil && chosen.Name == answered.Server && carried == 0,
		"The kernel dialled the pod %s itself: no packet ever carried %s.", answered.Server, frontend.Addr())
	s.claim(slices.Contains(own, answered.Peer.Addr()), "The backend saw %s's own address.", client.Name)
	s.claim(seen.Peer == frontend, "The application still sees the ClusterIP as its peer.")
}

func (s *story) byAddress(address netip.AddrPort) *server {
	for _, candidate := range s.web {
		if address == netip.AddrPortFrom(candidate.Address4, webPort) ||
			address == netip.AddrPortFrom(candidate.Address6, webPort) {
			return candidate
		}
	}
	return nil
}

func (s *story) manyConnections() error {
	const total = 1000
	begin := time.Now()
	result := s.client.Connects(process.TCP, s.webService.frontend(), total)
	s.show("connections", "%d in %.2f s, %d failed", total, time.Since(begin).Seconds(), result.Failed())
	for errno, count := range result.Errnos {
		s.show("  "+errno, "%d, the slowest answer after %s", count, result.Slowest)
	}
	s.bars(result)
	// A fair choice leaves these bounds less than once in a million runs.
	const least, most = 250, 417
	fair := result.Failed() == 0
	for _, server := range s.web {
		count := result.Servers[server.Name]
		fair = fair && least <= count && count <= most
	}
	s.claim(fair, "All %d succeeded, spread evenly over the %d backends by random choice.", total, len(s.web))
	return nil
}

func (s *story) bars(result process.ConnectsResult) {
	for _, server := range s.web {
		s.bar(server.Name, result.Servers[server.Name], result.Total()+result.Failed())
	}
}

func (s *story) endpointLeaves() error {
	leaving := s.web[2]
	open := s.connectionTo(leaving)
	if open == nil {
		return nil
	}
	defer open.Close()
	s.say("%s holds a connection to %s through the Service. Then the EndpointSlice says ready: false.",
		s.client.Name, leaving.Name)
	unready := []endpoint{{pod: s.web[0]}, {pod: s.web[1]}, {pod: leaving, notReady: true}}
	if err := s.change(unready, 2); err != nil {
		return err
	}
	s.connectsWithout(leaving, "is unready", open)

	successor := serve(s.other, "web-4", process.TCP, webPort)
	s.web = append(s.web, successor)
	s.say("Now it leaves the slice altogether, and %s takes its place.", successor.Name)
	if err := s.change([]endpoint{{pod: s.web[0]}, {pod: s.web[1]}, {pod: successor}}, 3); err != nil {
		return err
	}
	s.connectsWithout(leaving, "has left", open)
	return nil
}

// change publishes new endpoints of the web Service and waits until the kernel has so many.
func (s *story) change(endpoints []endpoint, backends int) error {
	if err := s.publish(s.webService, endpoints...); err != nil {
		return err
	}
	return s.await(s.webService, backends)
}

// connectsWithout shows that new connections avoid a backend, and that an open one keeps it.
func (s *story) connectsWithout(leaving *server, what string, open *lab.Socket) {
	const total = 200
	result := s.client.Connects(process.TCP, s.webService.frontend(), total)
	s.bars(result)
	s.claim(result.Total() == total && result.Servers[leaving.Name] == 0,
		"%s %s: of %d new connections none goes there, and none fails.", leaving.Name, what, total)
	still := open.Exchange("still there?")
	s.claim(still.OK() && still.Server == leaving.Name,
		"The connection that was open before still talks to %s.", leaving.Name)
}

// connectionTo dials the web Service until it gets the wanted backend.
func (s *story) connectionTo(wanted *server) *lab.Socket {
	for range 200 {
		socket := s.client.Dial(process.TCP, s.webService.frontend())
		if socket.OK() && socket.Exchange("who?").Server == wanted.Name {
			return socket
		}
		socket.Close()
	}
	s.claim(false, "200 connections to %s reach %s at least once.", s.webService.frontend(), wanted.Name)
	return nil
}

func (s *story) refused() error {
	// Whoever sends a SYN that nobody answers waits at least this long, for the second one.
	const atOnce = time.Second
	for _, row := range []struct {
		address netip.AddrPort
		why     string
	}{
		{s.empty.frontend(), "Service empty has no endpoints"},
		{netip.AddrPortFrom(s.webService.addresses[0], 81), "Service web declares no port 81"},
	} {
		socket := s.client.Dial(process.TCP, row.address)
		s.show("connect to "+row.address.String(), "%s after %s", socket.Errno, socket.Duration.Round(time.Microsecond))
		s.claim(socket.Errno == "ECONNREFUSED" && socket.Duration < atOnce,
			"%s: the connection is refused at once. No packet was sent, nobody waits for a timeout.", row.why)
	}
	return s.quoteShunt("explain", s.empty.frontend().String())
}

// nodeAddresses are the IPv4 addresses of all devices of the node, each once.
func (s *story) nodeAddresses() ([]netip.Addr, error) {
	found, err := s.node.Netlink().AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", s.node.Name, err)
	}
	var addresses []netip.Addr
	for _, candidate := range found {
		address, ok := netip.AddrFromSlice(candidate.IP.To4())
		if ok && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	return addresses, nil
}

func answer(result process.ProbeResult) string {
	switch {
	case result.Answered:
		return result.By
	case result.Errno != "":
		return "no answer (" + result.Errno + ")"
	}
	return fmt.Sprintf("no answer in %s", probePatience)
}
