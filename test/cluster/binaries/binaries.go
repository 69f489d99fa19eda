// SPDX-License-Identifier: Apache-2.0

// Package binaries builds the programs that the tests run: the control plane and kube-proxy, which are built once and
// kept in the user's cache, and shunt itself, which is built anew for each run.
package binaries

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Version is the release that the reference is; go.mod requires the module of the same version.
const Version = "v1.37.2"

const (
	modulePath    = "github.com/shunt-lb/shunt/test/cluster"
	etcdCommand   = modulePath + "/etcd"
	commandPrefix = "k8s.io/kubernetes/cmd/"
)

// Reference is where the programs of the reference are.
type Reference struct{ directory string }

var commands = []string{
	etcdCommand, commandPrefix + "kube-apiserver", commandPrefix + "kube-controller-manager",
	commandPrefix + "kubectl", commandPrefix + "kube-proxy",
}

// Path is the file of a program: etcd, kube-apiserver, kube-controller-manager, kubectl or kube-proxy.
func (r Reference) Path(program string) string { return filepath.Join(r.directory, program) }

// BuildReference builds what is not in the cache: the programs named, or all. Several processes may call it at once:
// one builds.
func BuildReference(programs ...string) (Reference, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return Reference{}, fmt.Errorf("find cache directory: %w", err)
	}
	fingerprint, err := fingerprintOf(commands)
	if err != nil {
		return Reference{}, err
	}
	directory := filepath.Join(cache, "shunt-test-cluster", fingerprint)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return Reference{}, fmt.Errorf("make cache directory: %w", err)
	}
	unlock, err := lock(directory)
	if err != nil {
		return Reference{}, err
	}
	defer unlock()
	reference := Reference{directory}
	for _, command := range commands {
		name := filepath.Base(command)
		target := reference.Path(name)
		if _, err := os.Stat(target); err == nil || len(programs) > 0 && !slices.Contains(programs, name) {
			continue
		}
		if err := build(command, target); err != nil {
			return Reference{}, err
		}
	}
	return reference, nil
}

// BuildShunt builds the shunt of this tree, as make build does.
func BuildShunt(target string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	return run(root, append(os.Environ(), "CGO_ENABLED=0"), "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w",
		"-o", target, "./cmd/shunt")
}

// Deploy is the path of a file below deploy/ of this tree.
func Deploy(elements ...string) (string, error) {
	root, err := Root()
	return filepath.Join(append([]string{root, "deploy"}, elements...)...), err
}

// build writes beside the target and renames, so that what is in the cache is whole.
func build(command, target string) error {
	partial := target + ".partial"
	err := run("", environment(), "build", "-buildvcs=false", "-ldflags", linkerFlags(), "-o", partial, command)
	if err != nil {
		return err
	}
	if err := os.Rename(partial, target); err != nil {
		return fmt.Errorf("build %s: %w", command, err)
	}
	return nil
}

// linkerFlags tells the programs their version: without it they take themselves for v0.0.0, and the API server refuses
// to emulate that.
func linkerFlags() string {
	minor := strings.Split(Version, ".")[1]
	flags := []string{"-s", "-w"}
	for _, target := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, value := range []string{
			"gitVersion=" + Version, "gitMajor=1", "gitMinor=" + minor, "gitTreeState=clean", "gitCommit=module",
		} {
			flags = append(flags, "-X", target+"."+value)
		}
	}
	return strings.Join(flags, " ")
}

// environment leaves cgo as it is by default, whatever the caller has: each value compiles all of Kubernetes again.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "CGO_ENABLED=") })
}

// fingerprintOf changes with everything that goes into the programs: the compiler, the flags and the modules.
func fingerprintOf(commands []string) (string, error) {
	const template = `{{with .Module}}{{.Path}} {{.Version}}{{with .Replace}} {{.Version}}{{end}}{{end}}`
	output, err := goCommand("", environment(), append([]string{"list", "-deps", "-f", template}, commands...)...)
	if err != nil {
		return "", err
	}
	modules := strings.Split(output, "\n")
	slices.Sort(modules)
	modules = slices.Compact(modules)
	sum := sha256.Sum256([]byte(runtime.Version() + linkerFlags() + strings.Join(modules, "\n")))
	return hex.EncodeToString(sum[:8]), nil
}

// Root is where the module of shunt is.
func Root() (string, error) {
	root, err := goCommand("", os.Environ(), "list", "-m", "-f", "{{.Dir}}", "github.com/shunt-lb/shunt")
	return strings.TrimSpace(root), err
}

func lock(directory string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(directory, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", directory, err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", directory, err)
	}
	return func() { file.Close() }, nil
}

func run(directory string, environment []string, arguments ...string) error {
	_, err := goCommand(directory, environment, arguments...)
	return err
}

func goCommand(directory string, environment []string, arguments ...string) (string, error) {
	command := exec.Command("go", arguments...)
	command.Dir, command.Env = directory, environment
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", arguments[0], err, stderr.String())
	}
	return string(output), nil
}
