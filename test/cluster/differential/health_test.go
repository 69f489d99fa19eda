// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shunt-lb/shunt/test/cluster/world"
)

// healthCases are section 7.1: what a load balancer sees at the health-check node port.
var healthCases = []testCase{{
	name: "the health-check node port says how many pods the node has", section: "7.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", ingress("192.0.2.77", vip), externalLocal)
			e.pods("web", "local-1", "local-2", "remote-1")
		},
		checks: []check{healthOf("web", `200 weight 2 {"localEndpoints":2,"service":{"name":"web","namespace":"NAMESPACE"},"serviceProxyHealthy":true}`)},
	}, {
		name:   "one terminates",
		change: func(e *env) { e.terminate("web", "local-1") },
		checks: []check{healthOf("web", `200 weight 1 {"localEndpoints":1,"service":{"name":"web","namespace":"NAMESPACE"},"serviceProxyHealthy":true}`)},
	}, {
		name:   "both do",
		change: func(e *env) { e.terminate("web", "local-2") },
		checks: []check{healthOf("web", `503 weight 0 {"localEndpoints":0,"service":{"name":"web","namespace":"NAMESPACE"},"serviceProxyHealthy":true}`)},
	}, {
		name: "the policy changes",
		change: func(e *env) {
			e.remember("health", healthPort("web"))
			e.update("web", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster })
		},
		checks: []check{tcp("outside", remembered("health"), "refused")},
	}},
}, {
	name: "pods with several ports count once at the health-check node port", section: "7.1",
	steps: []step{{
		change: func(e *env) {
			e.service("web", handwritten, ingress("192.0.2.78", vip), externalLocal)
			e.slice("web", endpoint("local-1"))
			e.sliceWith("web", slicePort("", corev1.ProtocolTCP, as[int32](world.OtherPort)), endpoint("local-1"),
				endpoint("local-2", func(e *discoveryv1.Endpoint) { e.NodeName = as(world.Remote) }))
		},
		checks: []check{healthOf("web", `200 weight 1 {"localEndpoints":1,"service":{"name":"web","namespace":"NAMESPACE"},"serviceProxyHealthy":true}`)},
	}},
}}

func healthPort(service string) target {
	return func(e *env) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(node4), uint16(e.services[service].Spec.HealthCheckNodePort))
	}
}

// healthOf asks the health-check node port of a Service.
func healthOf(service, want string) check {
	return check{what: "health-check node port", kubeProxy: want,
		observe: func(e *env, w *world.World, _ string) string {
			response, body, err := get(w, "http://"+healthPort(service)(e).String()+"/anything")
			if err != nil {
				return err.Error()
			}
			return fmt.Sprintf("%d weight %s %s", response.StatusCode,
				response.Header.Get("X-Load-Balancing-Endpoint-Weight"), canonical(body, e.namespace))
		}}
}

// serverOf asks one of the proxy's own servers: the status and the keys of the answer.
func serverOf(path, want string) check {
	return check{what: path, kubeProxy: want,
		observe: func(e *env, w *world.World, _ string) string {
			response, body, err := get(w, "http://127.0.0.1"+path)
			if err != nil {
				return err.Error()
			}
			var object map[string]any
			if json.Unmarshal(body, &object) != nil {
				return strconv.Itoa(response.StatusCode)
			}
			return fmt.Sprint(response.StatusCode, " ", slices.Sorted(maps.Keys(object)), " nodeEligible ", object["nodeEligible"])
		}}
}

// get asks from inside the tested node's namespace.
func get(w *world.World, url string) (*http.Response, []byte, error) {
	client := http.Client{Timeout: 4 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (connection net.Conn, err error) {
			err = w.Node.Do(func() error {
				connection, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return connection, err
		},
	}}
	response, err := client.Get(url)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, body, err
}

const (
	healthy  = "200 [currentTime healthy lastUpdated nodeEligible status] nodeEligible true"
	goingOff = "503 [currentTime healthy lastUpdated nodeEligible status] nodeEligible false"
	alive    = "200 [currentTime healthy lastUpdated status] nodeEligible <nil>"
)

// eligibilityCase is section 7.2: the proxy's health, and whether a load balancer should still choose the node.
var eligibilityCase = testCase{steps: []step{{
	change: func(*env) {},
	checks: []check{
		serverOf(":10256/healthz", healthy), serverOf(":10256/livez", alive),
		serverOf(":10249/healthz", "200"), serverOf(":10249/proxyMode", "200"), serverOf(":10249/metrics", "200"),
	},
}, {
	name: "the autoscaler is about to delete the node",
	change: func(e *env) {
		e.updateNode(func(node *corev1.Node) {
			node.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		})
	},
	checks: []check{serverOf(":10256/healthz", goingOff), serverOf(":10256/livez", alive)},
}, {
	name:   "it has changed its mind",
	change: func(e *env) { e.updateNode(func(node *corev1.Node) { node.Spec.Taints = nil }) },
	checks: []check{serverOf(":10256/healthz", healthy)},
}}}

func (e *env) updateNode(change func(*corev1.Node)) {
	e.t.Helper()
	node, err := e.API.CoreV1().Nodes().Get(e.t.Context(), world.Tested, metav1.GetOptions{})
	e.must(err)
	change(node)
	_, err = e.API.CoreV1().Nodes().Update(e.t.Context(), node, metav1.UpdateOptions{})
	e.must(err)
}

// canonical is a JSON object without blanks, its keys sorted, and the case's namespace by a name that is always the
// same.
func canonical(body []byte, namespace string) string {
	var object map[string]any
	if err := json.Unmarshal(body, &object); err != nil {
		return string(body)
	}
	text, err := json.Marshal(object)
	if err != nil {
		return string(body)
	}
	return strings.Replace(string(text), `"`+namespace+`"`, `"NAMESPACE"`, 1)
}
