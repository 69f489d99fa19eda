// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/shunt-lb/shunt/pkg/source"
)

// resource is one kind of objects that is watched.
type resource struct {
	// name and group are the API's words, as RBAC rules have them.
	name, group string
	client      *rest.RESTClient
	// labels and fields select on the server.
	labels, fields string
	// example and list are of the types that the API returns.
	example runtime.Object
	list    func() runtime.Object
	// convert returns the event for an object.
	convert func(runtime.Object) (source.Event, error)
}

// resources returns what is watched, selected as kube-proxy selects it: by labels that count by their presence.
func resources(c *Client, node string) (services, slices, nodes, cidrs resource) {
	services = resource{
		name: "services", client: c.core, example: &v1.Service{}, convert: convertService,
		list:   func() runtime.Object { return &v1.ServiceList{} },
		labels: "!" + source.LabelProxyName,
		fields: "spec.clusterIP!=" + v1.ClusterIPNone,
	}
	slices = resource{
		name: "endpointslices", group: discovery.GroupName, client: c.discovery, example: &discovery.EndpointSlice{},
		list:    func() runtime.Object { return &discovery.EndpointSliceList{} },
		convert: convertSlice,
		labels:  "!" + source.LabelHeadless,
	}
	nodes = resource{
		name: "nodes", client: c.core, example: &v1.Node{}, convert: convertNode,
		list:   func() runtime.Object { return &v1.NodeList{} },
		fields: fields.OneTermEqualSelector(metav1.ObjectNameField, node).String(),
	}
	cidrs = resource{
		name: "servicecidrs", group: networking.GroupName, client: c.networking, example: &networking.ServiceCIDR{},
		list:    func() runtime.Object { return &networking.ServiceCIDRList{} },
		convert: convertCIDR,
	}
	return services, slices, nodes, cidrs
}

func convertService(o runtime.Object) (source.Event, error) {
	in, ok := o.(*v1.Service)
	if !ok {
		return nil, fmt.Errorf("convert a Service: it is a %T", o)
	}
	out, problems := source.Service(in)
	if out == nil {
		return source.DeleteService{Name: source.ServiceName(in), Problems: problems}, nil
	}
	return source.SetService{Service: out, UID: string(in.UID), Problems: problems}, nil
}

func convertSlice(o runtime.Object) (source.Event, error) {
	in, ok := o.(*discovery.EndpointSlice)
	if !ok {
		return nil, fmt.Errorf("convert an EndpointSlice: it is a %T", o)
	}
	out, problems := source.Slice(in)
	if out == nil {
		return source.DeleteSlice{Name: source.SliceName(in), Problems: problems}, nil
	}
	return source.SetSlice{Slice: out, UID: string(in.UID), Triggered: source.Triggered(in), Problems: problems}, nil
}

func convertNode(o runtime.Object) (source.Event, error) {
	in, ok := o.(*v1.Node)
	if !ok {
		return nil, fmt.Errorf("convert a Node: it is a %T", o)
	}
	out, problems := source.NodeOf(in)
	return source.SetNode{Node: out, Problems: problems}, nil
}

// convertCIDR returns one ServiceCIDR's part of what is sent for all of them.
func convertCIDR(o runtime.Object) (source.Event, error) {
	in, ok := o.(*networking.ServiceCIDR)
	if !ok {
		return nil, fmt.Errorf("convert a ServiceCIDR: it is a %T", o)
	}
	out, problems := source.ServiceCIDRs(in)
	return cidrPart{name: in.Name, SetServiceCIDRs: source.SetServiceCIDRs{CIDRs: out, Problems: problems}}, nil
}

// item is an object between the API and the channel: its name, and the event it became. A streamed list is kept as items
// until it is complete, so they are small.
type item struct {
	name
	version string
	event   source.Event
}

// GetObjectKind implements runtime.Object.
func (i *item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// GetObjectMeta implements metav1.ObjectMetaAccessor.
func (i *item) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: i.namespace, Name: i.name.name, ResourceVersion: i.version}
}

// DeepCopyObject implements runtime.Object. Items are not changed.
func (i *item) DeepCopyObject() runtime.Object { return i }

// transform converts an object and lets go of everything else about it.
func (r *resource) transform(in any) (any, error) {
	if done, ok := in.(*item); ok {
		return done, nil
	}
	object, ok := in.(runtime.Object)
	if !ok {
		return nil, fmt.Errorf("convert %s: %T is not an object", r.name, in)
	}
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", r.name, err)
	}
	event, err := r.convert(object)
	if err != nil {
		return nil, err
	}
	return &item{name: nameOf(event, m), version: m.GetResourceVersion(), event: event}, nil
}

// items is a list of converted objects.
type items struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*item
}

// DeepCopyObject implements runtime.Object. Lists are not changed.
func (l *items) DeepCopyObject() runtime.Object { return l }

// observer is told how each request went.
type observer interface {
	succeeded(ctx context.Context)
	failed(ctx context.Context, verb string, err error)
}

// client-go answers a watch whose connection ends before the answer with one that is closed already.
var (
	emptyWatch  = reflect.TypeOf(watch.NewEmptyWatch())
	errNoAnswer = errors.New("the connection was closed before an answer came")
)

// listWatch returns the resource for a reflector.
func (r *resource) listWatch(parameters runtime.ParameterCodec, o observer) *cache.ListWatch {
	request := func(options metav1.ListOptions) *rest.Request {
		options.LabelSelector, options.FieldSelector = r.labels, r.fields
		// The reflector repeats what fails, with a pause that grows; a second repetition below it hides outages.
		return r.client.Get().Resource(r.name).VersionedParams(&options, parameters).MaxRetries(0)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := r.list()
			err := request(options).Do(ctx).Into(list)
			if err == nil {
				o.succeeded(ctx)
				return r.convertList(list)
			}
			if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				o.failed(ctx, "list", err)
			}
			return nil, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			streamed := options.SendInitialEvents != nil && *options.SendInitialEvents
			options.Watch = true
			w, err := request(options).Watch(ctx)
			switch {
			case err == nil && reflect.TypeOf(w) == emptyWatch:
				o.failed(ctx, "watch", errNoAnswer)
			case err == nil:
				o.succeeded(ctx)
			case apierrors.IsResourceExpired(err), apierrors.IsGone(err), streamed && apierrors.IsInvalid(err):
				// The reflector lists anew, without streaming where the server cannot do it.
			default:
				o.failed(ctx, "watch", err)
			}
			return w, err
		},
	}
}

// convertList converts each object of a list, so that the whole is dropped before anything is sent.
func (r *resource) convertList(list runtime.Object) (runtime.Object, error) {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("read the list of %s: %w", r.name, err)
	}
	out := &items{ListMeta: metav1.ListMeta{ResourceVersion: m.GetResourceVersion(), Continue: m.GetContinue(),
		RemainingItemCount: m.GetRemainingItemCount()}, Items: make([]*item, 0, meta.LenList(list))}
	err = meta.EachListItem(list, func(o runtime.Object) error {
		converted, err := r.transform(o)
		if err != nil {
			return err
		}
		out.Items = append(out.Items, converted.(*item))
		return nil
	})
	return out, err
}
