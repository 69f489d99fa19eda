// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// TB is what the lab needs of testing.TB, so that programs which use the lab do not carry package testing.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, arguments ...any)
	Fatalf(format string, arguments ...any)
	Skipf(format string, arguments ...any)
}

// Lab is one machine's worth of nodes and clients on one wire. Its methods may be called from one goroutine; those of
// a [Process] from several.
type Lab struct {
	name      string
	directory string // temporary files and bpffs mounts
	cgroup    string // parent of all cgroups of the lab
	helper    []string
	report    func(error)

	janitor *janitor
	starter *starter
	wire    *wire

	namespaces []*Namespace
	nodes      []*Node
	clients    int

	mutex    sync.Mutex
	programs []*Program
	ended    bool // nothing may be started any more
}

// New makes a lab for a test and closes it with the test. Without root the test is skipped.
func New(t TB) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("the lab makes network namespaces and cgroups: run as root")
	}
	l, err := open([]string{helperArgument}, func(err error) {
		t.Helper()
		t.Fatalf("lab: %v", err)
	})
	if err != nil {
		t.Fatalf("lab: %v", err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Errorf("lab: %v", err)
		}
	})
	return l
}

// failure carries an error of the lab through the caller of [Run].
type failure struct{ err error }

// Run makes a lab for body and closes it afterwards. helper is the command line by which this program runs [Helper].
// What fails inside the lab ends body and is returned. The end of ctx ends all programs of the lab, so that body does
// not wait for any of them.
func Run(ctx context.Context, helper []string, body func(*Lab) error) (err error) {
	l, err := open(helper, func(err error) { panic(failure{err}) })
	if err != nil {
		return err
	}
	defer func() {
		if recovered := recover(); recovered != nil {
			failed, ok := recovered.(failure)
			if !ok {
				panic(recovered)
			}
			err = failed.err
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		err = errors.Join(err, l.close())
	}()
	defer context.AfterFunc(ctx, l.killPrograms)()
	return body(l)
}

func open(helper []string, report func(error)) (*Lab, error) {
	cgroups, err := cgroupMount()
	if err != nil {
		return nil, err
	}
	if err := removeStale(cgroups); err != nil {
		return nil, fmt.Errorf("remove leftovers of earlier labs: %w", err)
	}
	run, err := newRunName()
	if err != nil {
		return nil, err
	}
	name := run.String()
	l := &Lab{
		name:      name,
		directory: filepath.Join(os.TempDir(), name),
		cgroup:    filepath.Join(cgroups, name),
		helper:    helper,
		report:    report,
		starter:   newStarter(),
	}
	if l.janitor, err = startJanitor(helper, l.directory, l.cgroup); err != nil {
		l.starter.close()
		return nil, err
	}
	if err := l.build(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *Lab) build() error {
	if err := os.Mkdir(l.directory, 0o755); err != nil {
		return fmt.Errorf("make lab directory: %w", err)
	}
	if err := os.Mkdir(l.cgroup, 0o755); err != nil {
		return fmt.Errorf("make lab cgroup: %w", err)
	}
	var err error
	l.wire, err = l.newWire()
	return err
}

func (l *Lab) close() error {
	l.killPrograms()
	l.starter.close()
	for _, namespace := range l.namespaces {
		namespace.close()
	}
	return l.janitor.finish()
}

func (l *Lab) killPrograms() {
	l.mutex.Lock()
	programs := l.programs
	l.ended = true
	l.mutex.Unlock()
	for _, program := range programs {
		program.Kill()
	}
}

// Name is unique to the run: a mark for logs.
func (l *Lab) Name() string { return l.name }

// Directory is a temporary directory that goes with the lab.
func (l *Lab) Directory() string { return l.directory }

func (l *Lab) check(err error) {
	if err != nil {
		l.report(err)
	}
}

func (l *Lab) newNamespace() (*Namespace, error) {
	namespace, err := newNamespace()
	if err != nil {
		return nil, err
	}
	l.namespaces = append(l.namespaces, namespace)
	return namespace, nil
}

// makeCgroup makes a cgroup below the lab's, parents included.
func (l *Lab) makeCgroup(elements ...string) (string, error) {
	path := filepath.Join(append([]string{l.cgroup}, elements...)...)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", fmt.Errorf("make cgroup: %w", err)
	}
	return path, nil
}

// mountBPF mounts a bpffs that belongs to one node alone.
func (l *Lab) mountBPF(node string) (string, error) {
	path := filepath.Join(l.directory, node, "bpf")
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", fmt.Errorf("make bpffs directory: %w", err)
	}
	if err := unix.Mount("bpf", path, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "", fmt.Errorf("mount bpffs on %s: %w", path, err)
	}
	return path, nil
}
