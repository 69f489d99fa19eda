// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/shunt-lb/shunt/test/lab/process"
)

// Host is who a node, pod, client or process is on the network.
type Host struct {
	Name     string
	Address4 netip.Addr
	Address6 netip.Addr
}

// Address is its address of a family, 4 or 6.
func (h Host) Address(family int) netip.Addr {
	if family == 6 {
		return h.Address6
	}
	return h.Address4
}

const (
	// usualTimeout is long enough for a loaded machine and short enough for a test that waits for silence.
	usualTimeout = 5 * time.Second
	callPatience = 5 * time.Minute
)

// ErrProcessEnded is what a call to a process that has ended, or ends during the call, returns.
var ErrProcessEnded = errors.New("the process has ended")

// Process is a process in a network namespace and a cgroup of the lab, which opens sockets when told to.
type Process struct {
	*Program
	Host

	lab   *Lab
	mutex sync.Mutex
	input io.WriteCloser
	next  uint64
	calls map[uint64]chan process.Response
}

func (l *Lab) newProcess(namespace *Namespace, cgroup []string, host Host) *Process {
	p, err := l.startProcess(namespace, cgroup, host)
	if err != nil {
		l.check(fmt.Errorf("start process of %s: %w", host.Name, err))
	}
	return p
}

func (l *Lab) startProcess(namespace *Namespace, cgroup []string, host Host) (*Process, error) {
	command := exec.Command("/proc/self/exe", append(append([]string{}, l.helper...), roleProcess)...)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe: Wait would close it under the reader.
	output, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	command.Stdout = write
	program, err := l.start(namespace, cgroup, command)
	if err != nil {
		output.Close()
		return nil, err
	}
	p := &Process{Program: program, Host: host, lab: l, input: input, calls: map[uint64]chan process.Response{}}
	go p.read(output)
	return p, nil
}

// read hands responses to their callers until the process ends, and then tells those that still wait.
func (p *Process) read(output io.ReadCloser) {
	defer output.Close()
	decoder := json.NewDecoder(bufio.NewReader(output))
	for {
		var response process.Response
		if decoder.Decode(&response) != nil {
			break
		}
		p.mutex.Lock()
		call := p.calls[response.Number]
		delete(p.calls, response.Number)
		p.mutex.Unlock()
		if call != nil {
			call <- response
		}
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, call := range p.calls {
		close(call)
	}
	p.calls = nil
}

// Call asks for an operation by name, one of the process's own or one given to [Main]; out may be nil.
func (p *Process) Call(operation string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("ask %s for %s: %w", p.Name, operation, err)
	}
	response, err := p.exchange(operation, body)
	if err != nil {
		return fmt.Errorf("ask %s for %s: %w", p.Name, operation, err)
	}
	if response.Error != "" {
		return fmt.Errorf("ask %s for %s: %s", p.Name, operation, response.Error)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(response.Body, out); err != nil {
		return fmt.Errorf("ask %s for %s: %w", p.Name, operation, err)
	}
	return nil
}

func (p *Process) exchange(operation string, body []byte) (process.Response, error) {
	call, err := p.write(operation, body)
	if err != nil {
		return process.Response{}, err
	}
	timer := time.NewTimer(callPatience)
	defer timer.Stop()
	select {
	case response, ok := <-call:
		if !ok {
			return process.Response{}, ErrProcessEnded
		}
		return response, nil
	case <-timer.C:
		return process.Response{}, fmt.Errorf("no response within %s", callPatience)
	}
}

func (p *Process) write(operation string, body []byte) (chan process.Response, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.calls == nil {
		return nil, ErrProcessEnded
	}
	p.next++
	line, err := json.Marshal(process.Request{Number: p.next, Operation: operation, Body: body})
	if err != nil {
		return nil, err
	}
	call := make(chan process.Response, 1)
	p.calls[p.next] = call
	if _, err := p.input.Write(append(line, '\n')); err != nil {
		delete(p.calls, p.next)
		return nil, err
	}
	return call, nil
}

// ask is Call for the typed methods: they go on only with an answer.
func ask[Out any](p *Process, operation string, in any) Out {
	var out Out
	p.lab.check(p.Call(operation, in, &out))
	return out
}
