// SPDX-License-Identifier: Apache-2.0

// Package plan turns what is programmed and what is desired into the operations that lead from one to the other, in
// an order in which a client never sees a half-written service.
//
// A State is the mirror of the maps. State.Plan compares it with changed Services and returns operations; whoever
// executes them reports each success with State.Applied, the only function that changes the mirror. So a failed
// write, or the end of the process between two writes, leaves the mirror true, and planning again is the way out of
// both. The order within one pass, over all Services in it:
//
//	name, new backends, new runs in fresh cells, new source ranges, addresses   nobody reads these yet
//	frontends                                                                   each one is a switch
//	frontends that go, addresses that go
//	backends that leave their sets, runs and ports that retire                  no new reader finds these
//	... a grace period later, when no old reader is left (State.Collect) ...
//	backends, source ranges, cells, counters and the name are given up
//
// Invariants, after each single operation: a frontend's service port has a name; its runs hold backends of that
// service port that exist and are in the set that the frontend says; cells of a run that is in use, or was less than
// a grace period ago, are not written; a backend id is never given twice, a service id not within the grace period.
//
// The package is pure: no I/O, no clock, the standard library and package model alone. One goroutine owns a State.
package plan
