// SPDX-License-Identifier: Apache-2.0

// Package kube is the source for a node of a cluster: it watches an API server for Services, EndpointSlices, this
// node's Node and the ServiceCIDRs, selected on the server as kube-proxy selects them.
//
// # What is kept
//
// There is no cache. client-go's reflector lists and watches; every object is converted when it arrives and sent to
// the consumer, which keeps the model's form of it. What stays here is the set of names, so that a list, after any
// time without a connection, tells by difference what has gone. Lists are streamed (WatchList) where the server can,
// else converted page by page as they come.
//
// # Outages
//
// An error deletes nothing: the last state stays in force for as long as no API server answers. What fails is reported
// as a Problem of its watch, again from time to time while it lasts, and taken back when it works.
//
// # Several API servers
//
// A node without kube-proxy cannot reach the API server by the ClusterIP of the Service "kubernetes" before shunt
// runs. So the servers' own addresses are given (--apiserver), or the kubeconfig names one; requests go to the first
// that answers and move on to the next when it stops to.
//
// # Threading
//
// Run has a goroutine per watched resource. Each sends through the one channel; events about one object come from one
// of them, in order.
package kube
