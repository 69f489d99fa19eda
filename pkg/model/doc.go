// SPDX-License-Identifier: Apache-2.0

// Package model decides what a node should translate. It holds the objects that the source delivers (Services,
// EndpointSlices, the node itself) and derives from them, service by service, the desired frontends and backends:
// kube-proxy's rules about which endpoints are used, by whom, and what happens when there are none.
//
// The package is pure: no I/O, no clock, no kernel, no logging, the standard library alone. One goroutine owns a
// Cluster. What is wrong with an object is returned as a Problem and never stops the others.
package model
