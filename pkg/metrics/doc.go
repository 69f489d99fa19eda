// SPDX-License-Identifier: Apache-2.0

// Package metrics exports what shunt counts. Two kinds: what the programs count, read from the pinned maps at each
// scrape and so independent of the agent's life, and what the agent itself does, told by the reconcile loop. Those of
// kube-proxy's metrics that do not depend on its backend keep their names, so that dashboards and alerts keep working.
//
// docs/metrics.md has every metric; a test compares.
package metrics
