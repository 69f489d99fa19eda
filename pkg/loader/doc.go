// SPDX-License-Identifier: Apache-2.0

// Package loader brings the compiled programs into the kernel, over maps that stay pinned while no agent runs. It owns
// the pin directory <bpffs>/shunt: it creates the maps, finds them again, refuses those of another layout, and keeps a
// second agent out. It never reads or writes what the maps hold, except to carry it over into a map of another size,
// and it attaches nothing: that is package attach.
package loader
