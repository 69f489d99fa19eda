// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"fmt"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/plan"
)

// buffers are the elements of one batch in map form, kept so that a pass allocates no memory for each batch.
type buffers struct {
	ids       []uint32
	names     []maps.ServiceName
	backends  []maps.Backend
	frontends []maps.Frontend
	services  []maps.Service
	addresses []maps.Address
	flags     []maps.AddressFlags
	ranges    []maps.SourceRange
}

// write writes operations of one kind, up to the first that fails.
func (b *buffers) write(m maps.Writer, s *plan.State, ops []plan.Operation) (int, error) {
	b.clear()
	for _, o := range ops {
		b.add(s, o)
	}
	switch ops[0].(type) {
	case *plan.PutName:
		return m.PutServiceNames(b.ids, b.names)
	case *plan.PutBackend:
		return m.PutBackends(b.backends)
	case *plan.PutRange:
		return m.PutSourceRanges(b.ranges)
	case *plan.PutAddress:
		return m.PutAddresses(b.addresses, b.flags)
	case *plan.PutFrontend:
		return m.PutServices(b.frontends, b.services)
	case *plan.DeleteFrontend:
		return m.DeleteServices(b.frontends)
	case *plan.DeleteAddress:
		return m.DeleteAddresses(b.addresses)
	case *plan.DeleteBackend:
		return m.DeleteBackends(b.ids)
	case *plan.DeleteRange:
		return m.DeleteSourceRanges(b.ranges)
	case *plan.ResetStats:
		return m.ResetServiceStats(b.ids)
	case *plan.DeleteName:
		return m.DeleteServiceNames(b.ids)
	}
	return 0, fmt.Errorf("write operation %T: unknown", ops[0])
}

func (b *buffers) clear() {
	b.ids, b.names, b.backends, b.frontends = b.ids[:0], b.names[:0], b.backends[:0], b.frontends[:0]
	b.services, b.addresses, b.flags, b.ranges = b.services[:0], b.addresses[:0], b.flags[:0], b.ranges[:0]
}

func (b *buffers) add(s *plan.State, o plan.Operation) {
	switch o := o.(type) {
	case *plan.PutName:
		b.ids, b.names = append(b.ids, o.Service), append(b.names, serviceName(o.Name))
	case *plan.PutBackend:
		name, _ := s.Name(o.Service)
		b.backends = append(b.backends, backend(o.Service, name.Protocol, o.Backend))
	case *plan.PutRange:
		b.ranges = append(b.ranges, sourceRange(o.Service, o.Prefix))
	case *plan.PutAddress:
		b.addresses, b.flags = append(b.addresses, maps.AddressOf(o.Address)), append(b.flags, addressFlags(o.Flags))
	case *plan.PutFrontend:
		key := frontendKey(o.Key)
		b.frontends, b.services = append(b.frontends, key), append(b.services, service(key, o.Frontend))
	case *plan.DeleteFrontend:
		b.frontends = append(b.frontends, frontendKey(o.Key))
	case *plan.DeleteAddress:
		b.addresses = append(b.addresses, maps.AddressOf(o.Address))
	case *plan.DeleteBackend:
		b.ids = append(b.ids, o.Backend.ID)
	case *plan.DeleteRange:
		b.ranges = append(b.ranges, sourceRange(o.Service, o.Prefix))
	case *plan.ResetStats:
		b.ids = append(b.ids, o.Service)
	case *plan.DeleteName:
		b.ids = append(b.ids, o.Service)
	}
}
