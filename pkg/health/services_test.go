// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
)

// node is a node whose every listening address is a port of this machine's loopback.
type node struct {
	t         *testing.T
	addresses map[model.Family][]netip.Addr
	all       bool
	healthy   bool
	// broken are the addresses that cannot be bound.
	broken map[string]error
	// actual maps an open address to the one that it really is.
	actual map[string]string
	// failed are the ports that were last said to be not as they should be, and why.
	failed map[string]string

	*Services
}

func newNode(t *testing.T) *node {
	n := &node{t: t, healthy: true, broken: map[string]error{}, failed: map[string]string{}, actual: map[string]string{},
		addresses: map[model.Family][]netip.Addr{
			model.IPv4: {netip.MustParseAddr("192.0.2.1")},
			model.IPv6: {netip.MustParseAddr("2001:db8::1")},
		}}
	n.Services = NewServices(ServicesOptions{
		Listeners: func(f model.Family) ([]netip.Addr, bool) { return n.addresses[f], n.all },
		Healthy:   func() bool { return n.healthy },
		Opened: func(s model.ServiceName, f model.Family, err error) {
			delete(n.failed, s.String()+" "+f.String())
			if err != nil {
				n.failed[s.String()+" "+f.String()] = err.Error()
			}
		},
		Listen: n.listen,
	})
	t.Cleanup(n.Close)
	return n
}

func (n *node) listen(network, address string) (net.Listener, error) {
	if err := n.broken[address]; err != nil {
		return nil, err
	}
	if _, ok := n.actual[network+" "+address]; ok {
		return nil, errors.New("address already in use")
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n.actual[network+" "+address] = listener.Addr().String()
	return &tracked{listener, func() { delete(n.actual, network+" "+address) }}, nil
}

// tracked is a listener that tells when it is closed by the one who opened it.
type tracked struct {
	net.Listener
	closed func()
}

func (l *tracked) Close() error {
	err := l.Listener.Close()
	if l.closed != nil && err == nil {
		l.closed()
	}
	return err
}

func (n *node) open() []string {
	var names []string
	for name := range n.actual {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (n *node) wantOpen(when string, want ...string) {
	n.t.Helper()
	if got := n.open(); !slices.Equal(got, want) {
		n.t.Errorf("%s: open are %q, want %q", when, got, want)
	}
}

// ask returns the answer of an open port.
func (n *node) ask(name, method, path string) (*http.Response, string) {
	n.t.Helper()
	request, err := http.NewRequestWithContext(n.t.Context(), method, "http://"+n.actual[name]+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		n.t.Fatalf("ask %s: %v", name, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return response, string(body)
}

var web = model.ServiceName{Namespace: "default", Name: "web"}

func check(family model.Family, port uint16, ready int) []model.HealthCheck {
	return []model.HealthCheck{{Family: family, Port: port, LocalReady: ready}}
}

func TestAHealthPortAnswersWithTheReadyEndpointsOfThisNode(t *testing.T) {
	for _, row := range []struct {
		ready         int
		healthy       bool
		method, path  string
		code          int
		weight, state string
	}{
		{2, true, "GET", "/", 200, "2", `{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}`},
		{1, true, "POST", "/any/path?x=1", 200, "1", `{"service":{"namespace":"default","name":"web"},"localEndpoints":1,"serviceProxyHealthy":true}`},
		{0, true, "GET", "/healthz", 503, "0", `{"service":{"namespace":"default","name":"web"},"localEndpoints":0,"serviceProxyHealthy":true}`},
		{2, false, "GET", "/", 503, "2", `{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":false}`},
	} {
		n := newNode(t)
		n.healthy = row.healthy
		n.Set(web, check(model.IPv4, 30000, row.ready))
		response, body := n.ask("tcp4 192.0.2.1:30000", row.method, row.path)
		if response.StatusCode != row.code || strings.TrimSpace(body) != row.state || !json.Valid([]byte(body)) {
			t.Errorf("%+v: %d %s", row, response.StatusCode, body)
		}
		h := response.Header
		if h.Get("Content-Type") != "application/json" || h.Get("X-Content-Type-Options") != "nosniff" ||
			h.Get("X-Load-Balancing-Endpoint-Weight") != row.weight {
			t.Errorf("%+v: headers %v", row, h)
		}
	}
}

func TestTheAnswerFollowsTheCount(t *testing.T) {
	n := newNode(t)
	for _, ready := range []int{0, 3, 1, 0} {
		n.Set(web, check(model.IPv4, 30000, ready))
		response, _ := n.ask("tcp4 192.0.2.1:30000", "GET", "/")
		if (response.StatusCode == 200) != (ready > 0) {
			t.Errorf("%d ready endpoints: %d", ready, response.StatusCode)
		}
	}
}

func TestEachFamilyHasItsOwnPortAndCount(t *testing.T) {
	n := newNode(t)
	n.Set(web, append(check(model.IPv4, 30000, 1), check(model.IPv6, 30000, 0)...))
	n.wantOpen("both families", "tcp4 192.0.2.1:30000", "tcp6 [2001:db8::1]:30000")
	four, _ := n.ask("tcp4 192.0.2.1:30000", "GET", "/")
	six, _ := n.ask("tcp6 [2001:db8::1]:30000", "GET", "/")
	if four.StatusCode != 200 || six.StatusCode != 503 {
		t.Errorf("IPv4 %d, IPv6 %d", four.StatusCode, six.StatusCode)
	}
	n.Set(web, check(model.IPv6, 30000, 0))
	n.wantOpen("IPv4 gone", "tcp6 [2001:db8::1]:30000")
}

func TestPortsListenOnAllAddressesWhereNodePortsAre(t *testing.T) {
	n := newNode(t)
	n.all = true
	n.Set(web, append(check(model.IPv4, 30000, 1), check(model.IPv6, 30000, 1)...))
	n.wantOpen("all addresses", "tcp4 0.0.0.0:30000", "tcp6 [::]:30000")
}

func TestAPortOpensMovesAndCloses(t *testing.T) {
	n := newNode(t)
	n.Set(web, check(model.IPv4, 30000, 1))
	old := n.actual["tcp4 192.0.2.1:30000"]
	n.Set(web, check(model.IPv4, 30001, 1))
	n.wantOpen("another port", "tcp4 192.0.2.1:30001")
	n.Set(web, nil)
	n.wantOpen("no longer eligible")
	if conn, err := net.Dial("tcp4", old); err == nil {
		conn.Close()
		t.Errorf("%s still accepts connections", old)
	}
	n.Set(web, check(model.IPv4, 30001, 1))
	n.wantOpen("eligible again", "tcp4 192.0.2.1:30001")
	n.Close()
	n.wantOpen("end")
}

func TestPortsFollowTheAddressesOfTheNode(t *testing.T) {
	n := newNode(t)
	n.Set(web, check(model.IPv4, 30000, 1))
	kept := n.actual["tcp4 192.0.2.1:30000"]
	n.addresses[model.IPv4] = append(n.addresses[model.IPv4], netip.MustParseAddr("192.0.2.2"))
	n.Sync()
	n.wantOpen("an address more", "tcp4 192.0.2.1:30000", "tcp4 192.0.2.2:30000")
	if n.actual["tcp4 192.0.2.1:30000"] != kept {
		t.Error("the listener of the address that stayed was opened again")
	}
	n.addresses[model.IPv4] = n.addresses[model.IPv4][1:]
	n.Sync()
	n.wantOpen("an address less", "tcp4 192.0.2.2:30000")
}

func TestAPortThatCannotBeOpenedIsReportedAndTriedAtEachSync(t *testing.T) {
	n := newNode(t)
	n.addresses[model.IPv4] = append(n.addresses[model.IPv4], netip.MustParseAddr("192.0.2.2"))
	n.broken["192.0.2.2:30000"] = errors.New("listen tcp4 192.0.2.2:30000: bind: address already in use")
	other := model.ServiceName{Namespace: "default", Name: "other"}
	n.Set(other, check(model.IPv4, 30001, 1))
	n.Set(web, check(model.IPv4, 30000, 1))
	n.Sync()
	n.Sync()
	n.wantOpen("one address in use: none is open", "tcp4 192.0.2.1:30001", "tcp4 192.0.2.2:30001")
	want := map[string]string{"default/web IPv4": "open healthCheckNodePort 30000: listen tcp4 192.0.2.2:30000: bind: " +
		"address already in use: trying again at the next sync"}
	if !maps.Equal(n.failed, want) {
		t.Errorf("reported %q, want %q", n.failed, want)
	}
	delete(n.broken, "192.0.2.2:30000")
	n.Sync()
	n.wantOpen("free again", "tcp4 192.0.2.1:30000", "tcp4 192.0.2.1:30001", "tcp4 192.0.2.2:30000",
		"tcp4 192.0.2.2:30001")
	if len(n.failed) > 0 {
		t.Errorf("still reported %q", n.failed)
	}
	// A port that is not wanted any more is no fault.
	n.Set(web, nil)
	n.broken["192.0.2.2:30000"] = errors.New("bind")
	n.Set(web, check(model.IPv4, 30000, 1))
	if len(n.failed) != 1 {
		t.Errorf("reported %q", n.failed)
	}
	n.Set(web, nil)
	if len(n.failed) > 0 {
		t.Errorf("reported after it was closed for good %q", n.failed)
	}
}
