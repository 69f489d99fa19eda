// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"

	"github.com/shunt-lb/shunt/pkg/model"
)

// TaintLeaving is the taint by which the cluster autoscaler announces that it will remove a node.
const TaintLeaving = "ToBeDeletedByClusterAutoscaler"

// NodeOf converts this node's v1 Node.
func NodeOf(in *v1.Node) (*Node, []Problem) {
	r := &report{object: Object{Kind: KindNode, Name: in.Name}}
	out := &Node{
		Node:    model.Node{Name: in.Name, Zone: in.Labels[v1.LabelTopologyZone]},
		UID:     string(in.UID),
		Leaving: in.DeletionTimestamp != nil,
	}
	for _, wanted := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for i, address := range in.Status.Addresses {
			if address.Type != wanted {
				continue
			}
			a, ok := r.addr(fmt.Sprintf("status.addresses[%d].address", i), address.Address, anyAddr)
			if ok && !slices.Contains(out.Addresses, a) {
				out.Addresses = append(out.Addresses, a)
			}
		}
	}
	out.PodCIDRs = podCIDRs(in, r)
	for i := range in.Spec.Taints {
		if in.Spec.Taints[i].Key == TaintLeaving {
			out.Leaving = true
		}
	}
	return out, r.problems
}

func anyAddr(netip.Addr) error { return nil }

// podCIDRs returns the node's pod ranges; a node of an old API server has the one field only.
func podCIDRs(in *v1.Node, r *report) []netip.Prefix {
	texts := in.Spec.PodCIDRs
	if len(texts) == 0 && in.Spec.PodCIDR != "" {
		texts = []string{in.Spec.PodCIDR}
	}
	return prefixes(r, "spec.podCIDRs", texts)
}

// ServiceCIDRs returns the ranges of one networking/v1 ServiceCIDR. Its conditions are ignored, as by kube-proxy: a
// range that is being deleted still holds the ClusterIPs that keep it from going.
func ServiceCIDRs(in *networking.ServiceCIDR) ([]netip.Prefix, []Problem) {
	r := &report{object: Object{Kind: KindServiceCIDR, Name: in.Name}}
	return prefixes(r, "spec.cidrs", in.Spec.CIDRs), r.problems
}

func prefixes(r *report, field string, texts []string) []netip.Prefix {
	var out []netip.Prefix
	for i, text := range texts {
		p, err := ParsePrefix(text)
		if err != nil {
			r.invalid(fmt.Sprintf("%s[%d]", field, i), text, err)
			continue
		}
		out = append(out, p)
	}
	return out
}

// MergeCIDRs returns the ranges of several ServiceCIDRs as SetServiceCIDRs wants them: sorted, each once. A range that
// two objects name stays until both are gone.
func MergeCIDRs(lists ...[]netip.Prefix) []netip.Prefix {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(all)
}
