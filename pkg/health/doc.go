// SPDX-License-Identifier: Apache-2.0

// Package health serves what load balancers, probes and scrapers ask the node: the health ports of Services, the
// agent's own /healthz, /livez and /readyz, and the HTTP servers that they and the metrics live in.
//
// The reconcile loop tells it what happened (Proxy.Queued, Proxy.Updated, Services.Set); it decides nothing about
// Services itself. All types are safe for concurrent use.
package health
