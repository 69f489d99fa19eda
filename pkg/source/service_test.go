// SPDX-License-Identifier: Apache-2.0

package source

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shunt-lb/shunt/pkg/model"
)

func ptr[T any](v T) *T { return &v }

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func ranges(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var created = time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)

// service returns a Service that is translated, changed by the functions.
func service(change ...func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.NewTime(created)},
		Spec: v1.ServiceSpec{
			Type:       v1.ServiceTypeClusterIP,
			ClusterIP:  "10.96.0.10",
			ClusterIPs: []string{"10.96.0.10"},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports:      []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

// converted returns what the unchanged service converts to, changed by the functions.
func converted(change ...func(*model.Service)) *model.Service {
	s := &model.Service{
		ServiceName: model.ServiceName{Namespace: "shop", Name: "web"},
		Created:     created,
		ClusterIPs:  addrs("10.96.0.10"),
		Ports:       []model.Port{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

type (
	in  = func(*v1.Service)
	out = func(*model.Service)
)

// fields returns the fields that the problems name.
func fields(problems []Problem) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Field)
	}
	return out
}

func TestServiceIsConverted(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what     string
		in       in
		want     out
		problems []string
	}{
		{"plain", func(*v1.Service) {}, func(*model.Service) {}, nil},
		{"the address is canonicalised",
			func(s *v1.Service) { s.Spec.ClusterIPs[0] = "010.96.000.10" }, func(*model.Service) {}, nil},
		{"ipFamilies empty: the family of clusterIP decides and clusterIPs is not read",
			func(s *v1.Service) {
				s.Spec.IPFamilies, s.Spec.ClusterIP, s.Spec.ClusterIPs = nil, "fd00::1", []string{"10.96.0.10"}
			},
			func(s *model.Service) { s.ClusterIPs = addrs("fd00::1") }, nil},
		{"the family's index in ipFamilies selects from clusterIPs",
			func(s *v1.Service) {
				s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}
				s.Spec.ClusterIPs = []string{"fd00::1", "10.96.0.10"}
			},
			func(s *model.Service) { s.ClusterIPs = addrs("fd00::1", "10.96.0.10") }, nil},
		{"a missing index gives no address of that family",
			func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} },
			func(*model.Service) {}, nil},
		{"an address unlike its family is left out",
			func(s *v1.Service) {
				s.Spec.IPFamilies = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
				s.Spec.ClusterIPs = []string{"10.96.0.10", "::ffff:10.96.0.11"}
			},
			func(*model.Service) {}, []string{"spec.clusterIPs[1]"}},
		{"external addresses, each once, the rest reported",
			func(s *v1.Service) {
				s.Spec.ExternalIPs = []string{"192.0.2.1", "2001:DB8::1", "192.0.002.1", "nonsense", "127.0.0.1", "0.0.0.0"}
			},
			func(s *model.Service) { s.ExternalIPs = addrs("192.0.2.1", "2001:db8::1") },
			[]string{"spec.externalIPs[3]", "spec.externalIPs[4]", "spec.externalIPs[5]"}},
		{"load-balancer addresses of mode VIP or none, not Proxy, not host names",
			func(s *v1.Service) {
				s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{
					{IP: "192.0.2.20"}, {IP: "192.0.2.21", IPMode: ptr(v1.LoadBalancerIPModeProxy)},
					{IP: "192.0.2.22", IPMode: ptr(v1.LoadBalancerIPModeVIP)}, {Hostname: "lb.example.org"}, {IP: "x"},
				}
			},
			func(s *model.Service) { s.LoadBalancerIPs = addrs("192.0.2.20", "192.0.2.22") },
			[]string{"status.loadBalancer.ingress[4].ip"}},
		{"source ranges are trimmed, masked and reported",
			func(s *v1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{" 10.1.2.3/8 ", "2001:db8::/32", "10.0.0.0/33", "10.0.0.0/8"}
			},
			func(s *model.Service) { s.SourceRanges = ranges("10.0.0.0/8", "2001:db8::/32") },
			[]string{"spec.loadBalancerSourceRanges[2]"}},
		{"a /0 empties the list of its family only",
			func(s *v1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32"}
			},
			func(s *model.Service) { s.SourceRanges = ranges("2001:db8::/32") }, nil},
		{"internalTrafficPolicy Local",
			func(s *v1.Service) { s.Spec.InternalTrafficPolicy = ptr(v1.ServiceInternalTrafficPolicyLocal) },
			func(s *model.Service) { s.InternalLocal = true }, nil},
		{"internalTrafficPolicy Cluster",
			func(s *v1.Service) { s.Spec.InternalTrafficPolicy = ptr(v1.ServiceInternalTrafficPolicyCluster) },
			func(*model.Service) {}, nil},
		{"affinity without a configuration has the default",
			func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP },
			func(s *model.Service) { s.Affinity = 3 * time.Hour }, nil},
		{"affinity with half a configuration has the default",
			func(s *v1.Service) {
				s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{}}
			},
			func(s *model.Service) { s.Affinity = 3 * time.Hour }, nil},
		{"affinity of a day",
			func(s *v1.Service) {
				s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{
					ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr(int32(86400))}}
			},
			func(s *model.Service) { s.Affinity = 24 * time.Hour }, nil},
		{"an impossible timeout is reported and replaced",
			func(s *v1.Service) {
				s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{
					ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr(int32(-1))}}
			},
			func(s *model.Service) { s.Affinity = 3 * time.Hour },
			[]string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds"}},
		{"a timeout without affinity is no affinity",
			func(s *v1.Service) {
				s.Spec.SessionAffinity = v1.ServiceAffinityNone
				s.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{
					ClientIP: &v1.ClientIPConfig{TimeoutSeconds: ptr(int32(5))}}
			},
			func(*model.Service) {}, nil},
		{"a node port counts whatever the type is",
			func(s *v1.Service) { s.Spec.Ports[0].NodePort = 30080 },
			func(s *model.Service) { s.Ports[0].NodePort = 30080 }, nil},
		{"ports: every protocol, none is TCP, what cannot be is reported",
			func(s *v1.Service) {
				s.Spec.Ports = []v1.ServicePort{
					{Name: "a", Port: 1}, {Name: "b", Port: 2, Protocol: v1.ProtocolUDP}, {Name: "c", Port: 3, Protocol: v1.ProtocolSCTP},
					{Name: "d", Port: 4, Protocol: "ICMP"}, {Name: "e", Port: 0}, {Name: "f", Port: 70000},
					{Name: "a", Port: 5}, {Name: "a", Port: 5, Protocol: v1.ProtocolUDP}, {Name: "g", Port: 6, NodePort: 70000},
				}
			},
			func(s *model.Service) {
				s.Ports = []model.Port{{Name: "a", Protocol: model.TCP, Port: 1}, {Name: "b", Protocol: model.UDP, Port: 2},
					{Name: "c", Protocol: model.SCTP, Port: 3}, {Name: "a", Protocol: model.UDP, Port: 5},
					{Name: "g", Protocol: model.TCP, Port: 6}}
			},
			[]string{"spec.ports[3].protocol", "spec.ports[4].port", "spec.ports[5].port", "spec.ports[6].name",
				"spec.ports[8].nodePort"}},
	} {
		got, problems := Service(service(row.in))
		if want := converted(row.want); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", row.what, got, want)
		}
		if !slices.Equal(fields(problems), row.problems) {
			t.Errorf("%s: problems %v, want fields %v", row.what, problems, row.problems)
		}
	}
}

func TestServiceIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what     string
		in       in
		problems []string
	}{
		{"headless", func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, nil},
		{"ExternalName, though it has a ClusterIP", func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName }, nil},
		{"another proxy's", func(s *v1.Service) { s.Labels = map[string]string{LabelProxyName: "other"} }, nil},
		{"another proxy's by an empty label", func(s *v1.Service) { s.Labels = map[string]string{LabelProxyName: ""} }, nil},
		{"headless by label", func(s *v1.Service) { s.Labels = map[string]string{LabelHeadless: ""} }, nil},
		{"without ClusterIP", func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }, []string{"spec.clusterIP"}},
		{"with a ClusterIP that is none", func(s *v1.Service) { s.Spec.ClusterIPs[0] = "10.96.0" },
			[]string{"spec.clusterIPs[0]", "spec.clusterIPs"}},
		{"of an old API server, with a ClusterIP that is none",
			func(s *v1.Service) { s.Spec.IPFamilies, s.Spec.ClusterIP = nil, "10.96.0" },
			[]string{"spec.clusterIP", "spec.clusterIPs"}},
	} {
		got, problems := Service(service(row.in))
		if got != nil {
			t.Errorf("%s: converted to %+v", row.what, got)
		}
		if !slices.Equal(fields(problems), row.problems) {
			t.Errorf("%s: problems %v, want fields %v", row.what, problems, row.problems)
		}
	}
}

func TestExternalTrafficPolicyCountsWhereItHasAMeaning(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		kind        v1.ServiceType
		externalIPs []string
		want        bool
		health      uint16
	}{
		{v1.ServiceTypeLoadBalancer, nil, true, 32000},
		{v1.ServiceTypeNodePort, nil, true, 0},
		{v1.ServiceTypeClusterIP, nil, false, 0},
		{v1.ServiceTypeClusterIP, []string{"192.0.2.1"}, true, 0},
		{"", []string{"192.0.2.1"}, true, 0},
	} {
		for _, policy := range []v1.ServiceExternalTrafficPolicy{"Local", "Cluster", ""} {
			got, problems := Service(service(func(s *v1.Service) {
				s.Spec.Type, s.Spec.ExternalIPs, s.Spec.ExternalTrafficPolicy = row.kind, row.externalIPs, policy
				s.Spec.HealthCheckNodePort = 32000
			}))
			want, health := row.want, row.health
			if policy != "Local" {
				want, health = false, 0
			}
			if got.ExternalLocal != want || got.HealthCheckNodePort != health || len(problems) != 0 {
				t.Errorf("type %q, externalIPs %v, policy %q: local %v, health port %d, problems %v; want %v, %d",
					row.kind, row.externalIPs, policy, got.ExternalLocal, got.HealthCheckNodePort, problems, want, health)
			}
		}
	}
}

func TestAProblemIsOneLine(t *testing.T) {
	t.Parallel()
	_, problems := Service(service(func(s *v1.Service) {
		s.Spec.ExternalIPs = []string{"\"a\nb" + strings.Repeat("ü", 100)}
	}))
	if len(problems) != 1 {
		t.Fatalf("problems %v, want one", problems)
	}
	got := problems[0].String()
	prefix := `Service shop/web: spec.externalIPs[0] "?a?b` + strings.Repeat("ü", 38)
	if !strings.HasPrefix(got, prefix) || !strings.HasSuffix(got, `…": not an IP address; it is left out`) {
		t.Errorf("got %s", got)
	}
}
