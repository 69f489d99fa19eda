// SPDX-License-Identifier: Apache-2.0

package source

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shunt-lb/shunt/pkg/model"
)

func slice(change ...func(*discovery.EndpointSlice)) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-x7",
			Labels: map[string]string{discovery.LabelServiceName: "web"}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(v1.ProtocolTCP)}},
		Endpoints:   []discovery.Endpoint{{Addresses: []string{"10.244.1.5"}, NodeName: ptr("n1")}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func convertedSlice(change ...func(*model.EndpointSlice)) *model.EndpointSlice {
	s := &model.EndpointSlice{
		SliceName: model.SliceName{Namespace: "shop", Name: "web-x7"},
		Service:   model.ServiceName{Namespace: "shop", Name: "web"},
		Family:    model.IPv4,
		Ports:     []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{{Address: netip.MustParseAddr("10.244.1.5"), NodeName: "n1", Ready: true, Serving: true}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func TestSliceIsConverted(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what     string
		in       func(*discovery.EndpointSlice)
		want     func(*model.EndpointSlice)
		problems []string
	}{
		{"plain: missing conditions are ready, serving, not terminating",
			func(*discovery.EndpointSlice) {}, func(*model.EndpointSlice) {}, nil},
		{"conditions as given; serving is not a copy of ready",
			func(s *discovery.EndpointSlice) {
				s.Endpoints[0].Conditions = discovery.EndpointConditions{Ready: ptr(false), Terminating: ptr(true)}
			},
			func(s *model.EndpointSlice) {
				s.Endpoints[0].Ready, s.Endpoints[0].Serving, s.Endpoints[0].Terminating = false, true, true
			}, nil},
		{"not serving",
			func(s *discovery.EndpointSlice) {
				s.Endpoints[0].Conditions = discovery.EndpointConditions{Ready: ptr(true), Serving: ptr(false)}
			},
			func(s *model.EndpointSlice) { s.Endpoints[0].Serving = false }, nil},
		{"only the first address counts; an endpoint without one is left out",
			func(s *discovery.EndpointSlice) {
				s.Endpoints = []discovery.Endpoint{{Addresses: []string{"10.244.1.5", "10.244.1.6"}, NodeName: ptr("n1")}, {}}
			},
			func(*model.EndpointSlice) {}, nil},
		{"no nodeName",
			func(s *discovery.EndpointSlice) { s.Endpoints[0].NodeName = nil },
			func(s *model.EndpointSlice) { s.Endpoints[0].NodeName = "" }, nil},
		{"hints by zone and node",
			func(s *discovery.EndpointSlice) {
				s.Endpoints[0].Hints = &discovery.EndpointHints{
					ForZones: []discovery.ForZone{{Name: "a"}, {Name: "b"}}, ForNodes: []discovery.ForNode{{Name: "n2"}}}
			},
			func(s *model.EndpointSlice) {
				s.Endpoints[0].ForZones, s.Endpoints[0].ForNodes = []string{"a", "b"}, []string{"n2"}
			}, nil},
		{"empty hints are no hints",
			func(s *discovery.EndpointSlice) { s.Endpoints[0].Hints = &discovery.EndpointHints{} },
			func(*model.EndpointSlice) {}, nil},
		{"ports: null or 0 and without a name are skipped, an empty name is a name, no protocol is TCP",
			func(s *discovery.EndpointSlice) {
				s.Ports = []discovery.EndpointPort{
					{Name: ptr("a")}, {Port: ptr(int32(1))}, {Name: ptr("b"), Port: ptr(int32(0))},
					{Name: ptr(""), Port: ptr(int32(8080))}, {Name: ptr("c"), Port: ptr(int32(1)), Protocol: ptr(v1.ProtocolUDP)},
					{Name: ptr("d"), Port: ptr(int32(70000))}, {Name: ptr("e"), Port: ptr(int32(1)), Protocol: ptr(v1.Protocol("X"))},
				}
			},
			func(s *model.EndpointSlice) {
				s.Ports = []model.SlicePort{{Protocol: model.TCP, Port: 8080}, {Name: "c", Protocol: model.UDP, Port: 1}}
			}, []string{"ports[5].port", "ports[6].protocol"}},
		{"IPv6",
			func(s *discovery.EndpointSlice) {
				s.AddressType, s.Endpoints[0].Addresses = discovery.AddressTypeIPv6, []string{"FD00::5"}
			},
			func(s *model.EndpointSlice) {
				s.Family, s.Endpoints[0].Address = model.IPv6, netip.MustParseAddr("fd00::5")
			}, nil},
		{"addresses that the API server refuses, or of the other family",
			func(s *discovery.EndpointSlice) {
				for _, a := range []string{"127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "x", "fd00::1"} {
					s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{a}})
				}
			},
			func(*model.EndpointSlice) {},
			[]string{"endpoints[1].addresses[0]", "endpoints[2].addresses[0]", "endpoints[3].addresses[0]",
				"endpoints[4].addresses[0]", "endpoints[5].addresses[0]", "endpoints[6].addresses[0]"}},
		{"a v4-mapped address is not of an IPv6 slice",
			func(s *discovery.EndpointSlice) {
				s.AddressType, s.Endpoints[0].Addresses = discovery.AddressTypeIPv6, []string{"::ffff:10.244.1.5"}
			},
			func(s *model.EndpointSlice) { s.Family, s.Endpoints = model.IPv6, []model.Endpoint{} },
			[]string{"endpoints[0].addresses[0]"}},
	} {
		got, problems := Slice(slice(row.in))
		if want := convertedSlice(row.want); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", row.what, got, want)
		}
		if !slices.Equal(fields(problems), row.problems) {
			t.Errorf("%s: problems %v, want fields %v", row.what, problems, row.problems)
		}
	}
}

func TestSliceIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what     string
		in       func(*discovery.EndpointSlice)
		problems []string
	}{
		{"of a headless Service", func(s *discovery.EndpointSlice) { s.Labels[LabelHeadless] = "" }, nil},
		{"without an owner", func(s *discovery.EndpointSlice) { s.Labels = nil }, nil},
		{"with an empty owner", func(s *discovery.EndpointSlice) { s.Labels[discovery.LabelServiceName] = "" }, nil},
		{"with host names", func(s *discovery.EndpointSlice) { s.AddressType = "FQDN" }, []string{"addressType"}},
	} {
		got, problems := Slice(slice(row.in))
		if got != nil || !slices.Equal(fields(problems), row.problems) {
			t.Errorf("%s: converted to %+v, problems %v, want fields %v", row.what, got, problems, row.problems)
		}
	}
}

func TestTriggered(t *testing.T) {
	t.Parallel()
	want := time.Date(2025, 1, 2, 3, 4, 5, 678, time.UTC)
	for _, row := range []struct {
		what, value string
		want        time.Time
	}{
		{"with nanoseconds", "2025-01-02T03:04:05.000000678Z", want},
		{"seconds only", "2025-01-02T03:04:05Z", want.Truncate(time.Second)},
		{"missing", "", time.Time{}},
		{"nonsense", "yesterday", time.Time{}},
	} {
		s := slice(func(s *discovery.EndpointSlice) {
			s.Annotations = map[string]string{v1.EndpointsLastChangeTriggerTime: row.value}
		})
		if got := Triggered(s); !got.Equal(row.want) {
			t.Errorf("%s: %v, want %v", row.what, got, row.want)
		}
	}
}
