// SPDX-License-Identifier: Apache-2.0

package loader

// The committed objects are what users run; `make generate` sets the compiler, and CI proves that they are current.
// asm/types.h is in a directory of its own for each machine; the types in it are the same on all.
//
//go:generate go tool bpf2go -target bpfel,bpfeb -no-global-types -output-stem sock -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Werror -fno-strict-aliasing -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" sock ../../bpf/sock.bpf.c
//
// The shared headers have functions that only one of the two paths calls.
//go:generate go tool bpf2go -target bpfel,bpfeb -no-global-types -output-stem tc -cflags "-O2 -g -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-function -fno-strict-aliasing -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" tc ../../bpf/tc.bpf.c
