// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
	"golang.org/x/sys/unix"
)

const protocolSCTP = 132

// sctpSocket opens a one-to-one SCTP socket in a namespace. The packet path cares for no cgroup, so it may be the
// test's own.
func sctpSocket(n *lab.Namespace, family int) (fd int, err error) {
	domain := unix.AF_INET
	if family == 6 {
		domain = unix.AF_INET6
	}
	err = n.Do(func() error {
		var err error
		fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocolSCTP)
		return err
	})
	if err != nil {
		return -1, err
	}
	timeout := unix.NsecToTimeval(int64(20 * time.Second))
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func addressOfSocket(a unix.Sockaddr) string {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr).String()
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr).String()
	}
	return "?"
}

// sctpServe answers each association with whom it sees and what it got.
func (w *world) sctpServe(n *lab.Namespace, at netip.AddrPort, family int) {
	w.t.Helper()
	fd, err := sctpSocket(n, family)
	w.must(err)
	w.must(unix.Bind(fd, sockaddr(at)))
	w.must(unix.Listen(fd, 8))
	w.t.Cleanup(func() { unix.Close(fd) })
	go func() {
		for {
			c, peer, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return
			}
			buffer := make([]byte, 4096)
			if count, err := unix.Read(c, buffer); err == nil {
				_, _ = unix.Write(c, []byte(addressOfSocket(peer)+" "+string(buffer[:count])))
			}
			unix.Close(c)
		}
	}()
}

// sctpAsk makes an association and has its answer.
func (w *world) sctpAsk(n *lab.Namespace, to netip.AddrPort, family int, text string) string {
	w.t.Helper()
	fd, err := sctpSocket(n, family)
	w.must(err)
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return err.Error()
	}
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return err.Error()
	}
	buffer := make([]byte, 4096)
	count, err := unix.Read(fd, buffer)
	if err != nil {
		return err.Error()
	}
	return string(buffer[:count])
}

func TestSCTPAssociations(t *testing.T) {
	w := newWorld(t, variants[2])
	if fd, err := sctpSocket(w.node.Namespace, 4); errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("this kernel has no SCTP sockets; Debian's kernels have")
	} else {
		w.must(err)
		unix.Close(fd)
	}
	near := w.node.Pod(lab.PodOptions{Name: "near"})
	far := w.far.Pod(lab.PodOptions{Name: "far"})
	pod := w.node.Pod(lab.PodOptions{Name: "client"})
	outside := w.lab.Client(lab.ClientOptions{})
	w.defaultRoutes()
	w.attach()
	w.nodeClients()
	for _, family := range []int{4, 6} {
		pick := func(four, six netip.Addr) netip.Addr {
			if family == 6 {
				return six
			}
			return four
		}
		nearAt := netip.AddrPortFrom(pick(near.Address4, near.Address6), 9000)
		farAt := netip.AddrPortFrom(pick(far.Address4, far.Address6), 9000)
		w.sctpServe(near.Namespace, nearAt, family)
		w.sctpServe(far.Namespace, farAt, family)
		node := pick(w.node.Address4, w.node.Address6)
		vip := pick(netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10"))
		any := pick(netip.IPv4Unspecified(), netip.IPv6Unspecified())
		w.address(vip, maps.AddressClusterIP)
		for i, backend := range []netip.AddrPort{nearAt, farAt} {
			w.program(protocolSCTP, netip.AddrPortFrom(any, uint16(30081+i)), maps.KindNodePort, backend)
			w.program(protocolSCTP, netip.AddrPortFrom(vip, uint16(81+i)), maps.KindClusterIP, backend)
		}
		w.program(protocolSCTP, netip.AddrPortFrom(vip, 83), maps.KindClusterIP)
		for _, c := range []struct {
			name string
			from *lab.Namespace
			to   netip.AddrPort
			sees string
		}{
			{"outside, node port, here", outside.Namespace, netip.AddrPortFrom(node, 30081), pick(outside.Address4, outside.Address6).String()},
			{"outside, node port, elsewhere", outside.Namespace, netip.AddrPortFrom(node, 30082), node.String()},
			{"pod, ClusterIP, here", pod.Namespace, netip.AddrPortFrom(vip, 81), pick(pod.Address4, pod.Address6).String()},
			{"pod, ClusterIP, elsewhere", pod.Namespace, netip.AddrPortFrom(vip, 82), pick(pod.Address4, pod.Address6).String()},
			{"node, ClusterIP, elsewhere", w.node.Namespace, netip.AddrPortFrom(vip, 82), node.String()},
		} {
			if got, want := w.sctpAsk(c.from, c.to, family, "hello"), c.sees+" hello"; got != want {
				t.Errorf("IPv%d, %s: %q, want %q\n%s", family, c.name, got, want, w.state())
			}
		}
		if got := w.sctpAsk(pod.Namespace, netip.AddrPortFrom(vip, 83), family, "anybody?"); got != fmt.Sprint(unix.ECONNREFUSED) {
			t.Errorf("IPv%d, without endpoints: %q\n%s", family, got, w.state())
		}
	}
}
