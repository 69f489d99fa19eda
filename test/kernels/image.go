// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"slices"
)

// writeImage writes an initramfs in cpio's "newc" format (Documentation/driver-api/early-userspace/buffer-format.rst).
func writeImage(path string, files map[string]string, modules [][]byte) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	w := &archive{out: bufio.NewWriter(f)}
	for _, dir := range []string{"tests", "modules", "proc", "sys", "dev", "tmp", "run"} {
		w.entry(dir, 0o040755, nil)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[name])
		if err != nil {
			return fmt.Errorf("write image: %w", err)
		}
		w.entry(name, 0o100755, content)
	}
	for i, module := range modules {
		w.entry(fmt.Sprintf("modules/%04d.ko", i), 0o100644, module)
	}
	w.entry("TRAILER!!!", 0, nil)
	for _, err := range []error{w.err, w.out.Flush(), f.Close()} {
		if err != nil {
			return fmt.Errorf("write image: %w", err)
		}
	}
	return nil
}

// archive writes entries and remembers the first error.
type archive struct {
	out   *bufio.Writer
	inode int
	err   error
}

// entry writes a file or directory; header and content each end at a multiple of four.
func (a *archive) entry(name string, mode uint32, content []byte) {
	if a.err != nil {
		return
	}
	a.inode++
	fields := []int{a.inode, int(mode), 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0}
	header := "070701"
	for _, v := range fields {
		header += fmt.Sprintf("%08x", v)
	}
	header += name + "\x00"
	for _, part := range [][]byte{[]byte(header), content} {
		if _, a.err = a.out.Write(part); a.err != nil {
			return
		}
		if _, a.err = a.out.Write(make([]byte, -len(part)&3)); a.err != nil {
			return
		}
	}
}
