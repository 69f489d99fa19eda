// SPDX-License-Identifier: Apache-2.0

package source

import (
	"reflect"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shunt-lb/shunt/pkg/model"
)

func TestNodeIsConverted(t *testing.T) {
	t.Parallel()
	full := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Labels: map[string]string{v1.LabelTopologyZone: "a"}},
		Spec:       v1.NodeSpec{PodCIDR: "10.244.9.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:1::/64", "x"}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
			{Type: v1.NodeHostName, Address: "10.9.9.9"}, {Type: v1.NodeExternalIP, Address: "192.0.2.1"},
			{Type: v1.NodeInternalIP, Address: "10.0.0.1"}, {Type: v1.NodeInternalIP, Address: "FD00::1"},
			{Type: v1.NodeExternalIP, Address: "10.0.0.1"}, {Type: v1.NodeInternalIP, Address: "nonsense"},
		}},
	}
	got, problems := NodeOf(full)
	want := &Node{
		Node: model.Node{Name: "n1", Zone: "a"}, UID: "u1",
		Addresses: addrs("10.0.0.1", "fd00::1", "192.0.2.1"),
		PodCIDRs:  ranges("10.244.1.0/24", "fd00:1::/64"),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	if want := []string{"status.addresses[5].address", "spec.podCIDRs[2]"}; !slices.Equal(fields(problems), want) {
		t.Errorf("problems %v, want fields %v", problems, want)
	}
}

func TestNodeOfAnOldAPIServerHasOnePodCIDR(t *testing.T) {
	t.Parallel()
	got, _ := NodeOf(&v1.Node{Spec: v1.NodeSpec{PodCIDR: "10.244.9.0/24"}})
	if !slices.Equal(got.PodCIDRs, ranges("10.244.9.0/24")) {
		t.Errorf("podCIDRs %v", got.PodCIDRs)
	}
}

func TestNodeIsLeaving(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	for _, row := range []struct {
		what string
		node v1.Node
		want bool
	}{
		{"an ordinary node", v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "other"}}}}, false},
		{"being deleted", v1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, true},
		{"tainted by the autoscaler",
			v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: TaintLeaving, Effect: v1.TaintEffectNoSchedule}}}}, true},
	} {
		if got, _ := NodeOf(&row.node); got.Leaving != row.want {
			t.Errorf("%s: leaving %v, want %v", row.what, got.Leaving, row.want)
		}
	}
}

func TestServiceCIDRs(t *testing.T) {
	t.Parallel()
	a, problems := ServiceCIDRs(&networking.ServiceCIDR{
		Spec: networking.ServiceCIDRSpec{CIDRs: []string{"fd00::/112", "10.96.0.0/12", "10.0.0.0/40"}}})
	if !slices.Equal(fields(problems), []string{"spec.cidrs[2]"}) {
		t.Errorf("problems %v", problems)
	}
	b := ranges("10.96.0.0/16", "10.96.0.0/12")
	if got, want := MergeCIDRs(a, b), ranges("10.96.0.0/12", "10.96.0.0/16", "fd00::/112"); !slices.Equal(got, want) {
		t.Errorf("merged %v, want %v", got, want)
	}
}
