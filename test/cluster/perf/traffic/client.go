// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// client repeats an operation.
type client struct {
	work   Work
	family int
	remote unix.Sockaddr
	buffer []byte
	times  []time.Duration

	current atomic.Int64 // the socket in use
	late    atomic.Bool
}

var errLate = errors.New("no answer in time")

func run(work Work) (Done, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := &client{work: work, buffer: make([]byte, chunk)}
	c.family, c.remote = address(work.To)
	steps, known := map[Kind]func() error{
		Connect: c.connects, Exchange: c.exchanges, Request: c.requests, Flow: c.flows, Stream: c.stream, Bulk: c.bulk,
	}[work.Kind]
	if !known {
		return Done{}, fmt.Errorf("run %q: no such kind", work.Kind)
	}
	if work.Kind == Request {
		c.times = make([]time.Duration, 0, work.Count)
	}
	// Not by socket options: two more system calls would be part of each operation.
	defer time.AfterFunc(work.Patience, c.giveUp).Stop()
	runtime.GC()
	begin := time.Now()
	before, err := readClock(unix.CLOCK_PROCESS_CPUTIME_ID)
	if err != nil {
		return Done{}, err
	}
	if err := steps(); err != nil {
		if c.late.Load() {
			err = errLate
		}
		return Done{}, fmt.Errorf("%s %s: %w", work.Kind, work.To, err)
	}
	after, err := readClock(unix.CLOCK_PROCESS_CPUTIME_ID)
	done := Done{CPU: after - before, Elapsed: time.Since(begin)}
	if len(c.times) > 0 {
		slices.Sort(c.times)
		done.Median, done.Slow = c.times[len(c.times)/2], c.times[len(c.times)*99/100]
	}
	return done, err
}

// giveUp lets the call that waits return.
func (c *client) giveUp() {
	c.late.Store(true)
	_ = unix.Shutdown(int(c.current.Load()), unix.SHUT_RDWR)
}

func (c *client) dial(kind int) (int, error) {
	fd, err := unix.Socket(c.family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	c.current.Store(int64(fd))
	if err := unix.Connect(fd, c.remote); err != nil && !c.connectedMeanwhile(fd, err) {
		unix.Close(fd)
		return 0, fmt.Errorf("connect: %w", err)
	}
	return fd, nil
}

// connectedMeanwhile waits for a connect that a signal interrupted.
func (c *client) connectedMeanwhile(fd int, err error) bool {
	if !errors.Is(err, unix.EINTR) {
		return false
	}
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, err = retry(func() (int, error) { return unix.Poll(ready, int(c.work.Patience.Milliseconds())) })
	status, statusErr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	return err == nil && statusErr == nil && status == 0 && ready[0].Revents&unix.POLLOUT != 0
}

func (c *client) open() (int, error) {
	fd, err := c.dial(unix.SOCK_STREAM)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	return fd, err
}

func (c *client) connects() error {
	for range c.work.Count {
		fd, err := c.dial(unix.SOCK_STREAM)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return fmt.Errorf("set SO_LINGER: %w", err)
		}
		unix.Close(fd)
	}
	return nil
}

func (c *client) exchanges() error {
	for range c.work.Count {
		fd, err := c.open()
		if err != nil {
			return err
		}
		err = c.ask(fd, 0)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *client) requests() error {
	fd, err := c.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for range c.work.Count {
		begin := time.Now()
		if err := c.ask(fd, 0); err != nil {
			return err
		}
		c.times = append(c.times, time.Since(begin))
	}
	return nil
}

// ask sends a message that says how much data follows, the data, and waits for the answer.
func (c *client) ask(fd int, size int) error {
	message := c.buffer[:messageSize]
	message[0] = asksReply
	binary.BigEndian.PutUint64(message[sizeOffset:], uint64(size))
	if err := writeFull(fd, message); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	for ; size > 0; size -= chunk {
		if err := writeFull(fd, c.buffer); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	if err := readFull(fd, message); err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	return nil
}

func (c *client) bulk() error {
	fd, err := c.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return c.ask(fd, c.work.Count*megabyte)
}

func (c *client) flows() error {
	for range c.work.Count {
		fd, err := c.dial(unix.SOCK_DGRAM)
		if err != nil {
			return err
		}
		err = c.ask(fd, 0)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *client) stream() error {
	fd, err := c.dial(unix.SOCK_DGRAM)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	message := c.buffer[:messageSize]
	for sent := 1; sent <= c.work.Count; sent++ {
		if sent%window == 0 || sent == c.work.Count {
			if err := c.ask(fd, 0); err != nil {
				return err
			}
			continue
		}
		message[0] = asksNothing
		if err := writeFull(fd, message); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}
