// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
)

func TestParseTarget(t *testing.T) {
	t.Parallel()
	address := func(a string, port uint16, p model.Protocol) Target {
		return Target{Address: netip.MustParseAddr(a), Port: port, Protocol: p}
	}
	service := func(port string, p model.Protocol) Target {
		return Target{Service: model.ServiceName{Namespace: "default", Name: "web"}, ServicePort: port, Protocol: p}
	}
	for in, want := range map[string]Target{
		"10.96.0.10:53":           address("10.96.0.10", 53, model.TCP),
		"10.96.0.10:53/udp":       address("10.96.0.10", 53, model.UDP),
		"10.96.0.10:53/SCTP":      address("10.96.0.10", 53, model.SCTP),
		"[fd00::1]:80":            address("fd00::1", 80, model.TCP),
		"[fd00::1]:80/udp":        address("fd00::1", 80, model.UDP),
		"[2001:DB8:0:0::1]:80":    address("2001:db8::1", 80, model.TCP),
		"[::ffff:10.96.0.10]:80":  address("10.96.0.10", 80, model.TCP),
		"127.0.0.1:30080":         address("127.0.0.1", 30080, model.TCP),
		"default/web":             service("", 0),
		"default/web:http":        service("http", 0),
		"default/web:80":          service("80", 0),
		"default/web/udp":         service("", model.UDP),
		"default/web:http/tcp":    service("http", model.TCP),
		"[0:0:0:0:0:0:0:1]:30080": address("::1", 30080, model.TCP),
	} {
		if got, err := ParseTarget(in); err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", in, got, err, want)
		}
	}
}

func TestParseTargetSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                    "give ADDRESS:PORT",
		"web":                 "give ADDRESS:PORT[/PROTOCOL] or NAMESPACE/NAME[:PORT]",
		"10.96.0.10":          "add a port: 10.96.0.10:PORT",
		"10.96.0.10/tcp":      "add a port",
		"fd00::1":             "in brackets: [ADDRESS]:PORT",
		"fd00::1:80":          "in brackets",
		"[fd00::1]":           "add a port: [fd00::1]:PORT",
		"10.96.0.10:0":        "port 0 cannot be dialled",
		"10.96.0.10:70000":    "give ADDRESS:PORT",
		"10.96.0.10:53/icmp":  "a Service has no ICMP",
		"10.96.0.10:53/quic":  "give tcp, udp or sctp",
		"10.96.0.10:53/tcp/x": "give tcp, udp or sctp",
		"default/":            "NAMESPACE/NAME",
		"/web":                "NAMESPACE/NAME[:PORT][/PROTOCOL]",
		"default/web:":        "NAMESPACE/NAME[:PORT][/PROTOCOL]",
		"default/web:70000":   "port 70000 is not between 1 and 65535",
		"default/web:0":       "port 0 is not between 1 and 65535",
		"default/web/quic":    "give tcp, udp or sctp",
	} {
		if got, err := ParseTarget(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v; want an error with %q", in, got, err, want)
		}
	}
}

func TestParseClient(t *testing.T) {
	t.Parallel()
	pod := func(a string) Client { return Client{Kind: Pod, Addresses: []netip.Addr{netip.MustParseAddr(a)}} }
	for in, want := range map[string]Client{
		"":                    {Kind: Node},
		"node":                {Kind: Node},
		"external":            {Kind: External},
		"10.244.1.5":          pod("10.244.1.5"),
		"::ffff:10.244.1.5":   pod("10.244.1.5"),
		"fd00::5":             pod("fd00::5"),
		"netns:4711":          {Kind: Pod, NetnsCookie: 4711},
		"pid:1":               {Kind: Pod, PID: 1},
		"fe80::1%eth0":        pod("fe80::1"),
		"0:0:0:0:0:0:0:fd":    pod("::fd"),
		"netns:9999999999999": {Kind: Pod, NetnsCookie: 9999999999999},
	} {
		if got, err := ParseClient(in); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"pod", "10.244.1.5:80", "10.244.1.0/24", "pid:", "pid:0", "pid:-1", "netns:0", "netns:x"} {
		if got, err := ParseClient(in); err == nil {
			t.Errorf("%s: got %+v, want an error", in, got)
		}
	}
}
