// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// overlay gives two nodes a VXLAN between them, as flannel does, over which the pods of each reach the other's.
func (w *world) overlay() {
	w.t.Helper()
	for _, side := range []struct {
		here, there *lab.Node
		address     string
		other       string
	}{{w.node, w.far, "10.245.0.1", "10.245.0.2"}, {w.far, w.node, "10.245.0.2", "10.245.0.1"}} {
		w.must(side.here.Do(func() error {
			under, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			vxlan := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1", MTU: 1450}, VxlanId: 1, Port: 8472,
				VtepDevIndex: under.Attrs().Index, SrcAddr: side.here.Address4.AsSlice(), Group: side.there.Address4.AsSlice()}
			return errors.Join(netlink.LinkAdd(vxlan), netlink.LinkSetUp(vxlan))
		}))
		w.must(side.here.AddAddress("flannel.1", netip.PrefixFrom(netip.MustParseAddr(side.address), 24)))
		w.must(side.here.Do(func() error {
			link, err := netlink.LinkByName("flannel.1")
			if err != nil {
				return err
			}
			_, pods, err := net.ParseCIDR(side.there.Pods4.String())
			if err != nil {
				return err
			}
			return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: pods, Gw: net.ParseIP(side.other)})
		}))
	}
}

func TestBackendBehindAnOverlay(t *testing.T) {
	for _, v := range variants[:2] {
		t.Run(v.name, func(t *testing.T) {
			w := newWorld(t, v)
			pod := w.node.Pod(lab.PodOptions{Name: "client"}).Process()
			far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
			w.overlay()
			w.attach()
			self := netip.MustParseAddr("10.245.0.1")
			for _, network := range []string{tcp, udp} {
				dialled := w.nodePort(network, 4, 30081, far)
				w.expect(w.client, network, dialled, "far", self)
				w.expect(pod, network, w.clusterIP(network, 4, 81, far), "far", pod.Address4)
				// Through the overlay's smaller MTU.
				w.exchangeMuch(w.client, network, dialled)
			}
		})
	}
}

// exchangeMuch sends so much that it does not fit into one packet of any device, and wants it back.
func (w *world) exchangeMuch(client *lab.Process, network string, dialled netip.AddrPort) {
	w.t.Helper()
	size := 60_000 // the lab's servers read no longer lines
	if network == udp {
		size = 5000
	}
	socket := client.Dial(network, dialled)
	defer socket.Close()
	text := strings.Repeat("0123456789", size/10)
	// A datagram may be lost to path MTU discovery: then the sender learns the path's MTU and its next one arrives.
	for attempt := 0; ; attempt++ {
		answer := socket.Exchange(text)
		if answer.OK() && answer.Text == text {
			return
		}
		if network == tcp || attempt > 3 {
			w.t.Fatalf("%s %v: %s, %d bytes back\n%s", network, dialled, answer.Errno, len(answer.Text), w.state())
		}
	}
}

func TestMuchData(t *testing.T) {
	w := newWorld(t, variants[0])
	pod := w.node.Pod(lab.PodOptions{Name: "client"}).Process()
	near := w.node.Pod(lab.PodOptions{Name: "near"}).Process()
	far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
	w.attach()
	for _, family := range []int{4, 6} {
		for _, network := range []string{tcp, udp} {
			t.Log(family, network)
			w.exchangeMuch(pod, network, w.clusterIP(network, family, 81, near))
			t.Log("pod near ok")
			w.exchangeMuch(pod, network, w.clusterIP(network, family, 82, far))
			t.Log("pod far ok")
			w.exchangeMuch(w.client, network, w.nodePort(network, family, 30081, near))
			t.Log("client near ok")
			w.exchangeMuch(w.client, network, w.nodePort(network, family, 30082, far))
			t.Log("client far ok")
		}
	}
}

func TestSmallerMTUOnTheWayToTheBackend(t *testing.T) {
	w := newWorld(t, variants[0])
	far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
	w.attach()
	for _, family := range []int{4, 6} {
		pods, gateway := w.far.Pods4, w.far.Address4
		if family == 6 {
			pods, gateway = w.far.Pods6, w.far.Address6
		}
		w.must(w.node.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			_, dst, err := net.ParseCIDR(pods.String())
			if err != nil {
				return err
			}
			return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: gateway.AsSlice(), MTU: 1300, MTULock: true})
		}))
		for _, network := range []string{tcp, udp} {
			w.exchangeMuch(w.client, network, w.nodePort(network, family, 30081, far))
		}
	}
	if !strings.Contains(w.state(), "too_big") {
		t.Errorf("nothing was too big: %s", w.state())
	}
}

// The kernel routes to a pod with a small MTU, and complains to the client: about a packet to the pod, of which the
// client knows nothing. The complaint must speak of what the client has dialled.
func TestPodWithASmallMTU(t *testing.T) {
	for _, v := range variants[:2] {
		t.Run(v.name, func(t *testing.T) {
			w := newWorld(t, v)
			pod := w.node.Pod(lab.PodOptions{Name: "small", MTU: 1300})
			near := pod.Process()
			if v.layout == lab.Bridged {
				// A bridge has the smallest MTU of its ports, and all its pods the same.
				w.must(w.node.Do(func() error {
					bridge, err := netlink.LinkByName("cni0")
					if err != nil {
						return err
					}
					return netlink.LinkSetMTU(bridge, 1300)
				}))
			}
			w.attach()
			for _, family := range []int{4, 6} {
				dialled := w.nodePort(udp, family, 30081, near)
				socket := w.client.Dial(udp, dialled)
				// The first datagram of 1400 bytes is lost to path MTU discovery, and the error it causes is the
				// socket's. The next one goes in fragments.
				text := strings.Repeat("0123456789", 140)
				var answer lab.Exchanged
				for range 4 {
					if answer = socket.Exchange(text); answer.OK() {
						break
					}
				}
				if !answer.OK() || answer.Text != text {
					t.Errorf("IPv%d: %s, %d bytes back\n%s", family, answer.Errno, len(answer.Text), w.state())
				}
				socket.Close()
				w.exchangeMuch(w.client, tcp, w.nodePort(tcp, family, 30082, near))
			}
		})
	}
}

// tun makes a device without Ethernet header in a namespace, and returns what reads and writes its packets.
func (w *world) tun(n *lab.Namespace, name string, addresses ...string) *os.File {
	w.t.Helper()
	var file *os.File
	w.must(n.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		file = os.NewFile(uintptr(fd), "tun")
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}))
	w.t.Cleanup(func() { file.Close() })
	for _, a := range addresses {
		w.must(n.AddAddress(name, netip.MustParsePrefix(a)))
	}
	return file
}

// join carries packets from one tun device to another until either is closed.
func join(a, b *os.File) {
	carry := func(from, to *os.File) {
		packet := make([]byte, 65536)
		for {
			n, err := from.Read(packet)
			if err != nil {
				return
			}
			if _, err := to.Write(packet[:n]); errors.Is(err, os.ErrClosed) {
				return
			}
		}
	}
	go carry(a, b)
	go carry(b, a)
}

func TestClientBehindADeviceWithoutEthernetHeader(t *testing.T) {
	for _, mode := range []attach.TCMode{attach.TCX, attach.TCClsact} {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t, variant{mode: mode})
			near := w.node.Pod(lab.PodOptions{Name: "near"}).Process()
			far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
			outside := w.lab.Client(lab.ClientOptions{})
			join(w.tun(w.node.Namespace, "wg0", "10.99.0.1/24", "fd00:99::1/64"),
				w.tun(outside.Namespace, "wg0", "10.99.0.2/24", "fd00:99::2/64"))
			w.attach()
			client := outside.Process()
			for _, family := range []int{4, 6} {
				self := netip.MustParseAddr("10.99.0.2")
				services, gateway := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParseAddr("10.99.0.1")
				if family == 6 {
					self = netip.MustParseAddr("fd00:99::2")
					services, gateway = netip.MustParsePrefix("fd00:96::/112"), netip.MustParseAddr("fd00:99::1")
				}
				w.must(outside.AddRoute(services, "wg0", gateway))
				for _, network := range []string{tcp, udp} {
					w.expect(client, network, w.clusterIP(network, family, 81, near), "near", self)
					w.expect(client, network, w.clusterIP(network, family, 82, far), "far", w.node.Process().Address(family))
					refused := client.Dial(network, w.clusterIP(network, family, 83))
					got := refused.Errno
					if network == udp {
						got = refused.Exchange("anybody?").Errno
					}
					if got != "ECONNREFUSED" {
						t.Errorf("%s, IPv%d: %q without endpoints\n%s", network, family, got, w.state())
					}
				}
			}
		})
	}
}

// datagram builds an IPv4 UDP datagram without checksum.
func datagram(from, to netip.AddrPort, id uint16, payload []byte) (header, body []byte) {
	body = binary.BigEndian.AppendUint16(nil, from.Port())
	body = binary.BigEndian.AppendUint16(body, to.Port())
	body = binary.BigEndian.AppendUint16(body, uint16(8+len(payload)))
	body = append(append(body, 0, 0), payload...)
	header = make([]byte, 20)
	header[0], header[8], header[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(header[4:], id)
	copy(header[12:], from.Addr().AsSlice())
	copy(header[16:], to.Addr().AsSlice())
	return header, body
}

// sendRaw sends IPv4 packets from a namespace; the kernel fills in the checksum.
func (w *world) sendRaw(n *lab.Namespace, to netip.Addr, packets ...[]byte) {
	w.t.Helper()
	w.must(n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, p := range packets {
			if err := unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestFragmentsInAnyOrder(t *testing.T) {
	for _, v := range variants[:2] {
		t.Run(v.name, func(t *testing.T) {
			w := newWorld(t, v)
			near := w.node.Pod(lab.PodOptions{Name: "near"}).Process()
			far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
			outside := w.lab.Client(lab.ClientOptions{})
			w.attach()
			client := outside.Process()
			for i, server := range []*lab.Process{near, far} {
				dialled := w.nodePort(udp, 4, uint16(30081+i), server)
				from := netip.AddrPortFrom(client.Address4, uint16(5000+i))
				socket := client.Open(process.SocketRequest{Network: udp, Family: 4, Bind: from})
				for n, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}} {
					text := strings.Repeat("fragments ", 300)
					header, body := datagram(from, dialled, uint16(100*i+n+1), []byte(text+"\n"))
					var packets [][]byte
					for _, part := range order {
						begin, end := part*1200, min((part+1)*1200, len(body))
						p := append([]byte{}, header...)
						offset := uint16(begin / 8)
						if end < len(body) {
							offset |= 0x2000
						}
						binary.BigEndian.PutUint16(p[6:], offset)
						packets = append(packets, append(p, body[begin:end]...))
					}
					w.sendRaw(outside.Namespace, dialled.Addr(), packets...)
					answer := socket.Receive(5 * time.Second)
					if !answer.OK() || !strings.Contains(answer.Data, text) || answer.From != dialled {
						t.Errorf("%s, order %v: %s, %d bytes from %v\n%s", server.Name, order, answer.Errno, len(answer.Data),
							answer.From, w.state())
					}
				}
				socket.Close()
			}
		})
	}
}
