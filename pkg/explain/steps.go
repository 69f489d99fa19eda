// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
)

// passSCTP ends a walk that no hook begins.
func (w *walk) passSCTP() error {
	service, ok, err := w.Reader.Service(w.key(w.Target.Address))
	if err != nil {
		return err
	}
	if ok {
		name, _, err := w.Reader.ServiceName(service.ServiceID)
		if err != nil {
			return err
		}
		w.Service = ServiceOf(service.ServiceID, name)
		w.step("Owner", "%s of %s (service id %d).", kindWords(service.Kind, w.Target.Port), w.Service, service.ServiceID)
	}
	w.conclude(Untouched, ReasonProtocol, "The kernel runs no connect hook for SCTP sockets; shunt translates SCTP in "+
		"packets alone, and the packet path is off (--packet-path).")
	return nil
}

// undefinedPort is what becomes of a ClusterIP's port that no Service declares.
func (w *walk) undefinedPort() error {
	ports, owner, err := w.declaredPorts()
	if err != nil {
		return err
	}
	w.step("Owner", "%s is the ClusterIP of %s, which declares %s, not %d/%s.", w.Target.Address, owner, ports,
		w.Target.Port, w.Target.Protocol)
	if w.Client.Kind == External && !w.byPacket {
		w.noPacketPath("")
		return nil
	}
	if !w.hooks() {
		return nil
	}
	w.conclude(Refused, ReasonUndefinedPort, "Refused at once (%s): all ports of a ClusterIP belong to its Service, "+
		"and nothing else can answer there.", w.refusedWords())
	w.notHandled()
	return nil
}

// declaredPorts lists the ports that the target's address has, and whose they are.
func (w *walk) declaredPorts() (ports, owner string, err error) {
	type port struct {
		number   uint16
		protocol model.Protocol
	}
	var found []port
	var id uint32
	address := maps.AddressOf(w.Target.Address)
	for entry, err := range w.Reader.Services() {
		if err != nil {
			return "", "", err
		}
		if entry.Key.Address == address && entry.Value.Kind == maps.KindClusterIP {
			found = append(found, port{entry.Key.Port, model.Protocol(entry.Key.Protocol)})
			id = entry.Value.ServiceID
		}
	}
	if len(found) == 0 {
		return "no port", "a Service", nil
	}
	slices.SortFunc(found, func(a, b port) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.protocol, b.protocol))
	})
	words := make([]string, len(found))
	for i, p := range found {
		words[i] = fmt.Sprintf("%d/%s", p.number, p.protocol)
	}
	name, _, err := w.Reader.ServiceName(id)
	if err != nil {
		return "", "", err
	}
	s := ServiceOf(id, name)
	return strings.Join(words, ", "), "Service " + s.Namespace + "/" + s.Name, nil
}

// notAService says what the address is instead.
func (w *walk) notAService(flags maps.AddressFlags) error {
	for b, err := range w.Reader.Backends() {
		if err != nil {
			return err
		}
		if b.Address.Addr() != w.Target.Address {
			continue
		}
		name, _, err := w.Reader.ServiceName(b.ServiceID)
		if err != nil {
			return err
		}
		s := ServiceOf(b.ServiceID, name)
		w.step("Owner", "%s is the address of a backend of Service %s/%s, not of a Service.", w.Target.Address,
			s.Namespace, s.Name)
		w.conclude(Untouched, ReasonBackendAddress, "A connection to a backend's own address needs no translation; this is "+
			"also what a headless Service's name leads to.")
		return nil
	}
	switch a := w.Target.Address; {
	case a.IsLoopback() || a.IsUnspecified():
		w.step("Owner", "%s belongs to the client's own network namespace. %s", a, w.loopbackWords())
	case flags&maps.AddressOnNode != 0:
		w.step("Owner", "%s is an address of this node that serves no node ports, and no Service has port %d/%s there.", a,
			w.Target.Port, w.Target.Protocol)
	default:
		w.step("Owner", "No Service has %s, and it is none of this node's addresses.", w.Target)
	}
	if unallocated, err := w.inServiceRange(); err != nil {
		return err
	} else if unallocated && w.byPacket {
		w.conclude(Dropped, ReasonUnallocated, "Dropped, as kube-proxy does: it is in a range of ClusterIPs, and no Service "+
			"has it.")
		return nil
	}
	w.conclude(Untouched, ReasonNotAService, "shunt leaves it alone: the packet goes where the node's routes send it.")
	w.NotHandled = append(w.NotHandled,
		"Another node's address with a node port: that node decides, by its own endpoints.",
		"The addresses of headless and ExternalName Services: DNS gives those, and no address needs translation.",
		"An external or load-balancer address with a port that no Service declares: other programs may use it.")
	return nil
}

// loopbackWords tells who reaches node ports on loopback.
func (w *walk) loopbackWords() string {
	if !w.Datapath.LoopbackNodePorts {
		return "The agent serves no node ports there (its node port addresses leave loopback out)."
	}
	return "Only processes of the node reach node ports there."
}

func (w *walk) noPacketPath(more string) {
	w.conclude(Untouched, ReasonNoPacketPath, "The packet path is off (--packet-path), or is on no device: a packet of a "+
		"client that has no socket on this node passes untouched.%s", more)
}

// hooks tells which program translates, and when; false ends the walk, for there is none.
func (w *walk) hooks() bool {
	if w.byPacket {
		w.packetHook()
		return true
	}
	if w.Client.Kind == External {
		return true
	}
	mapped := " (connect6 where an IPv6 socket dials the v4-mapped address)"
	if model.FamilyOf(w.Target.Address) == model.IPv6 {
		mapped = ""
	}
	needed := w.neededHooks()
	text := needed[0] + mapped + ": inside connect(2), before a packet exists."
	if w.Target.Protocol == model.UDP.String() {
		text = fmt.Sprintf("%s for a connected socket, %s for each datagram of an unconnected one: inside the system call, "+
			"before a packet exists.", needed[0], needed[1])
	}
	if hook := w.missingHook(); hook != "" {
		w.conclude(Untouched, ReasonNotAttached, "Nothing is translated: no program is attached to %s. Start shunt agent; "+
			"see shunt doctor.", hook)
		return false
	}
	w.step("Hook", "%s", text)
	return true
}

// chooseRun picks the run for this kind of client.
func (w *walk) chooseRun() maps.Run {
	s := w.service
	run, local, drop, policy := s.Internal, s.Flags&maps.ServiceInternalLocal != 0, s.Flags&maps.ServiceInternalDrop != 0,
		"in-cluster clients"
	if w.Client.Kind == External {
		run, local, drop = s.External, s.Flags&maps.ServiceExternalLocal != 0, s.Flags&maps.ServiceExternalDrop != 0
		policy = "external clients"
	}
	w.Frontend.Set, w.Frontend.WhenEmpty = "cluster", Refused
	why := "the endpoints of the whole cluster (as topology hints allow)"
	if local {
		w.Frontend.Set, why = "local", "endpoints on this node alone (traffic policy Local)"
	} else if w.Client.Kind != External && s.Flags&maps.ServicePolicyLocal != 0 {
		why = "externalTrafficPolicy: Local, which binds only clients from outside: a client in the cluster gets the " +
			"endpoints of the whole cluster"
	}
	if drop {
		w.Frontend.WhenEmpty = Dropped
	}
	w.step("Set", "The %s set, for %s: %s. %s.", w.Frontend.Set, policy, why, count(int(run.Count), "backend"))
	return run
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// backends reads the run as select.h does, and works out the probability of each backend.
func (w *walk) backends(run maps.Run) ([]Backend, error) {
	if run.Count == 0 {
		return nil, nil
	}
	cells, err := w.Reader.Slots(run)
	if err != nil {
		return nil, err
	}
	backends := make([]Backend, len(cells))
	for i, id := range cells {
		backends[i] = Backend{ID: id, State: BackendGone}
		b, ok, err := w.Reader.Backend(id)
		if err != nil {
			return nil, err
		}
		if !ok || b.BackendID != id || b.ServiceID != w.service.ServiceID {
			continue
		}
		backends[i].Address, backends[i].Port = b.Address.Addr(), b.Port
		backends[i].OnNode = b.Flags&maps.BackendOnNode != 0
		backends[i].State = BackendUsable
	}
	shareOut(backends)
	return backends, nil
}

// selectAttempts is SELECT_ATTEMPTS of select.h: how many cells the kernel tries before it gives up.
const selectAttempts = 4

// shareOut gives each cell's share to the first usable one of the cells that the kernel tries.
func shareOut(backends []Backend) {
	n := len(backends)
	for i := range backends {
		for try := range selectAttempts {
			b := &backends[(i+try)%n]
			if b.State == BackendUsable {
				b.Probability += 1 / float64(n)
				break
			}
		}
	}
}

// checkSource is the check of loadBalancerSourceRanges.
func (w *walk) checkSource() (done bool, err error) {
	if w.service.Flags&maps.ServiceSourceRanges == 0 {
		return false, nil
	}
	address := w.judged()
	var allowed bool
	for r, err := range w.Reader.SourceRanges() {
		if err != nil {
			return false, err
		}
		if r.ServiceID != w.service.ServiceID {
			continue
		}
		p := RangePrefix(r)
		w.Frontend.SourceRanges = append(w.Frontend.SourceRanges, p.String())
		allowed = allowed || address.IsValid() && p.Contains(address)
	}
	slices.Sort(w.Frontend.SourceRanges)
	ranges := strings.Join(w.Frontend.SourceRanges, ", ")
	switch {
	case !address.IsValid() && w.Client.Kind == External:
		w.step("Sources", "loadBalancerSourceRanges admit %s.", ranges)
		return false, nil
	case !address.IsValid():
		w.step("Sources", "loadBalancerSourceRanges admit %s.", ranges)
		w.conclude(Untouched, ReasonClientUnknown, "A client whose address is not known is left alone. %s", w.whyUnknown())
		return true, nil
	case allowed:
		w.step("Sources", "loadBalancerSourceRanges admit %s (%s).", address, ranges)
		return false, nil
	}
	w.step("Sources", "loadBalancerSourceRanges admit %s, not %s.", ranges, address)
	w.conclude(Dropped, ReasonSourceRange, "Dropped: %s", w.droppedWords())
	return true, nil
}

// judged is the address that source ranges look at.
func (w *walk) judged() netip.Addr {
	if w.Client.Kind == Pod && !w.Datapath.ReadKernel && !w.byPacket {
		return netip.Addr{}
	}
	return w.client
}

func (w *walk) whyUnknown() string {
	switch {
	case w.Client.Kind == Node:
		return "The agent knows no address of this family for the node."
	case !w.Datapath.ReadKernel:
		return "The programs may not read kernel memory here (CAP_PERFMON, lockdown), so they know a pod's address only " +
			"where its socket is bound to it."
	}
	return "Give --from the pod's address, or pid:PID of a process in it."
}

// RangePrefix returns the prefix of a source range.
func RangePrefix(r maps.SourceRange) netip.Prefix {
	a := r.Address.Addr()
	bits := int(r.PrefixBits) - 32
	if a.Is4() {
		bits -= 96
	}
	return netip.PrefixFrom(a, bits)
}

// empty concludes a walk whose run has nobody to give.
func (w *walk) empty() {
	switch {
	case len(w.Backends) > 0:
		w.conclude(Refused, ReasonUnsettled, "Refused (%s): every backend of the run has just gone. The agent is "+
			"replacing the run at this moment, or it died while it did.", w.refusedWords())
	case w.Frontend.WhenEmpty == Dropped:
		w.conclude(Dropped, ReasonPolicy, "Dropped, as kube-proxy does: endpoints exist, but the traffic policy allows none "+
			"of them here: %s", w.droppedWords())
	default:
		w.conclude(Refused, ReasonNoBackend, "Refused at once (%s): the Service has no usable endpoint anywhere.",
			w.refusedWords())
	}
}

// affinity is affinity.h.
func (w *walk) affinity() error {
	if w.service.AffinityTimeout == 0 {
		return nil
	}
	w.Affinity = &Affinity{TimeoutSeconds: w.service.AffinityTimeout, State: AffinityNone}
	if w.Client.NetnsCookie == 0 && !w.client.IsValid() {
		w.Affinity.State = AffinityUnknownClient
		how := "give --from pid:PID of a process in the pod"
		if w.Client.Kind == External {
			how = "see shunt affinity"
		}
		w.step("Affinity", "ClientIP, %d s. Which client it is must be known to look it up: %s.", w.Affinity.TimeoutSeconds, how)
		return nil
	}
	value, ok, err := w.affinityEntry()
	if err != nil {
		return err
	}
	if !ok {
		w.step("Affinity", "ClientIP, %d s. This client has no entry yet: its next connection is balanced and remembered.",
			w.Affinity.TimeoutSeconds)
		return nil
	}
	return w.judgeAffinity(value)
}

// affinityEntry finds the client's entry. The node is one client, by its network namespace; a pod is known by its
// address, or by its network namespace where the programs cannot find that.
func (w *walk) affinityEntry() (maps.AffinityValue, bool, error) {
	if w.Client.Kind == Pod && w.client.IsValid() {
		key := maps.AffinityKey{ServiceID: w.service.ServiceID, Client: maps.AddressOf(w.client)}
		if v, ok, err := w.Reader.Affinity(key); ok || err != nil {
			return v, ok, err
		}
	}
	if w.Client.NetnsCookie == 0 {
		return maps.AffinityValue{}, false, nil
	}
	return w.Reader.Affinity(maps.AffinityKey{ServiceID: w.service.ServiceID, NetnsCookie: w.Client.NetnsCookie})
}

func (w *walk) judgeAffinity(v maps.AffinityValue) error {
	idle := (w.Now() - min(v.LastUsedNs, w.Now())) / 1e9
	if idle >= uint64(w.service.AffinityTimeout) {
		w.Affinity.State = AffinityExpired
		w.step("Affinity", "ClientIP, %d s. This client's entry expired %d s ago: its next connection is balanced anew.",
			w.Affinity.TimeoutSeconds, idle-uint64(w.service.AffinityTimeout))
		return nil
	}
	b, ok, err := w.Reader.Backend(v.BackendID)
	if err != nil {
		return err
	}
	if !ok || b.ServiceID != w.service.ServiceID || b.Flags&w.setFlag() == 0 {
		w.Affinity.State = AffinityBackendGone
		w.step("Affinity", "ClientIP, %d s. The backend that this client had is gone: its next connection is balanced anew.",
			w.Affinity.TimeoutSeconds)
		return nil
	}
	addr := netip.AddrPortFrom(b.Address.Addr(), b.Port)
	w.Affinity.State, w.Affinity.BackendID, w.Affinity.Backend = AffinityInForce, v.BackendID, &addr
	w.Affinity.RemainingSeconds = uint64(w.service.AffinityTimeout) - idle
	w.step("Affinity", "ClientIP, %d s. This client is bound to %s for another %d s; each new connection renews it.",
		w.Affinity.TimeoutSeconds, addr, w.Affinity.RemainingSeconds)
	return nil
}

func (w *walk) setFlag() maps.BackendFlags {
	if w.Frontend.Set == "local" {
		return maps.BackendLocal
	}
	return maps.BackendCluster
}

func (w *walk) choose() {
	if w.Affinity != nil && w.Affinity.State == AffinityInForce {
		w.conclude(Translated, ReasonBackend, "Translated to %s, by affinity.", w.Affinity.Backend)
		return
	}
	if len(w.Backends) == 1 {
		b := w.Backends[0]
		w.conclude(Translated, ReasonBackend, "Translated to %s, the only backend.", netip.AddrPortFrom(b.Address, b.Port))
		return
	}
	w.conclude(Translated, ReasonBackend, "Translated to one of the backends below, by a random number.")
}

// reply tells what the client sees of the translation.
func (w *walk) reply() {
	if w.byPacket {
		w.packetReply()
		return
	}
	if w.Target.Protocol == model.UDP.String() {
		w.step("Reply", "Replies and getpeername(2) show %s. An unconnected socket keeps its backend while the backend "+
			"stays and datagrams flow.", w.Target)
		return
	}
	w.step("Reply", "getpeername(2) shows %s. The packets go between client and backend untranslated: the backend sees "+
		"the client's own address.", w.Target)
}

func (w *walk) otherPorts() {
	t := w.Target
	switch w.service.Kind {
	case maps.KindClusterIP:
		w.Otherwise = append(w.Otherwise, fmt.Sprintf("A port of %s that no Service declares is refused at once.", t.Address))
	case maps.KindNodePort:
		w.Otherwise = append(w.Otherwise,
			fmt.Sprintf("A port of %s that is no node port is left alone: whoever listens there answers.", t.Address))
	default:
		w.Otherwise = append(w.Otherwise,
			fmt.Sprintf("A port of %s that no Service declares is left alone.", t.Address))
	}
	if w.Frontend.WhenEmpty == Dropped {
		w.Otherwise = append(w.Otherwise, "With no backend in the "+w.Frontend.Set+" set it is dropped, because usable "+
			"endpoints exist elsewhere.")
		return
	}
	w.Otherwise = append(w.Otherwise, "With no usable endpoint anywhere it is refused at once ("+
		w.refusedWords()+").")
}

func (w *walk) notHandled() {
	if !w.Datapath.SetRetval && w.Client.Kind != External && !w.byPacket {
		w.NotHandled = append(w.NotHandled, "The right errno of every refusal: this kernel has no bpf_set_retval (Linux "+
			"5.18), so that a refused send fails with EPERM, and a dropped connect with ECONNREFUSED.")
	}
	switch a := w.Target.Address; {
	case w.Frontend == nil || w.service.Kind == maps.KindClusterIP:
		w.NotHandled = append(w.NotHandled, fmt.Sprintf("ICMP: no device has %s, so nothing answers a ping. That says "+
			"nothing about the Service.", a))
	case w.service.Kind == maps.KindNodePort:
		w.NotHandled = append(w.NotHandled,
			fmt.Sprintf("ICMP: a ping of %s is answered by the node itself. That says nothing about the Service.", a),
			"The same port on another node's address: that node decides, by its own endpoints.")
		if a.IsLoopback() {
			w.NotHandled = append(w.NotHandled, "A socket that is bound to loopback: no packet from there reaches a pod.")
		}
	default:
		w.NotHandled = append(w.NotHandled, fmt.Sprintf("ICMP: a ping of %s goes where the node's routes send it, never to "+
			"a backend.", a))
	}
}
