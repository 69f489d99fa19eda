// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

// spread is what several rounds found.
type spread struct{ median, least, most float64 }

func newSpread(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	median := sorted[half]
	if len(sorted)%2 == 0 {
		median = (sorted[half-1] + sorted[half]) / 2
	}
	return spread{median, sorted[0], sorted[len(sorted)-1]}
}
