// SPDX-License-Identifier: Apache-2.0

package flows

// As in pkg/loader, which has the socket programs.
//
//go:generate go tool bpf2go -target bpfel,bpfeb -no-global-types -output-stem stale -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Werror -fno-strict-aliasing -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" stale ../../bpf/stale.bpf.c
