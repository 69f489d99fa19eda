// SPDX-License-Identifier: Apache-2.0

package usercases

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/shunt-lb/shunt/test/lab/process"
)

// apiRequest makes a process an API server at an address, in JSON, as far as the agent asks.
type apiRequest struct {
	Address string `json:"address"`
	// Objects are by resource: services, endpointslices, nodes, servicecidrs.
	Objects map[string][]json.RawMessage `json:"objects"`
	// Streams: lists can be watched from nothing on.
	Streams bool `json:"streams"`
}

// apiHold makes the server stop after so many objects of a list of slices; -1 lets it go on.
type apiHold struct {
	After int `json:"after"`
}

// apiState tells whether a list stands still.
type apiState struct {
	Held int `json:"held"`
}

// api is the server. A process has one.
type api struct {
	mutex    sync.Mutex
	request  apiRequest
	after    int
	released chan struct{}
	held     int
}

func apiOperations() process.Operations {
	a := &api{after: -1, released: make(chan struct{})}
	return process.Operations{
		"api-serve": process.Typed(a.serve), "api-hold": process.Typed(a.hold), "api-state": process.Typed(a.state),
	}
}

func (a *api) serve(in apiRequest) (struct{}, error) {
	a.request = in
	listener, err := net.Listen("tcp", in.Address)
	if err != nil {
		return struct{}{}, fmt.Errorf("serve the API: %w", err)
	}
	go func() { _ = http.Serve(listener, a) }() // until the process ends
	return struct{}{}, nil
}

func (a *api) hold(in apiHold) (struct{}, error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.after = in.After
	if in.After < 0 {
		close(a.released)
		a.released, a.held = make(chan struct{}), 0
	}
	return struct{}{}, nil
}

func (a *api) state(struct{}) (apiState, error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return apiState{Held: a.held}, nil
}

// pass waits before the n-th object of a resource where the list is held there.
func (a *api) pass(r *http.Request, resource string, n int) {
	a.mutex.Lock()
	released, held := a.released, resource == "endpointslices" && n == a.after
	if held {
		a.held++
	}
	a.mutex.Unlock()
	if held {
		select {
		case <-released:
		case <-r.Context().Done():
		}
	}
}

var kinds = map[string][2]string{
	"services": {"v1", "Service"}, "nodes": {"v1", "Node"},
	"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"}, "servicecidrs": {"networking.k8s.io/v1", "ServiceCIDR"},
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	kind, known := kinds[resource]
	w.Header().Set("Content-Type", "application/json")
	out := writer{w, http.NewResponseController(w)}
	query := r.URL.Query()
	switch {
	case r.Method != http.MethodGet || !known:
		w.WriteHeader(http.StatusNotFound)
		out.print(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	case query.Get("sendInitialEvents") == "true" && !a.request.Streams:
		w.WriteHeader(http.StatusUnprocessableEntity)
		out.print(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
	case query.Get("sendInitialEvents") == "true":
		a.objects(r, resource, func(_ int, object json.RawMessage) { out.print(`{"type":"ADDED","object":%s}`+"\n", object) })
		out.print(`{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"9",`+
			`"annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n", kind[1], kind[0])
		<-r.Context().Done()
	case query.Get("watch") != "":
		out.print("")
		<-r.Context().Done()
	default:
		out.print(`{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"9"},"items":[`, kind[1], kind[0])
		a.objects(r, resource, func(n int, object json.RawMessage) {
			if n > 0 {
				out.print(",")
			}
			out.print("%s", object)
		})
		out.print("]}")
	}
}

func (a *api) objects(r *http.Request, resource string, each func(int, json.RawMessage)) {
	for n, object := range a.request.Objects[resource] {
		a.pass(r, resource, n)
		each(n, object)
	}
}

// writer sends what it is given at once.
type writer struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w writer) print(format string, arguments ...any) {
	_, err := fmt.Fprintf(w, format, arguments...)
	_ = errors.Join(err, w.control.Flush()) // the client has gone: its context tells
}
