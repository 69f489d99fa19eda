// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

func (s *story) affinity() error {
	const total = 100
	s.say("Service shop has sessionAffinity: ClientIP. Two pods make %d connections each:", total)
	for _, client := range []*lab.Process{s.client, s.second} {
		result := client.Connects(process.TCP, s.shop.frontend(), total)
		var names []string
		for name, count := range result.Servers {
			names = append(names, fmt.Sprintf("%s %d", name, count))
		}
		s.show("from "+client.Name, "%s", strings.Join(names, ", "))
		s.claim(len(result.Servers) == 1 && result.Total() == total,
			"%s stays with one backend.", client.Name)
	}
	return s.quoteShunt("affinity")
}

func (s *story) datagrams() error {
	frontend := s.dnsService.frontend()
	socket := s.client.Open(process.SocketRequest{Network: process.UDP, Family: 4})
	defer socket.Close()
	answered := socket.ExchangeWith(frontend, "shop.default.svc?")
	s.show("sendto(2), unconnected, to", "%s", frontend)
	s.show("the backend that answered", "%s (%s)", answered.Server, answered.Local)
	s.show("the client, as it saw it", "%s", answered.Peer)
	s.show("recvfrom(2) says: from", "%s", answered.From)
	s.claim(answered.OK() && answered.Server == s.dns.Name && answered.From == frontend,
		"The reply comes from the ClusterIP, so a resolver accepts it.")
	s.claim(answered.Peer.Addr() == s.client.Address4, "The backend saw %s's own address.", s.client.Name)

	connected := s.client.Dial(process.UDP, frontend)
	defer connected.Close()
	second, seen := connected.Exchange("again?"), connected.Inspect()
	s.claim(second.Server == s.dns.Name && seen.Peer == frontend,
		"A connected UDP socket works as well: its peer is %s, the kernel sends to %s.", seen.Peer, seen.KernelRemote)
	return nil
}

func (s *story) headless() error {
	services, err := s.programmed()
	if err != nil {
		return err
	}
	listed := false
	for _, service := range services {
		listed = listed || service.Name == s.headlessService.name
	}
	s.claim(!listed, "Service db has clusterIP: None: there is nothing of it in the kernel's maps.")
	// DNS gives clients of a headless Service the pods' own addresses.
	pod := netip.AddrPortFrom(s.database.Address4, dbPort)
	socket := s.client.Dial(process.TCP, pod)
	defer socket.Close()
	answered, seen := socket.Exchange("hello"), socket.Inspect()
	s.show("connect(2) asked for", "%s", pod)
	s.show("the kernel dialled", "%s", seen.KernelRemote)
	s.claim(answered.Server == s.database.Name && seen.KernelRemote == pod && seen.Peer == pod,
		"Its clients dial the pod's own address, and shunt changes nothing about that.")
	return nil
}

func (s *story) agentKilled() error {
	pid := s.agent.PID()
	series := s.second.StartConnects(process.ConnectsRequest{
		Network: process.TCP, Address: s.webService.frontend(), Workers: 1,
	})
	near := s.customer.Dial(process.TCP, s.shopfrontService.nodePortAt(s.node.Address4))
	defer near.Close()
	far := s.customer.Dial(process.TCP, s.reportsService.nodePortAt(s.node.Address4))
	defer far.Close()
	s.show(s.customer.Name+" is connected to", "%s and %s", near.Exchange("who?").Server, far.Exchange("who?").Server)
	s.agent.Kill()
	s.show(fmt.Sprintf("kill -9 %d, the agent", pid), "it ended: %v", s.agent.Wait())
	const total = 200
	result := s.client.Connects(process.TCP, s.webService.frontend(), total)
	s.bars(result)
	s.claim(result.Total() == total && result.Failed() == 0,
		"The agent is dead, and %d new connections succeed: programs and maps belong to the kernel.", total)
	s.outsideGoesOn(near, far, "The agent is dead")
	if err := s.quoteShunt("backends", namespace+"/"+s.webService.name); err != nil {
		return err
	}
	s.say("While it is away, %s becomes ready again. Then the agent starts anew.", s.web[2].Name)
	if err := s.publish(s.webService, ready(s.web)...); err != nil {
		return err
	}
	if err := s.startAgent(); err != nil {
		return err
	}
	if err := s.await(s.webService, len(s.web)); err != nil {
		return err
	}
	again := s.client.Connects(process.TCP, s.webService.frontend(), total)
	s.bars(again)
	s.claim(again.Total() == total && again.Servers[s.web[2].Name] > 0,
		"The new agent took over what it found and added what it had missed.")
	s.outsideGoesOn(near, far, "With the new agent")
	meanwhile := series.Stop()
	s.claim(meanwhile.Total() > 0 && meanwhile.Failed() == 0,
		"Pod %s connected %d times from before the kill until now: no connect failed.",
		s.second.Name, meanwhile.Total())
	return nil
}

// outsideGoesOn shows that connections from outside the cluster go on, and new ones succeed.
func (s *story) outsideGoesOn(near, far *lab.Socket, when string) {
	const total = 50
	here, there := near.Exchange("still there?"), far.Exchange("still there?")
	s.claim(here.OK() && here.Server == s.shopfront.Name && there.OK() && there.Server == s.reports.Name,
		"%s: the two connections that %s opened from outside go on.", when, s.customer.Name)
	result := s.customer.Connects(process.TCP, s.shopfrontService.nodePortAt(s.node.Address4), total)
	s.claim(result.Servers[s.shopfront.Name] == total && result.Failed() == 0,
		"%s: %d new ones succeed.", when, total)
}

func (s *story) ping() error {
	address := s.webService.addresses[0]
	pod := s.client.Ping(s.web[0].Address4, probePatience)
	nobody := s.client.Ping(address, probePatience)
	s.show("ping "+s.web[0].Address4.String(), "%s", answer(pod))
	s.show("ping "+address.String(), "%s", answer(nobody))
	s.claim(pod.Answered && !nobody.Answered,
		"A ClusterIP answers no ping: it is a rule for connections, not a machine. That is no fault.")
	return nil
}
