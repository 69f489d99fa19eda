// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shunt-lb/shunt/pkg/model"
)

func TestWhatTheAgentDoesIsCountedUnderTheNamesOfKubeProxy(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(*node)
		want []string
	}{
		{"a full sync", func(n *node) {
			n.SyncDone(Sync{Family: model.IPv4, Duration: 3 * time.Millisecond, Full: true})
		}, []string{
			`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="0.002"} 0`,
			`kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="0.004"} 1`,
			`kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 0.003`,
			`kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
			`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1000`,
		}},
		{"a partial sync", func(n *node) { n.SyncDone(Sync{Family: model.IPv6, Duration: time.Second}) }, []string{
			`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1`,
			`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"} 1`,
			`kubeproxy_sync_partial_proxy_rules_duration_seconds_bucket{ip_family="IPv6",le="16.384"} 1`,
		}},
		{"a failed sync", func(n *node) { n.SyncDone(Sync{Family: model.IPv4, Failed: true}) }, []string{
			`shunt_sync_failures_total{family="IPv4"} 1`,
			`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`,
		}},
		{"a queued sync", func(n *node) { n.Queued(model.IPv4) }, []string{
			`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1000`,
		}},
		{"a programmed change", func(n *node) { n.ProgrammingLatency(model.IPv4, 61*time.Second) }, []string{
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="0.25"} 0`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="60"} 0`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="65"} 1`,
			`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="300"} 1`,
		}},
		{"changes", func(n *node) { n.EndpointChange(); n.EndpointChange(); n.ServiceChange(); n.Pending(4, 5) }, []string{
			`kubeproxy_sync_proxy_rules_endpoint_changes_total 2`,
			`kubeproxy_sync_proxy_rules_service_changes_total 1`,
			`kubeproxy_sync_proxy_rules_service_changes_pending 4`,
			`kubeproxy_sync_proxy_rules_endpoint_changes_pending 5`,
		}},
		{"empty local sets", func(n *node) {
			n.NoLocalEndpoints(PolicyInternal, model.IPv4, 2)
			n.NoLocalEndpoints(PolicyExternal, model.IPv6, 3)
		}, []string{
			`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 2`,
			`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv6",traffic_policy="external"} 3`,
		}},
		{"answers", func(n *node) {
			n.Answered("/healthz", 200)
			n.Answered("/healthz", 503)
			n.Answered("/livez", 200)
			n.Answered("/readyz", 200)
		}, []string{
			`kubeproxy_proxy_healthz_total{code="200"} 1`,
			`kubeproxy_proxy_healthz_total{code="503"} 1`,
			`kubeproxy_proxy_livez_total{code="200"} 1`,
		}},
		{"the build", func(*node) {}, []string{`shunt_build_info{commit="abc",version="v1"} 1`}},
	} {
		n := newNode(t)
		row.do(n)
		got := n.scrape("")
		for _, line := range row.want {
			if !slices.Contains(got, line) {
				t.Errorf("%s: no line %s", row.name, line)
			}
		}
	}
}

func TestAFailedSyncIsNoProgress(t *testing.T) {
	n := newNode(t)
	n.SyncDone(Sync{Family: model.IPv4, Failed: true})
	n.want("failed", "kubeproxy_sync_proxy_rules_last_timestamp_seconds")
}

func TestTheBucketsOfTheProgrammingLatencyAreThoseOfKubeProxy(t *testing.T) {
	got := programmingBuckets()
	// 0.25, 0.5; 1..59 by 1; 60..115 by 5; 120..300 by 30.
	if len(got) != 2+59+12+7 || got[2] != 1 || got[60] != 59 || got[61] != 60 || got[72] != 115 || got[73] != 120 ||
		got[79] != 300 {
		t.Errorf("buckets %v", got)
	}
}

// names returns the names of all metrics that can be exported, whether they have a series yet or not.
func names(t *testing.T, m *Metrics) []string {
	descriptions := make(chan *prometheus.Desc, 1000)
	m.registry.Describe(descriptions)
	close(descriptions)
	var names []string
	for d := range descriptions {
		match := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())
		if match == nil {
			t.Fatalf("no name in %s", d)
		}
		names = append(names, match[1])
	}
	f := mapFamilies
	p := packetMetrics
	for _, family := range []mapFamily{f.connections, f.refused, f.noBackend, f.drops, f.elements, f.capacity, p.flows,
		p.packets, p.bytes, p.rejected, p.dropped} {
		names = append(names, family.name)
	}
	return names
}

func TestTheDocumentationHasEveryMetricAndNoOther(t *testing.T) {
	data, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z_]+)`").FindAllStringSubmatch(string(data), -1) {
		documented = append(documented, match[1])
	}
	var exported []string
	for _, name := range names(t, newNode(t).Metrics) {
		// Those of the Go runtime and of the process are the client library's, documented there.
		if strings.HasPrefix(name, "shunt_") || strings.HasPrefix(name, "kubeproxy_") {
			exported = append(exported, name)
		}
	}
	for _, name := range exported {
		if !slices.Contains(documented, name) {
			t.Errorf("docs/metrics.md lacks %s", name)
		}
	}
	for _, name := range documented {
		if !slices.Contains(exported, name) {
			t.Errorf("docs/metrics.md has %s, which is not exported", name)
		}
	}
}
