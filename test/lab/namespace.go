// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name: an open file holds it, so it ends with the process at the latest.
type Namespace struct {
	file   *os.File
	handle *netlink.Handle
}

// newNamespace makes a namespace with loopback up, duplicate address detection off and no router advertisements.
func newNamespace() (*Namespace, error) {
	var file *os.File
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		var err error
		file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, err
	}
	namespace := &Namespace{file: file}
	if err := namespace.prepare(); err != nil {
		namespace.close()
		return nil, err
	}
	return namespace, nil
}

func (n *Namespace) prepare() error {
	var err error
	if n.handle, err = netlink.NewHandleAt(netns.NsHandle(n.file.Fd()), unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open netlink in namespace: %w", err)
	}
	// The kernel may copy the machine's own settings into a new namespace: all that matter here are set.
	settings := []string{
		"ipv4/conf/all/rp_filter=0", "ipv4/conf/default/rp_filter=0",
		"ipv4/conf/all/forwarding=0", "ipv4/conf/default/forwarding=0",
		"ipv4/conf/all/proxy_arp=0", "ipv4/conf/default/proxy_arp=0",
		"ipv4/conf/all/route_localnet=0", "ipv4/conf/default/route_localnet=0",
		"ipv6/conf/all/disable_ipv6=0", "ipv6/conf/default/disable_ipv6=0",
		"ipv6/conf/all/forwarding=0", "ipv6/conf/default/forwarding=0",
		"ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0",
		"ipv6/conf/all/accept_ra=0", "ipv6/conf/default/accept_ra=0",
		// Each refused packet is to be answered, or a test would wait for a timeout now and then.
		"ipv4/icmp_ratelimit=0", "ipv6/icmp/ratelimit=0",
	}
	for _, setting := range settings {
		if err := n.applySetting(setting); err != nil {
			return err
		}
	}
	return n.up("lo")
}

// Do runs fn on a thread of its own that is in the namespace, for netlink and /proc. Goroutines that fn starts are
// not in it, and sockets that it opens belong to the caller's cgroup: see [Process] for pods' traffic.
func (n *Namespace) Do(fn func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
	})
}

// Set writes a setting below /proc/sys/net of the namespace.
func (n *Namespace) Set(name, value string) error {
	return n.Do(func() error {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0); err != nil {
			return fmt.Errorf("set net/%s to %s: %w", name, value, err)
		}
		return nil
	})
}

// Netlink is a route netlink handle that works in the namespace.
func (n *Namespace) Netlink() *netlink.Handle { return n.handle }

// Fd is the open namespace; it stays the lab's.
func (n *Namespace) Fd() int { return int(n.file.Fd()) }

// Cookie is what the kernel calls the namespace (SO_NETNS_COOKIE, bpf_get_netns_cookie).
func (n *Namespace) Cookie() (uint64, error) {
	var cookie uint64
	err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open socket: %w", err)
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil {
			return fmt.Errorf("read netns cookie: %w", err)
		}
		return nil
	})
	return cookie, err
}

func (n *Namespace) applySetting(setting string) error {
	for i := range setting {
		if setting[i] == '=' {
			return n.Set(setting[:i], setting[i+1:])
		}
	}
	return fmt.Errorf("apply setting %q: no value", setting)
}

func (n *Namespace) up(device string) error {
	link, err := n.handle.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find device %s: %w", device, err)
	}
	if err := n.handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set device %s up: %w", device, err)
	}
	return nil
}

func (n *Namespace) close() {
	if n.handle != nil {
		n.handle.Close()
	}
	n.file.Close()
}

// onOwnThread runs fn on a thread that ends with it, so a changed namespace can never leak to other goroutines.
func onOwnThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
		result <- fn()
	}()
	return <-result
}
