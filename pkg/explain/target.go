// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Target is what a user asks about: an address with a port, or a Service by name.
type Target struct {
	// Address is invalid when the target is a Service's name.
	Address  netip.Addr
	Port     uint16
	Protocol model.Protocol // 0: all that the Service has

	Service model.ServiceName
	// ServicePort is a port's name or number, empty for all ports.
	ServicePort string
}

// ParseTarget reads ADDRESS:PORT[/PROTOCOL] (TCP by default) or NAMESPACE/NAME[:PORT][/PROTOCOL].
func ParseTarget(s string) (Target, error) {
	head, tail, _ := strings.Cut(s, "/")
	if addrPort, err := netip.ParseAddrPort(head); err == nil {
		return addressTarget(addrPort, tail)
	}
	if a, err := netip.ParseAddr(strings.Trim(head, "[]")); err == nil {
		if a.Is6() && !strings.HasPrefix(head, "[") {
			return Target{}, fmt.Errorf("read %q: put an IPv6 address in brackets: [ADDRESS]:PORT", s)
		}
		return Target{}, fmt.Errorf("read %q: add a port: %s:PORT", s, head)
	}
	if tail == "" {
		return Target{}, fmt.Errorf("read %q: give ADDRESS:PORT[/PROTOCOL] or NAMESPACE/NAME[:PORT]", s)
	}
	return serviceTarget(s, head, tail)
}

func addressTarget(a netip.AddrPort, protocol string) (Target, error) {
	t := Target{Address: a.Addr().Unmap(), Port: a.Port(), Protocol: model.TCP}
	if t.Port == 0 {
		return Target{}, fmt.Errorf("read %q: port 0 cannot be dialled", a)
	}
	if protocol == "" {
		return t, nil
	}
	var err error
	t.Protocol, err = ParseProtocol(protocol)
	return t, err
}

func serviceTarget(s, namespace, rest string) (Target, error) {
	name, protocol, _ := strings.Cut(rest, "/")
	name, port, hasPort := strings.Cut(name, ":")
	if namespace == "" || name == "" || hasPort && port == "" {
		return Target{}, fmt.Errorf("read %q: give NAMESPACE/NAME[:PORT][/PROTOCOL]", s)
	}
	t := Target{Service: model.ServiceName{Namespace: namespace, Name: name}, ServicePort: port}
	if n, err := strconv.ParseUint(port, 10, 64); err == nil && (n == 0 || n > 65535) {
		return Target{}, fmt.Errorf("read %q: port %s is not between 1 and 65535", s, port)
	}
	if protocol == "" {
		return t, nil
	}
	var err error
	t.Protocol, err = ParseProtocol(protocol)
	return t, err
}

// ParseProtocol reads a protocol's name in any case.
func ParseProtocol(s string) (model.Protocol, error) {
	for _, p := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		if strings.EqualFold(s, p.String()) {
			return p, nil
		}
	}
	if strings.EqualFold(s, "icmp") || strings.EqualFold(s, "ping") {
		return 0, fmt.Errorf("read protocol %q: a Service has no ICMP; nothing answers a ping of its address: "+
			"give tcp, udp or sctp", s)
	}
	return 0, fmt.Errorf("read protocol %q: give tcp, udp or sctp", s)
}
