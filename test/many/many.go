// SPDX-License-Identifier: Apache-2.0

// Package many makes as many Services as a large cluster has, for tests and benchmarks of what their number costs.
package many

import (
	"fmt"
	"net/netip"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
)

// Namespace is that of the Services.
const Namespace = "bench"

// Name is the name of the Service with that number.
func Name(number int) string { return fmt.Sprint("service-", number) }

// Services are up to 65,536 Services of up to 128 endpoints each, as changes of a node that has none yet.
func Services(services, endpoints int) []plan.Change {
	all := make([]plan.Change, services)
	for i := range all {
		name := model.ServiceName{Namespace: Namespace, Name: Name(i)}
		p := model.ServicePort{
			Name:     model.ServicePortName{ServiceName: name, Port: "http", Protocol: model.TCP, Family: model.IPv4},
			Backends: make([]model.Backend, endpoints),
			Frontends: []model.Frontend{{Kind: model.ClusterIP, FrontendKey: model.FrontendKey{
				Address: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Protocol: model.TCP,
			}}},
		}
		for j := range p.Backends {
			p.Backends[j] = model.Backend{
				Address: netip.AddrFrom4([4]byte{10, byte(128 + j), byte(i >> 8), byte(i)}), Port: 8080, Cluster: true,
			}
		}
		all[i] = plan.Change{Service: name, Ports: []model.ServicePort{p}}
	}
	return all
}
