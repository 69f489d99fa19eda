// SPDX-License-Identifier: Apache-2.0

// Package events tells users what they must know about their objects, as Kubernetes Events and in the log.
//
// It is level-triggered: the reconcile loop says which problems an object has now, and an Event is made for each that
// is new, again as long as it lasts (Events expire), and never twice for the same: the name of an Event is derived
// from what it says, so that a hundred nodes which see the same conflict make one Event of it. A rate limit bounds
// what a broken cluster can cost the API server.
package events
