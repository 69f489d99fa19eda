// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// Client speaks to the few APIs that shunt uses. client-go's clientset knows all of them, at the price of megabytes of
// memory on every node for registering types that are never seen.
type Client struct {
	core, discovery, networking, events *rest.RESTClient

	servers []*url.URL
	// parameters encodes the options of requests.
	parameters runtime.ParameterCodec
}

// NewClient returns a client. It does not connect.
func NewClient(c Config) (*Client, error) {
	config, servers, err := c.rest()
	if err != nil {
		return nil, err
	}
	current := new(atomic.Uint32)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &failover{next: next, servers: servers, current: current}
	})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1.AddToScheme, discovery.AddToScheme, networking.AddToScheme, events.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make an API client: %w", err)
	}
	out := &Client{servers: servers, parameters: runtime.NewParameterCodec(scheme)}
	for _, group := range []struct {
		client  **rest.RESTClient
		version schema.GroupVersion
	}{
		{&out.core, v1.SchemeGroupVersion},
		{&out.discovery, discovery.SchemeGroupVersion},
		{&out.networking, networking.SchemeGroupVersion},
		{&out.events, events.SchemeGroupVersion},
	} {
		config := rest.CopyConfig(config)
		config.GroupVersion = &group.version
		config.APIPath = "/apis"
		if group.version.Group == "" {
			config.APIPath = "/api"
		}
		if *group.client, err = rest.RESTClientForConfigAndClient(config, transport); err != nil {
			return nil, fmt.Errorf("make an API client for %s: %w", group.version, err)
		}
	}
	return out, nil
}

// Servers returns the API servers that are tried, in this order.
func (c *Client) Servers() []string {
	var out []string
	for _, s := range c.servers {
		out = append(out, s.String())
	}
	return out
}

// addresses returns those of the API servers that are given by address rather than by name.
func (c *Client) addresses() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range c.servers {
		a, err := netip.ParseAddr(s.Hostname())
		if err != nil {
			continue
		}
		port, err := strconv.ParseUint(s.Port(), 10, 16)
		if err != nil {
			port = 443
		}
		out = append(out, netip.AddrPortFrom(a.Unmap(), uint16(port)))
	}
	return out
}

// Create creates a Kubernetes Event.
func (c *Client) Create(ctx context.Context, event *events.Event) error {
	return c.events.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
}
