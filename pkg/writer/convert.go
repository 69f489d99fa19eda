// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"net/netip"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
)

func frontendKey(k model.FrontendKey) maps.Frontend {
	return maps.Frontend{Address: maps.AddressOf(k.Address), Port: k.Port, Protocol: uint8(k.Protocol)}
}

func modelKey(f maps.Frontend) model.FrontendKey {
	return model.FrontendKey{Address: f.Address.Addr(), Port: f.Port, Protocol: model.Protocol(f.Protocol)}
}

// bit pairs a flag with what it stands for.
type bit[F ~uint32] struct {
	flag F
	set  bool
}

func flags[F ~uint32](all ...bit[F]) F {
	var f F
	for _, b := range all {
		if b.set {
			f |= b.flag
		}
	}
	return f
}

func service(key maps.Frontend, f plan.Frontend) maps.Service {
	return maps.Service{
		ServiceID:     f.Service,
		FrontendCheck: key.Check(),
		Internal:      maps.Run(f.Internal.Run),
		External:      maps.Run(f.External.Run),
		Flags: flags(
			bit[maps.ServiceFlags]{maps.ServiceInternalLocal, f.Internal.Set == plan.Local},
			bit[maps.ServiceFlags]{maps.ServiceExternalLocal, f.External.Set == plan.Local},
			bit[maps.ServiceFlags]{maps.ServiceInternalDrop, f.Internal.Drop},
			bit[maps.ServiceFlags]{maps.ServiceExternalDrop, f.External.Drop},
			bit[maps.ServiceFlags]{maps.ServiceSourceRanges, f.SourceRanges},
			bit[maps.ServiceFlags]{maps.ServicePolicyLocal, f.PolicyLocal},
		),
		AffinityTimeout: f.Affinity,
		Kind:            maps.ServiceKind(f.Kind),
	}
}

// planFrontend is the inverse of service. A value that no writer could have written gets no kind, so that it is
// replaced when its service port is planned.
func planFrontend(key maps.Frontend, s maps.Service) plan.Frontend {
	f := plan.Frontend{
		Service:      s.ServiceID,
		Kind:         model.Kind(s.Kind),
		PolicyLocal:  s.Flags&maps.ServicePolicyLocal != 0,
		SourceRanges: s.Flags&maps.ServiceSourceRanges != 0,
		Internal:     planTarget(s.Internal, s.Flags, maps.ServiceInternalLocal, maps.ServiceInternalDrop),
		External:     planTarget(s.External, s.Flags, maps.ServiceExternalLocal, maps.ServiceExternalDrop),
		Affinity:     s.AffinityTimeout,
	}
	if service(key, f) != s {
		f.Kind = 0
	}
	return f
}

func planTarget(r maps.Run, f, local, drop maps.ServiceFlags) plan.Target {
	t := plan.Target{Run: plan.Run(r), Set: plan.Cluster, Drop: f&drop != 0}
	if f&local != 0 {
		t.Set = plan.Local
	}
	return t
}

func backend(service uint32, p model.Protocol, b plan.Backend) maps.Backend {
	return maps.Backend{
		BackendID: b.ID,
		ServiceID: service,
		Address:   maps.AddressOf(b.Address),
		Port:      b.Port,
		Protocol:  uint8(p),
		Flags: flags(
			bit[maps.BackendFlags]{maps.BackendCluster, b.Sets&plan.Cluster != 0},
			bit[maps.BackendFlags]{maps.BackendLocal, b.Sets&plan.Local != 0},
			bit[maps.BackendFlags]{maps.BackendOnNode, b.OnNode},
		),
	}
}

// planBackend is the inverse of backend. A value that no writer could have written is in no set, so that it is
// replaced when it is wanted, and deleted otherwise.
func planBackend(b maps.Backend, protocol model.Protocol) plan.Backend {
	p := plan.Backend{ID: b.BackendID, Port: b.Port, OnNode: b.Flags&maps.BackendOnNode != 0, Address: b.Address.Addr()}
	if b.Flags&maps.BackendCluster != 0 {
		p.Sets |= plan.Cluster
	}
	if b.Flags&maps.BackendLocal != 0 {
		p.Sets |= plan.Local
	}
	if backend(b.ServiceID, protocol, p) != b {
		p.Sets = 0
	}
	return p
}

func addressFlags(f plan.AddressFlags) maps.AddressFlags {
	return flags(
		bit[maps.AddressFlags]{maps.AddressClusterIP, f&plan.ClusterIP != 0},
		bit[maps.AddressFlags]{maps.AddressService, f&plan.Service != 0},
		bit[maps.AddressFlags]{maps.AddressNodePorts, f&plan.NodePorts != 0},
		bit[maps.AddressFlags]{maps.AddressOnNode, f&plan.OnNode != 0},
	)
}

func planAddressFlags(f maps.AddressFlags) plan.AddressFlags {
	var p plan.AddressFlags
	for _, b := range []plan.AddressFlags{plan.ClusterIP, plan.Service, plan.NodePorts, plan.OnNode} {
		if f&addressFlags(b) != 0 {
			p |= b
		}
	}
	if addressFlags(p) != f || p == 0 {
		p |= plan.Other
	}
	return p
}

func serviceName(n model.ServicePortName) maps.ServiceName {
	m := maps.ServiceName{Protocol: uint8(n.Protocol), Family: uint8(n.Family)}
	text(&m.Namespace, n.Namespace)
	text(&m.Name, n.Name)
	text(&m.Port, n.Port)
	return m
}

// text writes s with a zero byte at its end. Names in the Kubernetes API have at most 63 bytes.
func text(to *[64]byte, s string) { copy(to[:len(to)-1], s) }

// PortName returns the service port of an element of service_names; a value that no writer could have written names
// nothing.
func PortName(m maps.ServiceName) model.ServicePortName {
	n := model.ServicePortName{
		ServiceName: model.ServiceName{Namespace: maps.Text(m.Namespace[:]), Name: maps.Text(m.Name[:])},
		Port:        maps.Text(m.Port[:]),
		Protocol:    model.Protocol(m.Protocol),
		Family:      model.Family(m.Family),
	}
	if serviceName(n) != m {
		return model.ServicePortName{}
	}
	return n
}

// sourceRange makes the prefix one of the v4-mapped address, behind the service id.
func sourceRange(service uint32, p netip.Prefix) maps.SourceRange {
	n := p.Bits()
	if p.Addr().Is4() {
		n += 96
	}
	return maps.SourceRange{PrefixBits: uint32(32 + n), ServiceID: service, Address: maps.AddressOf(p.Masked().Addr())}
}

func planPrefix(r maps.SourceRange) netip.Prefix {
	a, n := r.Address.Addr(), int(r.PrefixBits)-32
	if a.Is4() {
		n -= 96
	}
	return netip.PrefixFrom(a, n).Masked()
}
