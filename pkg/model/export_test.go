// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// Left tells what a Cluster still holds after all its objects have been deleted; empty: nothing.
func Left(c *Cluster) string {
	if len(c.services)+len(c.slices)+len(c.claims)+len(c.clusterIPs) == 0 {
		return ""
	}
	return fmt.Sprintf("%d services, %d slices, %d claims, %d cluster IPs", len(c.services), len(c.slices), len(c.claims),
		len(c.clusterIPs))
}
