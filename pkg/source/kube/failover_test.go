// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	events "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shunt-lb/shunt/pkg/source"
)

// front is a server that answers with its own name and a status.
type front struct {
	name   string
	status atomic.Int32
	asked  atomic.Int32
	last   atomic.Value
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.asked.Add(1)
	f.last.Store(r.Host + r.URL.RequestURI())
	w.WriteHeader(int(f.status.Load()))
	_, _ = io.WriteString(w, f.name)
}

func TestRequestsGoToTheFirstServerThatAnswers(t *testing.T) {
	t.Parallel()
	var fronts []*front
	var servers []*url.URL
	var running []*httptest.Server
	for i := range 3 {
		f := &front{name: fmt.Sprintf("server %d", i)}
		f.status.Store(http.StatusOK)
		server := httptest.NewServer(f)
		t.Cleanup(server.Close)
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.Path = fmt.Sprintf("/base%d", i)
		fronts, servers, running = append(fronts, f), append(servers, u), append(running, server)
	}
	client := &http.Client{Transport: &failover{next: &http.Transport{}, servers: servers, current: new(atomic.Uint32)}}
	ask := func(method, want string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, servers[0].String()+"/api/v1/nodes?limit=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		got := ""
		if err != nil {
			got = "error"
		} else {
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			got = fmt.Sprintf("%d %s", resp.StatusCode, body)
		}
		if got != want {
			t.Errorf("%s is answered %q, want %q", method, got, want)
		}
	}
	get, post := http.MethodGet, http.MethodPost

	ask(get, "200 server 0")
	fronts[0].status.Store(http.StatusServiceUnavailable)
	ask(get, "200 server 1")
	fronts[0].status.Store(http.StatusOK)
	ask(get, "200 server 1") // No way back while it answers.
	if got, want := fronts[1].last.Load(), servers[1].Host+"/base1/api/v1/nodes?limit=1"; got != want {
		t.Errorf("asked for %q, want %q", got, want)
	}
	running[1].Close()
	ask(post, "error") // It may have been carried out: the caller decides.
	ask(post, "200 server 2")
	running[2].Close()
	ask(get, "200 server 0")
	fronts[0].status.Store(http.StatusForbidden)
	ask(get, "403 server 0") // An answer is an answer.
	running[0].Close()
	ask(get, "error")
}

func TestTheSourceGoesOnAtTheNextServer(t *testing.T) {
	t.Parallel()
	first, second := newAPIServer(t, true), newAPIServer(t, true)
	for _, s := range []*apiServer{first, second} {
		s.put(service("web", "10.96.0.1"), node("n1", "a"))
	}
	config := first.config()
	config.APIServers = append(config.APIServers, second.http.URL)
	c := run(t, quick, config)
	c.eventually("map[web:10.96.0.1] map[] zone a ranges  synced 1 problems []")
	if n := len(second.seen()); n != 0 {
		t.Errorf("the second server was asked %d times while the first answers", n)
	}
	first.disconnect()
	first.http.Close()
	second.put(service("web", "10.96.0.2"))
	c.eventually("map[web:10.96.0.2] map[] zone a ranges  synced 1 problems []")
}

func TestServersWithCertificatesAreVerifiedByTheirOwnNames(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	s.put(service("web", "10.96.0.1"), node("n1", "a"))
	secure := httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.disconnect()
		secure.CloseClientConnections()
		secure.Close()
	})
	dir := t.TempDir()
	file(t, dir, "ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	// The first server is one that nobody runs.
	closed := httptest.NewServer(nil)
	closed.Close()
	path := file(t, dir, "kubeconfig", strings.NewReplacer(
		`server: "https://192.0.2.1:6443/base"`, "certificate-authority: ca.crt, server: \""+secure.URL+"\"").Replace(kubeconfig))
	c := run(t, quick, Config{Kubeconfig: path, APIServers: []string{strings.Replace(closed.URL, "http:", "https:", 1)}})
	c.eventually("map[web:10.96.0.1] map[] zone a ranges  synced 1 problems []")
	for _, r := range s.seen() {
		if got := r.Header.Get("Authorization"); got != "Bearer secret" {
			t.Errorf("%s: Authorization %q", r.URL, got)
		}
	}
}

func TestAnEventIsCreated(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	client, err := NewClient(s.config())
	if err != nil {
		t.Fatal(err)
	}
	event := &events.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web.1"}, Reason: "Because"}
	if err := client.Create(t.Context(), event); err != nil {
		t.Fatal(err)
	}
	if len(s.created) != 1 || s.created[0].Reason != "Because" {
		t.Errorf("created %v", s.created)
	}
	if got, want := s.seen()[0].URL.Path, "/apis/events.k8s.io/v1/namespaces/shop/events"; got != want {
		t.Errorf("posted to %s, want %s", got, want)
	}
}

func TestBootstrap(t *testing.T) {
	t.Parallel()
	s := newAPIServer(t, true)
	release := make(chan struct{})
	s.setIntercept(func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return false
	})
	var slice source.SetSlice
	c := run(t, quick, s.config(), func(src *Source) {
		// Known, but not to the transport: a test dials nothing but the loopback.
		for _, text := range []string{"https://192.0.2.1:6443", "https://192.0.2.2:6443", "https://192.0.2.3:8443",
			"https://cp.example.org:6443", "https://[2001:db8::1]:6443", "https://10.96.0.1:443"} {
			server, err := parseServer(text)
			if err != nil {
				t.Fatal(err)
			}
			src.client.servers = append(src.client.servers, server)
		}
		if !src.Bootstrap(netip.MustParseAddr("::ffff:10.96.0.1"), 443) {
			t.Error("not known how to reach the API servers")
		}
		slice = src.first[1].(source.SetSlice)
	})
	c.eventually("map[kubernetes:10.96.0.1] map[kubernetes:192.0.2.1] zone  ranges  synced 0 problems []")
	var got []string
	for _, e := range slice.Slice.Endpoints {
		got = append(got, fmt.Sprintf("%v:%d", e.Address, slice.Slice.Ports[0].Port))
	}
	if want := []string{"192.0.2.1:6443", "192.0.2.2:6443"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
	// The cluster's own Service has another slice: the one made here goes.
	real := service("kubernetes", "10.96.0.1")
	real.Namespace = "default"
	s.put(real, node("n1", "a"))
	close(release)
	c.eventually("map[kubernetes:10.96.0.1] map[] zone a ranges  synced 1 problems []")
}

func TestBootstrapNeedsAnAddressOfTheFamily(t *testing.T) {
	t.Parallel()
	client, err := NewClient(Config{serviceAccount: t.TempDir(), APIServers: []string{"http://cp.example.org:6443", "http://192.0.2.1"}})
	if err != nil {
		t.Fatal(err)
	}
	s := New(client, "n1", DefaultTiming())
	if s.Bootstrap(netip.MustParseAddr("fd00::1"), 443) || len(s.first) != 0 {
		t.Errorf("bootstrapped with %v", s.first)
	}
	if !s.Bootstrap(netip.MustParseAddr("10.96.0.1"), 443) {
		t.Error("an address without a port is not used")
	}
}
