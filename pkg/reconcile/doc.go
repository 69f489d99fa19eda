// SPDX-License-Identifier: Apache-2.0

// Package reconcile is the agent's loop: it takes events from the source and from the node's addresses, keeps the
// model, and writes what has changed.
//
// One goroutine, Run's, owns the model and the writer. A pass plans and writes only the Services that have changed
// since the last one; a Service whose write fails is tried again with growing pauses and stops no other. Nothing is
// written before the source has delivered everything once, so that a restart never takes away what still exists; then
// the first pass writes all and removes what is no more.
package reconcile
