// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	restwatch "k8s.io/client-go/rest/watch"
)

// apiServer speaks as much of the API as a reflector needs: lists, watches from a resource version, streamed lists,
// selectors, expired versions, JSON and protobuf.
type apiServer struct {
	t      testing.TB
	http   *httptest.Server
	codecs serializer.CodecFactory

	mu      sync.Mutex
	objects map[string]runtime.Object
	log     []logged
	version int
	// oldest is the version before which nothing can be watched.
	oldest int
	// streams says whether lists can be streamed.
	streams bool
	// intercept answers a request instead of the server, if it returns true.
	intercept func(w http.ResponseWriter, r *http.Request) bool
	// changed is closed and replaced at every change, and cut ends all watches.
	changed, cut chan struct{}
	requests     []*http.Request
	created      []*events.Event
}

// logged is one change. Before or after is nil when the object did not exist.
type logged struct {
	version       int
	resource      string
	before, after runtime.Object
}

func newAPIServer(t testing.TB, streams bool) *apiServer {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1.AddToScheme, discovery.AddToScheme, networking.AddToScheme, events.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	s := &apiServer{t: t, codecs: serializer.NewCodecFactory(scheme), objects: map[string]runtime.Object{}, version: 100,
		oldest: 100, streams: streams, changed: make(chan struct{}), cut: make(chan struct{})}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.disconnect()
		s.http.Close()
	})
	return s
}

// resourceOf returns the resource of an object and a key within the server.
func resourceOf(o runtime.Object) (resource, key string) {
	switch o.(type) {
	case *v1.Service:
		resource = "services"
	case *v1.Node:
		resource = "nodes"
	case *discovery.EndpointSlice:
		resource = "endpointslices"
	case *networking.ServiceCIDR:
		resource = "servicecidrs"
	}
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	return resource, resource + "/" + m.GetNamespace() + "/" + m.GetName()
}

// put creates or replaces objects.
func (s *apiServer) put(objects ...runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.version++
		o = o.DeepCopyObject()
		m, _ := meta.Accessor(o)
		m.SetResourceVersion(strconv.Itoa(s.version))
		resource, key := resourceOf(o)
		s.log = append(s.log, logged{s.version, resource, s.objects[key], o})
		s.objects[key] = o
	}
	s.wake()
}

func (s *apiServer) remove(o runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	resource, key := resourceOf(o)
	s.log = append(s.log, logged{s.version, resource, s.objects[key], nil})
	delete(s.objects, key)
	s.wake()
}

func (s *apiServer) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// disconnect ends all watches.
func (s *apiServer) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// forget makes every version that a client knows too old.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest, s.log = s.version, nil
}

func (s *apiServer) setIntercept(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// seen returns the requests so far.
func (s *apiServer) seen() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*http.Request(nil), s.requests...)
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	intercept := s.intercept
	s.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	q := r.URL.Query()
	parts := strings.Split(r.URL.Path, "/")
	resource := parts[len(parts)-1]
	switch {
	case r.Method == http.MethodPost && resource == "events":
		s.create(w, r)
	case q.Get("watch") == "true" || q.Get("watch") == "1":
		s.watch(w, r, resource)
	default:
		s.list(w, r, resource)
	}
}

// encoding returns the serializer that the client prefers.
func (s *apiServer) encoding(r *http.Request) runtime.SerializerInfo {
	for _, accepted := range strings.Split(r.Header.Get("Accept"), ",") {
		mediaType, _, _ := strings.Cut(accepted, ";")
		if info, ok := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), strings.TrimSpace(mediaType)); ok {
			return info
		}
	}
	info, _ := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), ContentJSON)
	return info
}

func groupVersion(resource string) schema.GroupVersion {
	switch resource {
	case "endpointslices":
		return discovery.SchemeGroupVersion
	case "servicecidrs":
		return networking.SchemeGroupVersion
	}
	return v1.SchemeGroupVersion
}

// status answers with an error of the API.
func (s *apiServer) status(w http.ResponseWriter, r *http.Request, err *apierrors.StatusError) {
	info := s.encoding(r)
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(int(err.ErrStatus.Code))
	encoder := s.codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Version: "v1"})
	if e := encoder.Encode(&err.ErrStatus, w); e != nil {
		s.t.Errorf("encode status: %v", e)
	}
}

func (s *apiServer) create(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Errorf("read body: %v", err)
	}
	o, _, err := s.codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		s.status(w, r, apierrors.NewBadRequest(err.Error()))
		return
	}
	event := o.(*events.Event)
	s.mu.Lock()
	s.created = append(s.created, event)
	s.mu.Unlock()
	info := s.encoding(r)
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(http.StatusCreated)
	if err := s.codecs.EncoderForVersion(info.Serializer, events.SchemeGroupVersion).Encode(event, w); err != nil {
		s.t.Errorf("encode event: %v", err)
	}
}

// selector returns the selectors of a request.
type selector struct {
	labels labels.Selector
	fields fields.Selector
}

func (s *apiServer) selector(r *http.Request) selector {
	l, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		s.t.Errorf("label selector: %v", err)
	}
	f, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		s.t.Errorf("field selector: %v", err)
	}
	return selector{l, f}
}

func (s selector) matches(o runtime.Object) bool {
	if o == nil {
		return false
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return false
	}
	set := fields.Set{"metadata.name": m.GetName()}
	if service, ok := o.(*v1.Service); ok {
		set["spec.clusterIP"] = service.Spec.ClusterIP
	}
	return s.labels.Matches(labels.Set(m.GetLabels())) && s.fields.Matches(set)
}

// selected returns what exists now.
func (s *apiServer) selected(resource string, sel selector) []runtime.Object {
	var out []runtime.Object
	for key, o := range s.objects {
		if strings.HasPrefix(key, resource+"/") && sel.matches(o) {
			out = append(out, o)
		}
	}
	return out
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request, resource string) {
	lists := map[string]runtime.Object{"services": &v1.ServiceList{}, "nodes": &v1.NodeList{},
		"endpointslices": &discovery.EndpointSliceList{}, "servicecidrs": &networking.ServiceCIDRList{}}
	list := lists[resource]
	if list == nil {
		s.status(w, r, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, ""))
		return
	}
	s.mu.Lock()
	objects, version := s.selected(resource, s.selector(r)), s.version
	s.mu.Unlock()
	if err := meta.SetList(list, objects); err != nil {
		s.t.Errorf("make list: %v", err)
	}
	m, _ := meta.ListAccessor(list)
	m.SetResourceVersion(strconv.Itoa(version))
	info := s.encoding(r)
	w.Header().Set("Content-Type", info.MediaType)
	if err := s.codecs.EncoderForVersion(info.Serializer, groupVersion(resource)).Encode(list, w); err != nil {
		s.t.Logf("encode list: %v", err)
	}
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true"
	s.mu.Lock()
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	tooOld, streams, cut := !initial && from < s.oldest, s.streams, s.cut
	s.mu.Unlock()
	switch {
	case initial && !streams:
		s.status(w, r, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
		return
	case tooOld:
		s.status(w, r, apierrors.NewResourceExpired("too old resource version"))
		return
	}
	info, sel := s.encoding(r), s.selector(r)
	mediaType := info.MediaType
	if mediaType != ContentJSON {
		mediaType += ";stream=watch"
	}
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	frames := info.StreamSerializer.Framer.NewFrameWriter(w)
	gv := groupVersion(resource)
	encoder := restwatch.NewEncoder(
		streaming.NewEncoder(frames, s.codecs.EncoderForVersion(info.StreamSerializer.Serializer, schema.GroupVersion{Version: "v1"})),
		s.codecs.EncoderForVersion(info.Serializer, gv))
	send := func(t watch.EventType, o runtime.Object) {
		if err := encoder.Encode(&watch.Event{Type: t, Object: o}); err == nil {
			w.(http.Flusher).Flush()
		}
	}
	if initial {
		from = s.sendInitial(resource, sel, send)
	}
	for {
		s.mu.Lock()
		changed := s.changed
		changes := s.log
		s.mu.Unlock()
		for _, c := range changes {
			if c.version > from && c.resource == resource {
				sendChange(c, sel, send)
			}
			from = max(from, c.version)
		}
		select {
		case <-changed:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// sendInitial streams what exists, and the bookmark that ends it.
func (s *apiServer) sendInitial(resource string, sel selector, send func(watch.EventType, runtime.Object)) int {
	s.mu.Lock()
	objects, version := s.selected(resource, sel), s.version
	s.mu.Unlock()
	for _, o := range objects {
		send(watch.Added, o)
	}
	bookmarks := map[string]runtime.Object{"services": &v1.Service{}, "nodes": &v1.Node{},
		"endpointslices": &discovery.EndpointSlice{}, "servicecidrs": &networking.ServiceCIDR{}}
	bookmark := bookmarks[resource]
	m, _ := meta.Accessor(bookmark)
	m.SetResourceVersion(strconv.Itoa(version))
	m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	send(watch.Bookmark, bookmark)
	return version
}

// sendChange sends a change as a client with a selector sees it: an object that stops matching is deleted for it.
func sendChange(c logged, sel selector, send func(watch.EventType, runtime.Object)) {
	was, is := sel.matches(c.before), sel.matches(c.after)
	switch {
	case is && was:
		send(watch.Modified, c.after)
	case is:
		send(watch.Added, c.after)
	case was:
		o := c.before.DeepCopyObject()
		m, _ := meta.Accessor(o)
		m.SetResourceVersion(strconv.Itoa(c.version))
		send(watch.Deleted, o)
	}
}

// quick retries at once.
var quick = Timing{NodeGrace: time.Hour, Repeat: time.Hour, RetryFirst: time.Millisecond, RetryMost: 5 * time.Millisecond}
