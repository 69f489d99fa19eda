// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/shunt-lb/shunt/test/lab/process"
)

func (s *story) dialNodePort() error {
	dialled := s.shopfrontService.nodePortAt(s.node.Address4)
	s.say("So far everything happened inside connect(2). The sockets of %s are on another machine: %s sees nothing but "+
		"its packets, and programs on the node's devices translate those.", s.customer.Name, s.node.Name)
	if err := s.quoteShunt("explain", dialled.String(), "--from", "external"); err != nil {
		return err
	}
	s.say("Now %s dials, by IPv4 and by IPv6:", s.customer.Name)
	s.followPackets(dialled, s.shopfront, s.customer.Address4)
	s.followPackets(s.shopfrontService.nodePortAt(s.node.Address6), s.shopfront, s.customer.Address6)

	query := s.dnsService.nodePortAt(s.node.Address4)
	socket := s.customer.Open(process.SocketRequest{Network: process.UDP, Family: 4})
	defer socket.Close()
	answered := socket.ExchangeWith(query, "shop.default.svc?")
	s.show("sendto(2), unconnected, to", "%s", query)
	s.show("recvfrom(2) says: from", "%s", answered.From)
	s.claim(answered.OK() && answered.Server == s.dns.Name && answered.From == query &&
		answered.Peer.Addr() == s.customer.Address4,
		"UDP as well: %s saw %s's own address, and its reply comes from the node port.", s.dns.Name, s.customer.Name)
	return nil
}

func (s *story) podElsewhere() error {
	s.say("Service reports has its only pod on %s, where no shunt runs. Its replies must come back by %s, or nobody would "+
		"undo the translation: so here the client's address is replaced by the node's.",
		s.other.Name, s.node.Name)
	s.followPackets(s.reportsService.nodePortAt(s.node.Address4), s.reports, s.node.Address4)
	s.followPackets(s.reportsService.nodePortAt(s.node.Address6), s.reports, s.node.Address6)
	return nil
}

func (s *story) publicAddresses() error {
	s.say("A router sends 203.0.113.0/24 to %s. %s is in the spec of Service shopfront as an external IP, %s in its status "+
		"as its load balancer's.", s.node.Name, s.shopfrontService.external, s.shopfrontService.balancer)
	owned, err := s.nodeAddresses()
	if err != nil {
		return err
	}
	for _, address := range []netip.Addr{s.shopfrontService.external, s.shopfrontService.balancer} {
		s.followPackets(netip.AddrPortFrom(address, s.shopfrontService.port), s.shopfront, s.customer.Address4)
		s.claim(!slices.Contains(owned, address), "No device of the node has %s.", address)
	}
	return nil
}

// followPackets dials from outside the cluster and asks each side what it sees; the server must take seen for the
// client.
func (s *story) followPackets(dialled netip.AddrPort, server *server, seen netip.Addr) {
	here, there := s.customer.Capture("eth0"), server.Capture("eth0")
	socket := s.customer.Dial(process.TCP, dialled)
	if !socket.OK() {
		s.claim(false, "connect from %s to %s succeeds; it ended in %s.", s.customer.Name, dialled, socket.Errno)
		return
	}
	defer socket.Close()
	answered := socket.Exchange("hello")
	s.show("connect(2) asked for", "%s", dialled)
	s.show("the backend that answered", "%s (%s)", answered.Server, answered.Local)
	s.show("the client, as it saw it", "%s", answered.Peer)
	client, node, pod := s.customer.Address4, s.node.Address4, server.Address4
	if dialled.Addr().Is6() {
		client, node, pod = s.customer.Address6, s.node.Address6, server.Address6
	}
	// Of others are packets that look for neighbours.
	parties := []netip.Addr{client, node, pod, dialled.Addr()}
	atClient := s.showPackets(s.customer.Name, client, parties, here.Stop())
	atPod := s.showPackets(server.Name, pod, parties, there.Stop())

	s.claim(answered.OK() && answered.Server == server.Name && answered.Peer.Addr() == seen,
		"%s answered, and saw %s as the client.", server.Name, s.whose(seen))
	s.claim(slices.Equal(atClient, []netip.Addr{dialled.Addr()}),
		"All that %s sent and got are packets to and from the address that it dialled.", s.customer.Name)
	s.claim(slices.Equal(atPod, []netip.Addr{seen}),
		"All that %s got and sent are packets from and to %s.", server.Name, seen)
}

// showPackets shows the packets of a host with the other parties, and returns who of them had any.
func (s *story) showPackets(at string, host netip.Addr, parties []netip.Addr, pairs []process.Captured) []netip.Addr {
	var others []netip.Addr
	for _, pair := range pairs {
		other := pair.Source
		if other == host {
			other = pair.Destination
		}
		if (pair.Source != host && pair.Destination != host) || !slices.Contains(parties, other) {
			continue
		}
		s.show("packets at "+at, "%s > %s: %d", pair.Source, pair.Destination, pair.Packets)
		if !slices.Contains(others, other) {
			others = append(others, other)
		}
	}
	return others
}

// whose is a host's address in words.
func (s *story) whose(address netip.Addr) string {
	switch address {
	case s.customer.Address4, s.customer.Address6:
		return s.customer.Name + "'s own address"
	case s.node.Address4, s.node.Address6:
		return s.node.Name + "'s address"
	}
	return address.String()
}

// flow is an element of `shunt conntrack -o json`.
type flow struct {
	Client      netip.AddrPort `json:"client"`
	Backend     netip.AddrPort `json:"backend"`
	Masqueraded bool           `json:"masqueraded"`
	State       string         `json:"state"`
}

func (s *story) openFlows() error {
	// Many more than a connection has packets to open and close.
	const lines = 20
	s.say("%s opens a connection more to each node port and sends %d lines.", s.customer.Name, lines)
	for _, row := range []struct {
		service     *service
		server      *server
		masqueraded bool
	}{{s.shopfrontService, s.shopfront, false}, {s.reportsService, s.reports, true}} {
		before, err := s.packets(row.service)
		if err != nil {
			return err
		}
		socket := s.customer.Dial(process.TCP, row.service.nodePortAt(s.node.Address4))
		defer socket.Close()
		for range lines {
			socket.Exchange("hello")
		}
		after, err := s.packets(row.service)
		if err != nil {
			return err
		}
		s.show("Service "+row.service.name+", since then", "%d flow, packets %d there and %d back, %d bytes",
			after.Flows-before.Flows, after.Forward-before.Forward, after.Reply-before.Reply,
			after.BytesForward+after.BytesReply-before.BytesForward-before.BytesReply)
		s.claim(after.Flows == before.Flows+1 && after.Forward >= before.Forward+lines && after.Reply >= before.Reply+lines,
			"The counters of Service %s go up with it.", row.service.name)
		flows, err := s.flowsOf(row.service, socket.Inspect().Local)
		if err != nil {
			return err
		}
		s.claim(len(flows) == 1 && flows[0].State == "established" && flows[0].Masqueraded == row.masqueraded &&
			flows[0].Backend == netip.AddrPortFrom(row.server.Address4, webPort),
			"The kernel's table has this connection, established, with %s as its backend.", row.server.Name)
	}
	return s.quoteShunt("conntrack", "--client", s.customer.Address4.String())
}

// flowsOf are the flows of a client's socket to a service.
func (s *story) flowsOf(service *service, client netip.AddrPort) ([]flow, error) {
	output, err := s.shunt("conntrack", namespace+"/"+service.name, "-o", "json")
	if err != nil {
		return nil, err
	}
	var flows []flow
	if err := json.Unmarshal([]byte(output), &flows); err != nil {
		return nil, fmt.Errorf("read shunt conntrack: %w", err)
	}
	return slices.DeleteFunc(flows, func(f flow) bool { return f.Client != client }), nil
}

// packets are the packet path's counters of a service's IPv4 port.
func (s *story) packets(service *service) (packets, error) {
	services, err := s.programmed()
	if err != nil {
		return packets{}, err
	}
	for _, frontend := range services {
		if frontend.Name == service.name && frontend.Address == service.addresses[0] {
			return frontend.Packets, nil
		}
	}
	return packets{}, fmt.Errorf("read the counters of Service %s: it is not in the kernel", service.name)
}
