// SPDX-License-Identifier: Apache-2.0

// Package agent is `shunt agent`: it puts the parts together (the programs in the kernel, the source, the reconcile loop,
// the health and metrics servers) and takes them down again. What it has programmed stays in the kernel when it ends.
package agent
