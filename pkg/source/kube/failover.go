// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
)

// failover sends requests to the first API server that answers. All servers are those of one cluster: a watch that
// breaks off at one goes on at the next.
type failover struct {
	next    http.RoundTripper
	servers []*url.URL
	// current counts up; modulo the number of servers it is the one in use.
	current *atomic.Uint32
}

// RoundTrip implements http.RoundTripper. A request that only reads is tried at every server once; one that writes may
// have been carried out though no answer came, so it is for the caller to repeat it.
func (f *failover) RoundTrip(req *http.Request) (*http.Response, error) {
	attempts := 1
	if req.Method == http.MethodGet {
		attempts = len(f.servers)
	}
	for {
		attempts--
		at := f.current.Load()
		resp, err := f.next.RoundTrip(f.redirect(req, at))
		if req.Context().Err() != nil || err == nil && !unavailable(resp.StatusCode) {
			return resp, err
		}
		// Another request may have moved on already.
		f.current.CompareAndSwap(at, at+1)
		if attempts == 0 {
			return resp, err
		}
		if resp != nil {
			discard(resp.Body)
		}
	}
}

// redirect returns the request for another server. The client has built the URL for the first.
func (f *failover) redirect(req *http.Request, at uint32) *http.Request {
	first, server := f.servers[0], f.servers[int(at)%len(f.servers)]
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host = server.Scheme, server.Host
	out.URL.Path = server.Path + strings.TrimPrefix(req.URL.Path, first.Path)
	out.URL.RawPath = ""
	out.Host = ""
	return out
}

// unavailable tells whether a status says that this server, or the load balancer before it, cannot answer now.
func unavailable(status int) bool {
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// discard reads a short body to its end, so that the connection can be used again.
func discard(body io.ReadCloser) {
	const most = 4096
	_, _ = io.CopyN(io.Discard, body, most)
	_ = body.Close()
}
