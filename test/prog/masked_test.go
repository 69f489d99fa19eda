// SPDX-License-Identifier: Apache-2.0

package prog

import (
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// Who is masked, as kube-proxy's table of section 5.2 has it, but for clients of a backend on this node, who keep their
// address; and for pods that are certainly this node's.
func TestWhoseAddressIsReplaced(t *testing.T) {
	const far, here = false, true
	for name, c := range map[string]struct {
		from     func(family) string
		kind     maps.ServiceKind
		onNode   bool
		flags    maps.ServiceFlags
		settings maps.PacketFlags
		pods     []string // nil: the node's pods
		behind   bool     // the device says that its clients have no other way
		masked   bool
	}{
		"pod to ClusterIP":                      {pods0, maps.KindClusterIP, far, 0, maps.PacketNodePods, nil, false, false},
		"outside to ClusterIP":                  {outside, maps.KindClusterIP, far, 0, maps.PacketNodePods, nil, false, true},
		"outside to ClusterIP, backend here":    {outside, maps.KindClusterIP, here, 0, maps.PacketNodePods, nil, false, false},
		"outside to ClusterIP, no detector":     {outside, maps.KindClusterIP, far, 0, 0, []string{}, false, false},
		"pod to ClusterIP, masqueradeAll":       {pods0, maps.KindClusterIP, far, 0, maps.PacketNodePods | maps.PacketMasqueradeAll, nil, false, true},
		"pod to ClusterIP here, masqueradeAll":  {pods0, maps.KindClusterIP, here, 0, maps.PacketNodePods | maps.PacketMasqueradeAll, nil, false, true},
		"outside to load balancer":              {outside, maps.KindLoadBalancer, far, 0, maps.PacketNodePods, nil, false, true},
		"outside to load balancer, here":        {outside, maps.KindLoadBalancer, here, 0, maps.PacketNodePods, nil, false, false},
		"outside, here, masquerade external":    {outside, maps.KindLoadBalancer, here, 0, maps.PacketMasqueradeExternal, nil, false, true},
		"the same under policy Local":           {outside, maps.KindLoadBalancer, here, maps.ServicePolicyLocal, maps.PacketMasqueradeExternal, nil, false, false},
		"node's pod to load balancer":           {pods0, maps.KindLoadBalancer, far, 0, maps.PacketNodePods, nil, false, false},
		"some pod to load balancer":             {pods0, maps.KindLoadBalancer, far, 0, 0, nil, false, true},
		"some pod to load balancer, behind us":  {pods0, maps.KindLoadBalancer, far, 0, 0, nil, true, false},
		"some pod, policy Local":                {pods0, maps.KindLoadBalancer, far, maps.ServicePolicyLocal, 0, nil, false, false},
		"outside, behind us":                    {outside, maps.KindLoadBalancer, far, 0, 0, nil, true, true},
		"pod of no known range":                 {pods0, maps.KindClusterIP, far, 0, 0, []string{"192.0.2.0/24", "2001:db8:9::/64"}, false, true},
		"pods told by their device":             {outside, maps.KindClusterIP, far, 0, maps.PacketDevicePods, []string{}, true, false},
		"no pod, as its device is none of pods": {pods0, maps.KindClusterIP, far, 0, maps.PacketDevicePods, nil, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range families {
				w := newWorld(t)
				w.settings.Flags = c.settings
				if c.pods != nil {
					w.settings.Pods = [maps.PacketPrefixes]maps.Prefix{}
				}
				for i, p := range c.pods {
					w.settings.Pods[i] = prefixOf(p)
				}
				w.applySettings()
				device := maps.Device{Flags: maps.DeviceEthernet}
				if c.behind {
					device.Flags |= maps.DeviceBehindNode | maps.DevicePods
				}
				w.put("devices", uint32(w.pod.index), device)
				backend := port(f.far, 8080)
				if c.onNode {
					backend = port(f.local, 8080)
				}
				vip := port(f.vip, 80)
				w.addService(1, vip, protoTCP, func(s *maps.Service) { s.Kind, s.Flags = c.kind, c.flags },
					endpoint{address: backend, onNode: c.onNode})
				got := w.ingress(w.pod, opening(protoTCP, port(c.from(f), 40000), vip))
				if masked := got.verdict == redirect; masked != c.masked {
					t.Errorf("%s: verdict %d, drops %v", f.name, int32(got.verdict), w.drops())
				}
				w.expectPairs(1)
			}
		})
	}
}

func pods0(f family) string   { return f.pod }
func outside(f family) string { return f.client }

func TestDetectorOfOneFamilyIsNoneOfTheOther(t *testing.T) {
	w := newWorld(t)
	w.settings.Pods = [maps.PacketPrefixes]maps.Prefix{prefixOf("10.244.1.0/24")}
	w.applySettings()
	for i, f := range families {
		vip := port(f.vip, 80)
		w.addService(uint32(1+i), vip, protoTCP, nil, endpoint{address: port(f.far, 8080)})
		want := redirect
		if f.name == "IPv6" {
			want = next
		}
		if got := w.ingress(w.client, opening(protoTCP, port(f.client, 40000), vip)); got.verdict != want {
			t.Errorf("%s: verdict %d, want %d", f.name, int32(got.verdict), int32(want))
		}
	}
}
