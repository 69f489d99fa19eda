// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Operation is one change of one map element, or of the mirror alone (Retire, FreeRun). It prints as one line.
type Operation interface {
	fmt.Stringer
	// Owner is the id of the service port that fails with the operation; 0: none.
	Owner() uint32
	apply(*State)
}

// ReserveIDs raises the mark below which backend ids may have been given, ahead of giving them.
type ReserveIDs struct{ Next uint32 }

// PutName names a service id. It is the first operation for a new service port, and revives one that retires.
type PutName struct {
	Service uint32
	Name    model.ServicePortName
}

// PutBackend adds a backend, or changes the sets that it is in. A backend in no set has gone: what remembers it must
// not use it, and it is deleted a grace period later.
type PutBackend struct {
	Service uint32
	Backend Backend
}

// PutRun fills fresh cells with the ids of one set.
type PutRun struct {
	Service  uint32
	Set      Set
	Run      Run
	Backends []uint32
}

// PutRange adds a source range.
type PutRange struct {
	Service uint32
	Prefix  netip.Prefix
}

// PutAddress sets all flags of an address.
type PutAddress struct {
	Address netip.Addr
	Flags   AddressFlags
}

// PutFrontend adds or replaces a frontend: the switch. The former owner may have been another service port.
type PutFrontend struct {
	Key      model.FrontendKey
	Frontend Frontend
}

// DeleteFrontend removes a frontend.
type DeleteFrontend struct {
	Service uint32
	Key     model.FrontendKey
}

// DeleteAddress removes an address.
type DeleteAddress struct{ Address netip.Addr }

// Retire notes in the mirror that something is not found any more by new readers.
type Retire struct{ Item Item }

// DeleteBackend removes a backend that is in no set or whose service port has retired.
type DeleteBackend struct {
	Service uint32
	Backend Backend
}

// DeleteRange removes a source range.
type DeleteRange struct {
	Service uint32
	Prefix  netip.Prefix
}

// FreeRun gives cells back.
type FreeRun struct {
	Service uint32
	Run     Run
}

// ResetStats sets the counters of a service id to zero, before the id is free to be given again.
type ResetStats struct{ Service uint32 }

// DeleteName gives up a service id. It is the last operation for a service port.
type DeleteName struct{ Service uint32 }

// Owner implements Operation.
func (*ReserveIDs) Owner() uint32 { return 0 }

// Owner implements Operation.
func (o *PutName) Owner() uint32 { return o.Service }

// Owner implements Operation.
func (o *PutBackend) Owner() uint32 { return o.Service }

// Owner implements Operation.
func (o *PutRun) Owner() uint32 { return o.Service }

// Owner implements Operation.
func (o *PutRange) Owner() uint32 { return o.Service }

// Owner implements Operation: an address serves all service ports on it.
func (*PutAddress) Owner() uint32 { return 0 }

// Owner implements Operation.
func (o *PutFrontend) Owner() uint32 { return o.Frontend.Service }

// Owner implements Operation.
func (o *DeleteFrontend) Owner() uint32 { return o.Service }

// Owner implements Operation.
func (*DeleteAddress) Owner() uint32 { return 0 }

// Owner implements Operation.
func (o *Retire) Owner() uint32 { return o.Item.Service }

// Owner implements Operation.
func (o *DeleteBackend) Owner() uint32 { return o.Service }

// Owner implements Operation.
func (o *DeleteRange) Owner() uint32 { return o.Service }

// Owner implements Operation.
func (o *FreeRun) Owner() uint32 { return o.Service }

// Owner implements Operation.
func (o *ResetStats) Owner() uint32 { return o.Service }

// Owner implements Operation.
func (o *DeleteName) Owner() uint32 { return o.Service }

func (o *ReserveIDs) String() string { return fmt.Sprintf("reserve backend ids below %d", o.Next) }

func (o *PutName) String() string {
	return fmt.Sprintf("put name %d = %s", o.Service, portString(o.Name))
}

func (o *PutBackend) String() string {
	return fmt.Sprintf("put backend %d = %s", o.Backend.ID, o.Backend.describe(o.Service))
}

func (o *PutRun) String() string {
	return fmt.Sprintf("put run %s = backends %v, the %s set of service %d", o.Run, o.Backends, o.Set, o.Service)
}

func (o *PutRange) String() string {
	return fmt.Sprintf("put source range %s of service %d", o.Prefix, o.Service)
}

func (o *PutAddress) String() string { return fmt.Sprintf("put address %s = %s", o.Address, o.Flags) }

func (o *PutFrontend) String() string {
	return fmt.Sprintf("put frontend %s = %s", o.Key, o.Frontend)
}

func (o *DeleteFrontend) String() string {
	return fmt.Sprintf("delete frontend %s of service %d", o.Key, o.Service)
}

func (o *DeleteAddress) String() string { return fmt.Sprintf("delete address %s", o.Address) }

func (o *Retire) String() string { return "retire " + o.Item.String() }

func (o *DeleteBackend) String() string {
	return fmt.Sprintf("delete backend %d of service %d", o.Backend.ID, o.Service)
}

func (o *DeleteRange) String() string {
	return fmt.Sprintf("delete source range %s of service %d", o.Prefix, o.Service)
}

func (o *FreeRun) String() string { return fmt.Sprintf("free run %s of service %d", o.Run, o.Service) }

func (o *ResetStats) String() string { return fmt.Sprintf("reset counters of service %d", o.Service) }

func (o *DeleteName) String() string { return fmt.Sprintf("delete name of service %d", o.Service) }

func portString(n model.ServicePortName) string {
	name := n.ServiceName.String()
	if n.Port != "" {
		name += ":" + n.Port
	}
	return fmt.Sprintf("%s/%s (%s)", name, n.Protocol, n.Family)
}

// join joins the words whose condition holds.
func join(words ...string) string {
	kept := make([]string, 0, len(words))
	for _, w := range words {
		if w != "" {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, ", ")
}

func when(condition bool, word string) string {
	if condition {
		return word
	}
	return ""
}
