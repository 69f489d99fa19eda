// SPDX-License-Identifier: Apache-2.0

// Package maps is typed access to shunt's BPF maps: the structures of bpf/types.h in Go, a Reader and a Writer over
// the pinned maps, and an in-memory Fake of both for tests. It decides nothing: what to write, and in which order,
// comes from package plan through package writer.
//
// Addresses are 16 bytes, IPv4 as v4-mapped IPv6; ports are in host byte order; integers have the machine's own
// byte order, as the kernel reads them.
package maps
