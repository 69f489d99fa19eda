// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAServerTriesToBindUntilItCan(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	attempts, waits := 0, 0
	bound := make(chan net.Addr, 1)
	server := &Server{
		Name: "metrics", Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }),
		Listen: func(network, address string) (net.Listener, error) {
			if attempts++; attempts < 3 {
				return nil, errors.New("address already in use")
			}
			listener, err := net.Listen(network, address)
			if err == nil {
				bound <- listener.Addr()
			}
			return listener, err
		},
		Wait: func(context.Context) { waits++ },
	}
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	response, err := http.Get("http://" + (<-bound).String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); string(body) != "here" {
		t.Errorf("answer %q", body)
	}
	cancel()
	if err := <-done; err != nil || attempts != 3 || waits != 2 {
		t.Errorf("Run = %v after %d attempts and %d pauses", err, attempts, waits)
	}
}

func TestAServerThatMustBindFailsAtOnce(t *testing.T) {
	inUse := errors.New("address already in use")
	server := &Server{Name: "health", Address: "127.0.0.1:1", HardFail: true,
		Listen: func(string, string) (net.Listener, error) { return nil, inUse }}
	if err := server.Run(t.Context()); !errors.Is(err, inUse) || !strings.Contains(err.Error(), "bind health server") {
		t.Errorf("Run = %v", err)
	}
}

func TestAServerThatCannotBindEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := &Server{Name: "health", Address: "127.0.0.1:1", Log: slog.New(slog.DiscardHandler),
		Listen: func(string, string) (net.Listener, error) { return nil, errors.New("in use") },
		Wait:   func(context.Context) { cancel() }}
	if err := server.Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestAnEmptyAddressServesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	server := &Server{Listen: func(string, string) (net.Listener, error) {
		t.Error("listened")
		return nil, errors.New("listened")
	}}
	if err := server.Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestTheMetricsAddressServesWhatKubeProxyServesThere(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") })
	configz := func() ([]byte, error) { return []byte(`{"a":1}`), nil }
	for _, row := range []struct {
		path      string
		profiling bool
		code      int
		kind      string
		body      string
	}{
		{"/metrics", false, 200, "", "metrics"},
		{"/healthz", false, 200, "text/plain; charset=utf-8", "ok"},
		{"/proxyMode", false, 200, "text/plain; charset=utf-8", "shunt"},
		{"/configz", false, 200, "application/json", `{"a":1}`},
		{"/debug/pprof/", false, 404, "", ""},
		{"/debug/pprof/", true, 200, "", ""},
		{"/debug/pprof/heap", true, 200, "", ""},
	} {
		w := httptest.NewRecorder()
		MetricsHandler(metrics, configz, row.profiling).ServeHTTP(w, httptest.NewRequest("GET", row.path, nil))
		if w.Code != row.code || row.body != "" && w.Body.String() != row.body ||
			row.kind != "" && (w.Header().Get("Content-Type") != row.kind ||
				w.Header().Get("X-Content-Type-Options") != "nosniff") {
			t.Errorf("%+v: %d %v %s", row, w.Code, w.Header(), w.Body)
		}
	}
}

func TestAConfigurationThatCannotBeShownIsAnError(t *testing.T) {
	configz := func() ([]byte, error) { return nil, errors.New("broken") }
	w := httptest.NewRecorder()
	MetricsHandler(http.NotFoundHandler(), configz, false).ServeHTTP(w, httptest.NewRequest("GET", "/configz", nil))
	if w.Code != 500 || !strings.Contains(w.Body.String(), "broken") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
