// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
)

// frontendsOf writes the frontends of a Service, in order.
func frontendsOf(c *model.Cluster, n string) []string {
	var out []string
	for _, p := range c.Desired(name(n)) {
		for _, f := range p.Frontends {
			out = append(out, f.FrontendKey.String()+" "+f.Kind.String())
		}
	}
	return out
}

// Sections 1.3 and 2.2: which frontends exist.
func TestFrontendsOfAService(t *testing.T) {
	t.Parallel()
	type options = []func(*model.Service)
	for _, row := range []struct {
		name    string
		options options
		want    []string
	}{
		{"a ClusterIP", nil, []string{"10.96.0.1:80/TCP ClusterIP"}},
		{"of two ClusterIPs of one family the first counts", options{clusterIPs("10.96.0.1", "10.96.0.2")},
			[]string{"10.96.0.1:80/TCP ClusterIP"}},
		{"both families, in whatever order", options{clusterIPs("fd96::1", "10.96.0.1")},
			[]string{"10.96.0.1:80/TCP ClusterIP", "[fd96::1]:80/TCP ClusterIP"}},
		{"no ClusterIP: nothing, not even a node port",
			options{clusterIPs(), nodePort(30080), loadBalancer("192.0.2.2")}, nil},
		{"a node port stands under the unspecified address, whatever the type", options{nodePort(30080)},
			[]string{"0.0.0.0:30080/TCP node port", "10.96.0.1:80/TCP ClusterIP"}},
		{"a single-family Service has no node port in the other family", options{clusterIPs("fd96::1"), nodePort(30080)},
			[]string{"[::]:30080/TCP node port", "[fd96::1]:80/TCP ClusterIP"}},
		{"a dual-stack node port", options{clusterIPs("10.96.0.1", "fd96::1"), nodePort(30080)}, []string{
			"0.0.0.0:30080/TCP node port", "10.96.0.1:80/TCP ClusterIP", "[::]:30080/TCP node port",
			"[fd96::1]:80/TCP ClusterIP"}},
		{"external and load-balancer addresses", options{externalIPs("192.0.2.9", "192.0.2.1"), loadBalancer("192.0.2.5")},
			[]string{"10.96.0.1:80/TCP ClusterIP", "192.0.2.1:80/TCP external IP", "192.0.2.5:80/TCP load-balancer IP",
				"192.0.2.9:80/TCP external IP"}},
		{"load-balancer addresses of the other family are not served", options{loadBalancer("2001:db8::1")},
			[]string{"10.96.0.1:80/TCP ClusterIP"}},
		{"an address listed twice is one frontend", options{externalIPs("192.0.2.1", "192.0.2.1")},
			[]string{"10.96.0.1:80/TCP ClusterIP", "192.0.2.1:80/TCP external IP"}},
		{"an address that is external and load-balancer IP is the guarded one",
			options{externalIPs("192.0.2.1"), loadBalancer("192.0.2.1")},
			[]string{"10.96.0.1:80/TCP ClusterIP", "192.0.2.1:80/TCP load-balancer IP"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := cluster(service("default/web", row.options...))
			if got := frontendsOf(c, "default/web"); !slices.Equal(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
			if got := c.Problems(name("default/web")); len(got) > 0 {
				t.Errorf("got problems %v, want none", got)
			}
		})
	}
}

func TestAServicePortWithoutEndpointsHasFrontendsThatReject(t *testing.T) {
	t.Parallel()
	c := cluster(everyFrontend())
	for _, dial := range append(externalDials, internalDial) {
		expect(t, c, dial, inside, "REJECT")
		expect(t, c, dial, outside, "REJECT")
	}
}

func TestServicePortsAreNamedByPortProtocolAndFamily(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web", clusterIPs("10.96.0.1", "fd96::1"), ports(
		model.Port{Name: "dns", Protocol: model.UDP, Port: 53}, model.Port{Name: "dns-tcp", Protocol: model.TCP, Port: 53})))
	var got []model.ServicePortName
	for _, p := range c.Desired(name("default/web")) {
		got = append(got, p.Name)
	}
	web := name("default/web")
	want := []model.ServicePortName{
		{web, "dns", model.UDP, model.IPv4}, {web, "dns-tcp", model.TCP, model.IPv4},
		{web, "dns", model.UDP, model.IPv6}, {web, "dns-tcp", model.TCP, model.IPv6},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Section 1.5: the family filter, the /0 rule and host bits of loadBalancerSourceRanges.
func TestSourceRangesGuardLoadBalancerAddresses(t *testing.T) {
	t.Parallel()
	both := []func(*model.Service){clusterIPs("10.96.0.1", "fd96::1"), loadBalancer("192.0.2.1", "2001:db8::1")}
	for _, row := range []struct {
		name   string
		ranges []string
		v4, v6 []string
	}{
		{"none: open", nil, nil, nil},
		{"ranges go to their family", []string{"10.0.0.0/8", "fd00::/8"}, []string{"10.0.0.0/8"}, []string{"fd00::/8"}},
		{"ranges of the other family alone mean open", []string{"fd00::/8"}, nil, []string{"fd00::/8"}},
		{"a /0 opens its own family", []string{"10.0.0.0/8", "0.0.0.0/0", "fd00::/8"}, nil, []string{"fd00::/8"}},
		{"an IPv6 /0 opens IPv6", []string{"10.0.0.0/8", "::/0", "fd00::/8"}, []string{"10.0.0.0/8"}, nil},
		{"host bits are masked off, copies removed, the rest sorted", []string{"172.16.5.1/12", "10.1.2.3/8", "10.0.0.0/8"},
			[]string{"10.0.0.0/8", "172.16.0.0/12"}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := cluster(service("default/web", append(both, sourceRanges(row.ranges...))...))
			p := c.Desired(name("default/web"))
			for i, want := range [][]string{row.v4, row.v6} {
				if got := p[i].SourceRanges; !slices.Equal(got, prefixes(want...)) {
					t.Errorf("%v: got %v, want %v", p[i].Name.Family, got, want)
				}
			}
		})
	}
}

func TestSourceRangesWithoutLoadBalancerAddressGuardNothing(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web", externalIPs("192.0.2.1"), nodePort(30080), sourceRanges("10.0.0.0/8")))
	if got := c.Desired(name("default/web"))[0].SourceRanges; got != nil {
		t.Errorf("got %v, want none", got)
	}
}

func TestAffinityIsThatOfTheService(t *testing.T) {
	t.Parallel()
	s := service("default/web", clusterIPs("10.96.0.1", "fd96::1"))
	s.Affinity = 3 * time.Hour
	for _, p := range cluster(s).Desired(s.ServiceName) {
		if p.Affinity != 3*time.Hour {
			t.Errorf("%v: got %v, want 3h", p.Name.Family, p.Affinity)
		}
	}
}

// A ClusterIP on a device of this node belongs to node-local DNS or its like.
func TestAClusterIPOnThisNodeIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := cluster(everyFrontend(), slice("s", localReady), service("default/other", clusterIPs("10.96.0.2")))
	c.TakeDirty()
	c.SetLocalAddresses(addrs("::ffff:10.96.0.1", "192.0.2.1", "192.0.2.2", "10.0.0.1"))
	expectDirty(t, c, "default/web")
	expect(t, c, internalDial, inside, "not ours")
	for _, dial := range externalDials {
		expect(t, c, dial, inside, localDial)
	}
	c.SetLocalAddresses(addrs("10.96.0.1", "10.0.0.2"))
	expectDirty(t, c)
	c.SetLocalAddresses(nil)
	expectDirty(t, c, "default/web")
	expect(t, c, internalDial, inside, localDial)
}

func TestAClusterIPOnThisNodeStillOutranksAnExternalIP(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web"), service("default/thief", clusterIPs("10.96.0.2"), externalIPs("10.96.0.1")))
	c.SetLocalAddresses(addrs("10.96.0.1"))
	expect(t, c, internalDial, inside, "not ours")
}

func TestAddressesThatNoNodeMayTranslateAreRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"127.0.0.1", "0.0.0.0", "224.0.0.1", "::1", "::", "ff02::1"} {
		for field, option := range map[string]func(*model.Service){
			"spec.clusterIPs":             clusterIPs("10.96.0.1", "fd96::1", bad),
			"spec.externalIPs":            externalIPs(bad),
			"status.loadBalancer.ingress": loadBalancer(bad),
		} {
			s := service("default/web", clusterIPs("10.96.0.1", "fd96::1"), option)
			c := cluster(s)
			expectProblem(t, c, "default/web", model.ReasonInvalidAddress, field, bad)
			want := []string{"10.96.0.1:80/TCP ClusterIP", "[fd96::1]:80/TCP ClusterIP"}
			if got := frontendsOf(c, "default/web"); !slices.Equal(got, want) {
				t.Errorf("%s %s: got %q, want %q", field, bad, got, want)
			}
		}
	}
}

func TestAnExternalIPOfAFamilyThatTheServiceLacksIsReported(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web", externalIPs("2001:db8::1", "192.0.2.1")))
	expectProblem(t, c, "default/web", model.ReasonUnusedAddress, "spec.externalIPs", "2001:db8::1", "IPv6")
	expect(t, c, "192.0.2.1:80", outside, "REJECT")
}

// The source leaves out ingress addresses of mode Proxy, so a change of mode is a change of the list.
func TestAChangeOfIPModeChangesThatFrontendAlone(t *testing.T) {
	t.Parallel()
	c := cluster(service("default/web", loadBalancer("192.0.2.22")), slice("s", localReady))
	expect(t, c, "192.0.2.21:80", inside, "not ours")
	expect(t, c, "192.0.2.22:80", inside, localDial)
	set(c, service("default/web", loadBalancer("192.0.2.21", "192.0.2.22")))
	expect(t, c, "192.0.2.21:80", inside, localDial)
	expect(t, c, "192.0.2.22:80", inside, localDial)
}

// Changes of kind leave no frontend behind.
func TestChangesOfKindLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	c := cluster(slice("s", localReady))
	for _, step := range []struct {
		name    string
		service *model.Service
		want    []string
	}{
		{"ClusterIP", service("default/web"), []string{"10.96.0.1:80/TCP ClusterIP"}},
		{"NodePort", service("default/web", nodePort(30080)),
			[]string{"0.0.0.0:30080/TCP node port", "10.96.0.1:80/TCP ClusterIP"}},
		{"LoadBalancer", service("default/web", nodePort(30080), loadBalancer("192.0.2.1")), []string{
			"0.0.0.0:30080/TCP node port", "10.96.0.1:80/TCP ClusterIP", "192.0.2.1:80/TCP load-balancer IP"}},
		{"ExternalName", nil, nil},
		{"ClusterIP again", service("default/web"), []string{"10.96.0.1:80/TCP ClusterIP"}},
		{"headless", nil, nil},
		{"recreated with another address", service("default/web", clusterIPs("10.96.0.7"), created(born(9))),
			[]string{"10.96.0.7:80/TCP ClusterIP"}},
		{"other port number", service("default/web", ports(model.Port{Name: "http", Protocol: model.TCP, Port: 81})),
			[]string{"10.96.0.1:81/TCP ClusterIP"}},
		{"port renamed", service("default/web", ports(model.Port{Name: "www", Protocol: model.TCP, Port: 81})),
			[]string{"10.96.0.1:81/TCP ClusterIP"}},
		{"other protocol", service("default/web", ports(model.Port{Name: "www", Protocol: model.UDP, Port: 81})),
			[]string{"10.96.0.1:81/UDP ClusterIP"}},
	} {
		if step.service == nil {
			c.DeleteService(name("default/web"))
		} else {
			set(c, step.service)
		}
		expectDirty(t, c, "default/web")
		if got := frontendsOf(c, "default/web"); !slices.Equal(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
	}
	c.DeleteService(name("default/web"))
	c.DeleteSlice(model.SliceName{Namespace: "default", Name: "s"})
	if left := model.Left(c); left != "" {
		t.Errorf("left: %s", left)
	}
}
