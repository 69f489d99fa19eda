// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
)

const (
	healthz = 10256
	metrics = 10249
)

func TestTheAgentServesWhatKubeProxyServes(t *testing.T) {
	w := agentlab.New(t)
	w.Write("web", agentlab.Simple("web", "10.96.7.1", agentlab.Ready(agentlab.Serve(w.Node, "a"))...)...)
	w.Write("node", nodeManifest(w.Node.Name, "", "", w.Node.Address4, w.Node.Address6))
	w.StartAgent()
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, row := range []struct {
		port             uint16
		path, kind, body string
	}{
		{healthz, "/healthz", "application/json", `"nodeEligible":true`},
		{healthz, "/livez", "application/json", `"lastUpdated":`},
		{healthz, "/readyz", "application/json", `"ready":true`},
		{metrics, "/healthz", "text/plain; charset=utf-8", "ok"},
		{metrics, "/proxyMode", "text/plain; charset=utf-8", "shunt"},
		{metrics, "/configz", "application/json", `"maxServices":512`},
		{metrics, "/metrics", "text/plain", "shunt_build_info"},
	} {
		got := get(w.Node.Namespace, netip.AddrPortFrom(loopback, row.port), row.path)
		if got.status != 200 || !strings.Contains(got.body, row.body) ||
			!strings.HasPrefix(got.header.Get("Content-Type"), row.kind) {
			t.Errorf("%d%s: %s", row.port, row.path, got)
		}
		if row.path != "/metrics" && got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%d%s: headers %v", row.port, row.path, got.header)
		}
	}
	if got := get(w.Node.Namespace, netip.AddrPortFrom(loopback, metrics), "/debug/pprof/"); got.status != 404 {
		t.Errorf("profiles without --profiling: %s", got)
	}
	// The health of the node is for others; what it does is for the node.
	if got := get(w.Neighbour.Namespace, netip.AddrPortFrom(w.Node.Address4, healthz), "/healthz"); got.status != 200 {
		t.Errorf("/healthz from another node: %s", got)
	}
	if got := get(w.Neighbour.Namespace, netip.AddrPortFrom(w.Node.Address4, metrics), "/metrics"); got.status != 0 {
		t.Errorf("/metrics from another node: %s", got)
	}
	var configuration map[string]map[string]any
	body := get(w.Node.Namespace, netip.AddrPortFrom(loopback, metrics), "/configz").body
	err := json.Unmarshal([]byte(body), &configuration)
	if err != nil || configuration["shunt.dev"]["nodeName"] != w.Node.Name {
		t.Errorf("/configz: %v, %s", err, body)
	}
}

// kubeProxyMetrics are the names that dashboards, alerts and the conformance suite know.
var kubeProxyMetrics = []string{
	"kubeproxy_network_programming_duration_seconds_bucket",
	"kubeproxy_proxy_healthz_total",
	"kubeproxy_proxy_livez_total",
	"kubeproxy_sync_full_proxy_rules_duration_seconds_count",
	"kubeproxy_sync_partial_proxy_rules_duration_seconds_count",
	"kubeproxy_sync_proxy_rules_duration_seconds_bucket",
	"kubeproxy_sync_proxy_rules_endpoint_changes_pending",
	"kubeproxy_sync_proxy_rules_endpoint_changes_total",
	"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
	"kubeproxy_sync_proxy_rules_last_timestamp_seconds",
	"kubeproxy_sync_proxy_rules_no_local_endpoints_total",
	"kubeproxy_sync_proxy_rules_service_changes_pending",
	"kubeproxy_sync_proxy_rules_service_changes_total",
}

func TestTheAgentsMetricsHaveKubeProxysNamesAndCountConnections(t *testing.T) {
	w := agentlab.New(t)
	server := agentlab.Serve(w.Node, "a")
	w.Write("web", agentlab.Simple("web", "10.96.7.1", agentlab.Ready(server)...)...)
	w.StartAgent()
	pod := agentlab.Serve(w.Node, "client")
	w.AwaitReached(pod, "tcp", agentlab.At("10.96.7.1:80"), "a")
	get(w.Node.Namespace, agentlab.At("127.0.0.1:10256"), "/healthz")
	get(w.Node.Namespace, agentlab.At("127.0.0.1:10256"), "/livez")
	// A change, and one that carries the time at which it began.
	triggered := strings.Replace(agentlab.Simple("web", "10.96.7.1")[1], "metadata:\n",
		"metadata:\n  annotations: {endpoints.kubernetes.io/last-change-trigger-time: '2999-01-01T00:00:00Z'}\n", 1)
	w.Write("web", agentlab.Simple("web", "10.96.7.1")[0], triggered)
	var missing []string
	w.Eventually("all metrics are there", func() (bool, string) {
		text := get(w.Node.Namespace, agentlab.At("127.0.0.1:10249"), "/metrics").body
		missing = slices.DeleteFunc(slices.Clone(kubeProxyMetrics), func(name string) bool {
			return strings.Contains(text, "\n"+name+"{") || strings.Contains(text, "\n"+name+" ")
		})
		counted := `shunt_service_connections_total{family="IPv4",namespace="default",port="",protocol="TCP",service="web"} `
		if !strings.Contains(text, counted) || strings.Contains(text, counted+"0\n") {
			missing = append(missing, counted)
		}
		return len(missing) == 0, strings.Join(missing, "\n")
	})
}
