// SPDX-License-Identifier: Apache-2.0

package agentlab

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/shunt-lb/shunt/test/lab"
)

// Service is the manifest of a Service; spec is YAML in flow style.
func Service(name, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default}\nspec: %s", name, spec)
}

// Endpoint is an entry of a slice; conditions and hints are YAML in flow style, empty for none.
type Endpoint struct {
	Address    netip.Addr
	Node       string
	Conditions string
	Hints      string
}

// Ready are the ready endpoints of pods, by their IPv4 addresses.
func Ready(pods ...*lab.Process) []Endpoint { return Having("{ready: true}", pods...) }

// Ready6 are the same by their IPv6 addresses.
func Ready6(pods ...*lab.Process) []Endpoint {
	endpoints := Ready(pods...)
	for i, pod := range pods {
		endpoints[i].Address = pod.Address6
	}
	return endpoints
}

// Having are the endpoints of pods in a condition.
func Having(conditions string, pods ...*lab.Process) []Endpoint {
	var endpoints []Endpoint
	for _, pod := range pods {
		endpoints = append(endpoints, Endpoint{Address: pod.Address4, Conditions: conditions})
	}
	return endpoints
}

func (e Endpoint) yaml() string {
	fields := []string{fmt.Sprintf("addresses: ['%s']", e.Address)}
	for _, field := range []struct{ name, value string }{
		{"conditions", e.Conditions}, {"nodeName", e.Node}, {"hints", e.Hints},
	} {
		if field.value != "" {
			fields = append(fields, field.name+": "+field.value)
		}
	}
	return "- {" + strings.Join(fields, ", ") + "}\n"
}

// Slice is the manifest of an EndpointSlice; ports is YAML in flow style.
func Slice(service, name, ports string, endpoints ...Endpoint) string {
	family := "IPv4"
	if len(endpoints) > 0 && endpoints[0].Address.Is6() {
		family = "IPv6"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s\n"+
		"  namespace: default\n  labels: {kubernetes.io/service-name: %s}\naddressType: %s\nports: %s\nendpoints:",
		name, service, family, ports)
	if len(endpoints) == 0 {
		text.WriteString(" []")
	}
	text.WriteString("\n")
	for _, e := range endpoints {
		text.WriteString(e.yaml())
	}
	return text.String()
}

// Simple is a Service with one TCP port and its slice.
func Simple(name, clusterIP string, endpoints ...Endpoint) []string {
	return []string{
		Service(name, fmt.Sprintf("{clusterIP: %s, ports: [{port: 80, protocol: TCP}]}", clusterIP)),
		Slice(name, name+"-a", "[{name: '', port: 8080, protocol: TCP}]", endpoints...),
	}
}
