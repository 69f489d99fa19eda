// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// bindRetry is how long an address that cannot be bound is left alone.
const bindRetry = 5 * time.Second

// The timeouts of all servers: they answer from memory, and must not be held open by who asks and does not read.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = 60 * time.Second
	idleTimeout  = 90 * time.Second
)

// ListenFunc opens a listener, as net.Listen does.
type ListenFunc func(network, address string) (net.Listener, error)

// Server is one of the agent's own HTTP servers.
type Server struct {
	// Name is for messages: "health" or "metrics".
	Name    string
	Address string
	Handler http.Handler
	// HardFail ends Run with an error when the address cannot be bound; otherwise it is tried again.
	HardFail bool
	Log      *slog.Logger
	// Listen is net.Listen where it is nil.
	Listen ListenFunc
	// Wait returns after the pause between two attempts to bind, or when ctx ends; nil: five seconds.
	Wait func(ctx context.Context)
}

// Run serves until ctx ends. An empty address serves nothing.
func (s *Server) Run(ctx context.Context) error {
	if s.Address == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := s.bind(ctx)
	if listener == nil {
		return err
	}
	server := newHTTPServer(s.Handler)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	s.Log.Info("serving", "server", s.Name, "address", listener.Addr().String())
	if err := server.Serve(listener); ctx.Err() == nil {
		return fmt.Errorf("serve %s on %s: %w", s.Name, s.Address, err)
	}
	return nil
}

// bind returns a listener; none and no error when ctx has ended.
func (s *Server) bind(ctx context.Context) (net.Listener, error) {
	listen, wait := s.Listen, s.Wait
	if listen == nil {
		listen = net.Listen
	}
	if wait == nil {
		wait = pause
	}
	for ctx.Err() == nil {
		listener, err := listen("tcp", s.Address)
		if err == nil {
			return listener, nil
		}
		if s.HardFail {
			return nil, fmt.Errorf("bind %s server: %w", s.Name, err)
		}
		s.Log.Error("cannot bind, trying again", "server", s.Name, "address", s.Address, "err", err)
		wait(ctx)
	}
	return nil, nil
}

func pause(ctx context.Context) {
	timer := time.NewTimer(bindRetry)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func newHTTPServer(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout}
}

// proxyMode is what /proxyMode answers; kube-proxy prints the name of its backend there.
const proxyMode = "shunt"

// MetricsHandler serves what kube-proxy serves at its metrics address: metrics at /metrics, configz (JSON) at
// /configz, /proxyMode, a /healthz that only says that the process answers, and with profiling /debug/pprof.
func MetricsHandler(metrics http.Handler, configz func() ([]byte, error), profiling bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok") })
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { writeText(w, proxyMode) })
	mux.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) {
		body, err := configz()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body)
	})
	if profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(text))
}
