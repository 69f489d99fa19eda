// SPDX-License-Identifier: Apache-2.0

// Package source turns Kubernetes objects into the model's objects, and defines how a stream of them reaches the
// consumer. It knows the Kubernetes API types and nothing of BPF; the model knows nothing of either.
//
// Two sources deliver the same events: package manifests reads a directory, and says in one Batch what it has found at
// one reading; package kube watches an API server. Both are run with
//
//	err := src.Run(ctx, events)
//
// # Threading
//
// A source may use several goroutines, but all that it has to say goes through the one channel, and the events about
// one object arrive in the order in which the object changed. The consumer (package reconcile) is one goroutine: it
// receives, and it alone owns the model. A send blocks while the consumer is busy and ends with ctx; no event is ever
// dropped. After Run has returned nothing more is sent. The channel is the consumer's; a source never closes it.
//
// What an event points to is never changed after it was sent: the consumer keeps a *model.Service and the source may
// keep the same pointer, so that an object is in memory once.
//
// # Invariants
//
//   - Set may repeat an object that has not changed (a relist does); Delete may name an object that never was. The
//     consumer compares, it does not count.
//   - An object that is not ours to translate (headless, ExternalName, another proxy's) never arrives in a Set; when it
//     becomes so, it arrives as a Delete.
//   - Nothing is deleted because a source lost sight of the objects: an unreachable API server or a directory that has
//     disappeared leaves the last state in force.
//   - Synced is sent once, when the first complete picture has been delivered. Before it nothing that is programmed
//     may be removed.
//   - What is wrong with an object is a Problem beside the event. It replaces the problems that the object's earlier
//     event reported and affects nothing but the field it names.
package source
