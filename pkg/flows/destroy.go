// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// socketID is struct inet_diag_sockid of linux/inet_diag.h; ports and addresses are in network order, an IPv4 address
// is in the first four bytes.
type socketID struct {
	SourcePort, DestinationPort [2]byte
	Source, Destination         [16]byte
	Interface                   uint32
	Cookie                      [2]uint32
}

// request is struct inet_diag_req_v2.
type request struct {
	Family, Protocol, Extensions, _ uint8
	States                          uint32
	ID                              socketID
}

// Len is the size of the encoded request, in bytes.
func (r *request) Len() int { return binary.Size(r) }

// Serialize encodes the request in the machine's byte order, as netlink wants it.
func (r *request) Serialize() []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.NativeEndian, r) // fixed-size members into memory: cannot fail
	return b.Bytes()
}

// destroy ends one socket of the calling thread's network namespace. ENOENT: there is no such socket (any more).
func destroy(s Stale) error {
	message := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	message.AddData(requestFor(s))
	_, err := message.Execute(unix.NETLINK_INET_DIAG, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("the kernel is built without CONFIG_INET_DIAG_DESTROY: %w", err)
	}
	if err != nil {
		return fmt.Errorf("end UDP socket %s -> %s: %w", s.Local, s.Peer, err)
	}
	return nil
}

// requestFor names the socket by its addresses, by which the kernel finds one that receives from the peer, whatever
// the family it was opened with, and by its cookie, without which that one would be ended whoever it is.
func requestFor(s Stale) *request {
	r := &request{Family: unix.AF_INET6, Protocol: unix.IPPROTO_UDP, States: ^uint32(0)}
	if s.Peer.Addr().Is4() {
		r.Family = unix.AF_INET
	}
	r.ID = socketID{
		Source:      addressBytes(s.Local.Addr()),
		Destination: addressBytes(s.Peer.Addr()),
		Interface:   s.BoundDevice,
		Cookie:      [2]uint32{uint32(s.Cookie), uint32(s.Cookie >> 32)},
	}
	binary.BigEndian.PutUint16(r.ID.SourcePort[:], s.Local.Port())
	binary.BigEndian.PutUint16(r.ID.DestinationPort[:], s.Peer.Port())
	return r
}

func addressBytes(a netip.Addr) (b [16]byte) {
	copy(b[:], a.AsSlice())
	return b
}
