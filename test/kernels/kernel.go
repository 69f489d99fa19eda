// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// wanted are the modules that the lab and the tests use.
var wanted = []string{"veth", "bridge", "8021q", "vxlan", "tun", "nf_tables", "nft_ct", "nf_conntrack", "sch_ingress", "cls_bpf",
	"act_gact", "sctp", "inet_diag", "udp_diag", "tcp_diag", "mptcp_diag", "raw_diag"}

// kernel is one kernel to boot.
type kernel struct {
	version string
	image   string
	// modules are uncompressed, in the order of their dependencies.
	modules [][]byte
}

// fetch downloads and unpacks the package that a metapackage stands for.
func fetch(ctx context.Context, work, metapackage string) (kernel, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", metapackage).Output()
	if err != nil {
		return kernel{}, fmt.Errorf("look up package %s (apt-get update first): %w", metapackage, err)
	}
	match := regexp.MustCompile(`Depends: (linux-image-(\S+-cloud-amd64))`).FindSubmatch(out)
	if match == nil {
		return kernel{}, fmt.Errorf("look up package %s: it depends on no kernel", metapackage)
	}
	name, version := string(match[1]), string(match[2])
	dir := filepath.Join(work, version)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return kernel{}, err
	}
	for _, command := range [][]string{
		{"apt-get", "download", "-qq", name},
		{"sh", "-c", "dpkg-deb -x ./*.deb ."},
	} {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return kernel{}, fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	k := kernel{version: version, image: filepath.Join(dir, "boot", "vmlinuz-"+version)}
	k.modules, err = loadModules(ctx, filepath.Join(dir, "lib", "modules", version))
	return k, err
}

// loadModules returns the wanted modules and what they depend on, dependencies first.
func loadModules(ctx context.Context, dir string) ([][]byte, error) {
	paths := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if name, _, ok := strings.Cut(filepath.Base(path), ".ko"); err == nil && ok && !info.IsDir() {
			paths[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for modules: %w", err)
	}
	var ordered [][]byte
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		path, there := paths[name]
		if done[name] || !there {
			return nil // not there: built in, or this kernel does without
		}
		done[name] = true
		module, err := readModule(ctx, path)
		if err != nil {
			return err
		}
		depends, err := dependencies(module)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		for _, d := range depends {
			if err := add(d); err != nil {
				return err
			}
		}
		ordered = append(ordered, module)
		return nil
	}
	for _, name := range wanted {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return ordered, nil
}

func readModule(ctx context.Context, path string) ([]byte, error) {
	if !strings.HasSuffix(path, ".xz") {
		return os.ReadFile(path)
	}
	module, err := exec.CommandContext(ctx, "xz", "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", path, err)
	}
	return module, nil
}

// dependencies returns the names in a module's "depends=" line, in the form with underscores.
func dependencies(module []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, nil
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(entry, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(strings.ReplaceAll(string(list), "-", "_"), ","), nil
		}
	}
	return nil, nil
}
