// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"
	"slices"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/node"
	"github.com/shunt-lb/shunt/pkg/source"
)

// event applies one event to the model.
func (r *Reconciler) event(e source.Event) {
	switch e := e.(type) {
	case source.SetService:
		r.Model.SetService(e.Service)
		r.serviceEvent(e.Service.ServiceName, e.UID, e.Problems)
	case source.DeleteService:
		r.Model.DeleteService(e.Name)
		r.serviceEvent(e.Name, "", e.Problems)
	case source.SetSlice:
		r.owners[e.Slice.SliceName] = e.Slice.Service
		// What happened before this process began is not its latency.
		if e.Triggered.After(r.started) {
			r.triggers[e.Slice.Service] = append(r.triggers[e.Slice.Service], trigger{e.Slice.Family, e.Triggered})
		}
		r.Model.SetSlice(e.Slice)
		r.sliceEvent(e.Slice.SliceName, e.UID, e.Problems)
	case source.DeleteSlice:
		delete(r.triggers, r.owners[e.Name])
		delete(r.owners, e.Name)
		r.Model.DeleteSlice(e.Name)
		r.sliceEvent(e.Name, "", e.Problems)
	case source.SetNode:
		r.nodeObject = e.Node
		r.Model.SetNode(e.Node.Node)
		r.Observer.SourceProblems("Node "+e.Node.Name, "", e.Problems)
		r.evaluateNode()
	case source.DeleteNode:
		r.nodeObject = nil
		r.Model.SetNode(model.Node{Name: e.Name})
		r.evaluateNode()
	case source.SetServiceCIDRs:
		r.Observer.SourceProblems("ServiceCIDR", "", e.Problems)
	case source.SetProblems:
		r.Observer.SourceProblems(e.Origin, "", e.Problems)
	case source.Synced:
		r.synced = true
	case source.Batch:
		for _, e := range e {
			r.event(e)
		}
	}
}

func (r *Reconciler) serviceEvent(name model.ServiceName, uid string, problems []source.Problem) {
	r.Observer.ServiceChanged(name, uid)
	r.Observer.SourceProblems("Service "+name.String(), uid, problems)
}

func (r *Reconciler) sliceEvent(name model.SliceName, uid string, problems []source.Problem) {
	r.Observer.SliceChanged(name)
	r.Observer.SourceProblems("EndpointSlice "+name.Namespace+"/"+name.Name, uid, problems)
}

// setAddresses takes the addresses on the node's devices.
func (r *Reconciler) setAddresses(now []netip.Addr) {
	r.onNode = now
	r.addressesKnown, r.addressesChanged = true, true
	r.Model.SetLocalAddresses(now)
}

// evaluateNode draws the conclusions from the Node object.
func (r *Reconciler) evaluateNode() {
	var addresses []netip.Addr
	if r.nodeObject != nil {
		addresses = r.nodeObject.Addresses
	}
	if ips := node.ChooseIPs(addresses, r.BindAddress); ips != r.ips {
		r.ips = ips
		r.addressesChanged = true
	}
	r.Observer.NodeChanged(r.nodeObject, r.ips)
}

// nodePortAddresses returns the addresses that serve node ports.
func (r *Reconciler) nodePortAddresses() []netip.Addr {
	return slices.Concat(
		r.NodePorts.ForFamily(model.IPv4, r.ips).Select(r.onNode),
		r.NodePorts.ForFamily(model.IPv6, r.ips).Select(r.onNode),
	)
}
