// SPDX-License-Identifier: Apache-2.0

// Package explain tells what happens to a connection: it walks the programmed maps exactly as bpf/frontend.h,
// bpf/affinity.h and bpf/select.h do, and writes down each step. It reads through maps.Reader alone, never changes
// anything, and knows neither Kubernetes nor files.
package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// Explainer answers questions about what is programmed.
type Explainer struct {
	Reader maps.Reader
	// Datapath is what works on these maps.
	Datapath Datapath
	// Now is CLOCK_MONOTONIC in nanoseconds, the clock of affinity entries.
	Now func() uint64
}

// Datapath is what the programs do beside what the maps say.
type Datapath struct {
	// Hooks are those that have a program: connect4, sendmsg6, …
	Hooks []string
	// NodeCookie is the cookie of the node's network namespace.
	NodeCookie uint64
	// NodeAddresses are what source ranges judge the node's own processes by, one of each family at most.
	NodeAddresses []netip.Addr
	// LoopbackNodePorts: the node's own processes reach node ports on loopback.
	LoopbackNodePorts bool
	// HostOnly: only the node's own sockets are translated.
	HostOnly bool
	// SetRetval: a refusal has the errno that it should have.
	SetRetval bool
	// ReadKernel: the programs find out a pod's address.
	ReadKernel bool
	// PacketDevices is how many devices have the packet path's programs.
	PacketDevices int
}

// Explain answers for each address that t means: one for an address, each frontend's for a Service's name.
func (e Explainer) Explain(t Target, c Client) ([]Answer, error) {
	var err error
	if c, err = e.place(c); err != nil {
		return nil, err
	}
	targets := []AddressPort{{Address: t.Address, Port: t.Port, Protocol: t.Protocol.String()}}
	if !t.Address.IsValid() {
		if targets, err = e.frontendsOf(t); err != nil {
			return nil, err
		}
	}
	answers := make([]Answer, 0, len(targets))
	for _, target := range targets {
		a, err := e.explainOne(target, c)
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// place finds out whether a client is the node itself, and what is known of the node.
func (e Explainer) place(c Client) (Client, error) {
	if c.Kind == Pod {
		isNode, err := e.isNode(c)
		if err != nil {
			return c, err
		}
		if isNode {
			c.Kind = Node
		}
	}
	if c.Kind == Node {
		c.NetnsCookie = e.Datapath.NodeCookie
		c.Addresses = e.Datapath.NodeAddresses
	}
	return c, nil
}

func (e Explainer) isNode(c Client) (bool, error) {
	if c.NetnsCookie != 0 {
		return c.NetnsCookie == e.Datapath.NodeCookie, nil
	}
	for _, a := range c.Addresses {
		flags, _, err := e.Reader.Address(maps.AddressOf(a))
		if err != nil || flags&maps.AddressOnNode != 0 || a.IsLoopback() {
			return err == nil, err
		}
	}
	return false, nil
}

// explainOne walks the maps for one address.
func (e Explainer) explainOne(target AddressPort, c Client) (Answer, error) {
	w := walk{
		Explainer: e,
		Answer:    Answer{Target: target, Client: c},
		client:    c.Address(model.FamilyOf(target.Address)),
	}
	err := w.run()
	return w.Answer, err
}

// walk is the state of one walk.
type walk struct {
	Explainer
	Answer
	// client is the client's address of the target's family; invalid when it is not known.
	client  netip.Addr
	service maps.Service
	// byPacket: not the client's socket is translated, its packets are.
	byPacket bool
}

func (w *walk) run() error {
	w.findPath()
	if w.Target.Protocol == model.SCTP.String() && !w.byPacket {
		return w.passSCTP()
	}
	if w.Datapath.HostOnly && w.Client.Kind == Pod && !w.byPacket {
		w.conclude(Untouched, ReasonHostOnly, "The agent runs with --socket-lb=host: only the node's own sockets are "+
			"translated, a pod's are not.")
		return nil
	}
	found, err := w.lookup()
	if err != nil || !found || !w.hooks() {
		return err
	}
	run := w.chooseRun()
	if w.Backends, err = w.backends(run); err != nil {
		return err
	}
	if done, err := w.checkSource(); err != nil || done {
		return err
	}
	w.otherPorts()
	w.notHandled()
	if w.Client.Kind == External && !w.byPacket {
		w.noPacketPath(" The backends below are what is programmed for such clients.")
		return nil
	}
	if !slices.ContainsFunc(w.Backends, func(b Backend) bool { return b.State == BackendUsable }) {
		w.empty()
		return nil
	}
	if err := w.affinity(); err != nil {
		return err
	}
	w.choose()
	w.reply()
	return nil
}

func (w *walk) step(topic, format string, args ...any) {
	w.Steps = append(w.Steps, Step{Topic: topic, Text: fmt.Sprintf(format, args...)})
}

func (w *walk) conclude(v Verdict, r Reason, format string, args ...any) {
	w.Verdict, w.Reason = v, r
	w.step("Result", format, args...)
}

// lookup is frontend_match of frontend.h, in its order.
func (w *walk) lookup() (bool, error) {
	a := w.Target.Address
	if a.IsLoopback() || a.IsUnspecified() {
		if w.Client.Kind != Node || !w.Datapath.LoopbackNodePorts {
			return false, w.notAService(0)
		}
		return w.nodePort(0)
	}
	key := w.key(a)
	service, ok, err := w.Reader.Service(key)
	if err != nil {
		return false, err
	}
	if ok {
		return true, w.found(key, service)
	}
	flags, _, err := w.Reader.Address(key.Address)
	if err != nil {
		return false, err
	}
	if flags&maps.AddressNodePorts != 0 {
		return w.nodePort(flags)
	}
	return false, w.missed(flags)
}

// nodePort looks for a node port.
func (w *walk) nodePort(flags maps.AddressFlags) (bool, error) {
	wildcard := w.key(unspecified(w.Target.Address))
	service, ok, err := w.Reader.Service(wildcard)
	if err != nil {
		return false, err
	}
	if ok {
		return true, w.found(wildcard, service)
	}
	if flags&maps.AddressClusterIP != 0 {
		return false, w.missed(flags)
	}
	w.step("Owner", "%s serves node ports, but no Service has the node port %d/%s.", w.Target.Address, w.Target.Port,
		w.Target.Protocol)
	w.conclude(Untouched, ReasonNotANodePort, "shunt leaves it alone: whoever listens there answers.")
	return false, nil
}

// missed tells a ClusterIP's undefined port from what is no Service's address.
func (w *walk) missed(flags maps.AddressFlags) error {
	switch {
	case flags&maps.AddressClusterIP == 0:
		return w.notAService(flags)
	case flags&maps.AddressOnNode != 0:
		w.step("Owner", "%s is a ClusterIP, and also an address of one of this node's own devices.", w.Target.Address)
		w.conclude(Untouched, ReasonOnNode, "shunt leaves it alone, so that whoever listens there (a node-local DNS cache, "+
			"say) answers.")
		return nil
	}
	return w.undefinedPort()
}

func (w *walk) key(a netip.Addr) maps.Frontend {
	p, _ := ParseProtocol(w.Target.Protocol)
	return maps.Frontend{Address: maps.AddressOf(a), Port: w.Target.Port, Protocol: uint8(p)}
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Unmap().Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (w *walk) found(key maps.Frontend, s maps.Service) error {
	w.service = s
	name, named, err := w.Reader.ServiceName(s.ServiceID)
	if err != nil {
		return err
	}
	w.Service = ServiceOf(s.ServiceID, name)
	w.Frontend = &Frontend{
		AddressPort: AddressPort{Address: key.Address.Addr(), Port: key.Port, Protocol: w.Target.Protocol},
		Kind:        KindName(s.Kind),
	}
	owner := w.Service.String()
	if !named {
		owner = "a Service whose name is not known"
	}
	w.step("Owner", "%s of %s (service id %d).", kindWords(s.Kind, key.Port), owner, s.ServiceID)
	return nil
}

// frontendsOf finds the addresses of a Service, sorted. A node port stands for one of the node's addresses.
func (e Explainer) frontendsOf(t Target) ([]AddressPort, error) {
	ids, err := e.serviceIDs(t)
	if err != nil {
		return nil, err
	}
	nodeAddrs, err := e.nodePortAddresses()
	if err != nil {
		return nil, err
	}
	var found []AddressPort
	for entry, err := range e.Reader.Services() {
		if err != nil {
			return nil, err
		}
		portNamed, ok := ids[entry.Value.ServiceID]
		if !ok || !portNamed && fmt.Sprint(entry.Key.Port) != t.ServicePort {
			continue
		}
		a := entry.Key.Address.Addr()
		if a.IsUnspecified() {
			if local, ok := nodeAddrs[model.FamilyOf(a)]; ok {
				a = local
			}
		}
		found = append(found, AddressPort{a, entry.Key.Port, model.Protocol(entry.Key.Protocol).String()})
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("find Service %s: it has no port %q here: see shunt services --service %s", t.Service,
			t.ServicePort, t.Service)
	}
	slices.SortFunc(found, compareAddressPorts)
	return found, nil
}

// serviceIDs finds the service ids of a name; the value is false where the port must still match by number.
func (e Explainer) serviceIDs(t Target) (map[uint32]bool, error) {
	ids := map[uint32]bool{}
	byName := map[uint32]bool{}
	for entry, err := range e.Reader.ServiceNames() {
		if err != nil {
			return nil, err
		}
		s := ServiceOf(entry.Key, entry.Value)
		if s.Namespace != t.Service.Namespace || s.Name != t.Service.Name ||
			t.Protocol != 0 && s.Protocol != t.Protocol.String() {
			continue
		}
		ids[entry.Key] = t.ServicePort == ""
		if t.ServicePort != "" && s.Port == t.ServicePort {
			byName[entry.Key] = true
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("find Service %s: none of that name is programmed here (a headless Service and one of type "+
			"ExternalName have no address to translate): see shunt services", t.Service)
	}
	if len(byName) > 0 {
		return byName, nil
	}
	return ids, nil
}

// nodePortAddresses returns, for each family, the lowest address that serves node ports.
func (e Explainer) nodePortAddresses() (map[model.Family]netip.Addr, error) {
	lowest := map[model.Family]netip.Addr{}
	for entry, err := range e.Reader.Addresses() {
		if err != nil {
			return nil, err
		}
		if entry.Value&maps.AddressNodePorts == 0 {
			continue
		}
		a := entry.Key.Addr()
		f := model.FamilyOf(a)
		if have, ok := lowest[f]; !ok || a.Less(have) {
			lowest[f] = a
		}
	}
	return lowest, nil
}
