// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	urlpath "path"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shunt-lb/shunt/test/lab"
)

const apiPort = 8001

// api is an API server whose objects never change: lists, and watches in which nothing happens. It costs nothing while
// something is measured, which the real one would.
type api struct {
	at    netip.AddrPort
	lists map[string][]byte
}

// startAPI serves the objects on a host of the lab, until the context ends.
func startAPI(ctx context.Context, host *lab.Client, o objects) (*api, error) {
	a := &api{at: netip.AddrPortFrom(host.Address4, apiPort), lists: map[string][]byte{}}
	list := metav1.ListMeta{ResourceVersion: "1"}
	for _, of := range []struct {
		resource, version, kind string
		list                    any
	}{
		{"services", "v1", "ServiceList", &corev1.ServiceList{ListMeta: list, Items: o.services}},
		{"nodes", "v1", "NodeList", &corev1.NodeList{ListMeta: list, Items: o.nodes}},
		{"endpointslices", "discovery.k8s.io/v1", "EndpointSliceList",
			&discoveryv1.EndpointSliceList{ListMeta: list, Items: o.slices}},
		{"servicecidrs", "networking.k8s.io/v1", "ServiceCIDRList",
			&networkingv1.ServiceCIDRList{ListMeta: list, Items: o.ranges}},
	} {
		if err := a.encode(of.resource, of.version, of.kind, of.list); err != nil {
			return nil, err
		}
	}
	var listener net.Listener
	err := host.Do(func() error {
		var err error
		listener, err = net.Listen("tcp", a.at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve the API: %w", err)
	}
	server := &http.Server{Handler: a, BaseContext: func(net.Listener) context.Context { return ctx }}
	context.AfterFunc(ctx, func() { server.Close() })
	go func() { _ = server.Serve(listener) }() // ends with the context
	return a, nil
}

// encode adds what the type alone does not say.
func (a *api) encode(resource, version, kind string, list any) error {
	content, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode %s: %w", resource, err)
	}
	head := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,`, version, kind)
	a.lists[resource] = append([]byte(head), content[1:]...)
	return nil
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	content, known := a.lists[urlpath.Base(r.URL.Path)]
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case r.Method != http.MethodGet || !known:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case query.Get("sendInitialEvents") != "": // the client lists instead
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case query.Get("watch") != "":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		_, _ = w.Write(content) // a client that has gone
	}
}

func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: reason, Code: code, Message: string(reason),
	})
}

// kubeconfig writes what a client needs.
func (a *api) kubeconfig(file string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["lab"] = &clientcmdapi.Cluster{Server: "http://" + a.at.String()}
	config.AuthInfos["nobody"] = &clientcmdapi.AuthInfo{}
	config.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "nobody"}
	config.CurrentContext = "lab"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// testedNodeObject is the Node that the proxies are on.
func testedNodeObject(node *lab.Node) corev1.Node {
	object := corev1.Node{ObjectMeta: meta(testedNode)}
	object.Labels = map[string]string{corev1.LabelHostname: testedNode}
	object.CreationTimestamp = metav1.NewTime(time.Unix(0, 0).UTC())
	object.Spec.PodCIDR = node.Pods4.String()
	object.Spec.PodCIDRs = []string{node.Pods4.String(), node.Pods6.String()}
	object.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: node.Address4.String()},
		{Type: corev1.NodeInternalIP, Address: node.Address6.String()},
	}
	return object
}
