// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// starter starts all programs of a lab from one thread that lives as long as the lab: the signal that a child gets at
// its parent's death is sent when the thread that made it ends.
type starter struct {
	jobs chan func()
}

func newStarter() *starter {
	s := &starter{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: it stays in whichever namespace it entered last
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

func (s *starter) start(namespace *Namespace, command *exec.Cmd) error {
	result := make(chan error)
	s.jobs <- func() {
		if err := unix.Setns(namespace.Fd(), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		result <- command.Start()
	}
	return <-result
}

func (s *starter) close() { close(s.jobs) }

var errLabEnded = errors.New("the lab has ended")

// Program is a running program of a node, pod or client.
type Program struct {
	command *exec.Cmd
	done    chan struct{}
	err     error
	once    sync.Once
}

func (l *Lab) start(namespace *Namespace, cgroup []string, command *exec.Cmd) (*Program, error) {
	path, err := l.makeCgroup(cgroup...)
	if err != nil {
		return nil, err
	}
	directory, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	defer directory.Close()
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.UseCgroupFD = true
	command.SysProcAttr.CgroupFD = int(directory.Fd())
	command.SysProcAttr.Pdeathsig = unix.SIGKILL
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.ended {
		return nil, errLabEnded
	}
	if err := l.starter.start(namespace, command); err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	program := &Program{command: command, done: make(chan struct{})}
	go func() {
		program.err = command.Wait()
		close(program.done)
	}()
	l.programs = append(l.programs, program)
	return program, nil
}

// PID is the program's process id.
func (p *Program) PID() int { return p.command.Process.Pid }

// Done is closed when the program has ended.
func (p *Program) Done() <-chan struct{} { return p.done }

// Wait waits for the program's end and says how it ended, as exec.Cmd.Wait does.
func (p *Program) Wait() error {
	<-p.done
	return p.err
}

// Signal sends a signal; a program that has ended already is no error.
func (p *Program) Signal(signal os.Signal) { _ = p.command.Process.Signal(signal) }

// Kill ends the program with SIGKILL and waits for its end.
func (p *Program) Kill() {
	p.once.Do(func() { p.Signal(unix.SIGKILL) })
	<-p.done
}
