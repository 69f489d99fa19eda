// SPDX-License-Identifier: Apache-2.0

// Package writer executes plans on the maps. It alone writes the elements that package plan decides on: in batches
// of operations of one kind, each reported to the mirror when it has been done. A service port whose operation fails
// is left as it is and its later operations are skipped, so that no frontend ever leads to backends that are not
// there; all others go on. What a plan has retired is given up after a grace period, in which the last program that
// found it has ended.
//
// One goroutine owns a Writer. Time comes from an injected clock: the owner asks Due when to call Collect.
package writer
