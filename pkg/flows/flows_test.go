// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/maps"
)

func TestARequestNamesTheSocketAsTheKernelReadsIt(t *testing.T) {
	for _, row := range []struct {
		name        string
		local, peer string
		family      uint8
		source      []byte
	}{
		{"IPv4 in the first four bytes", "10.244.1.2:40000", "10.244.1.53:5353", unix.AF_INET, []byte{10, 244, 1, 2, 0, 0}},
		{"IPv6 in all sixteen", "[fd00::2]:40000", "[fd00::53]:5353", unix.AF_INET6, []byte{0xfd, 0, 0, 0, 0, 0}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := requestFor(Stale{Local: netip.MustParseAddrPort(row.local), Peer: netip.MustParseAddrPort(row.peer),
				BoundDevice: 7, Cookie: 0x1122334455667788})
			b := r.Serialize()
			// struct inet_diag_req_v2: four bytes, states, then ports and addresses in network order.
			if len(b) != 56 || r.Len() != len(b) {
				t.Fatalf("the request has %d bytes and says %d, want 56", len(b), r.Len())
			}
			if b[0] != row.family || b[1] != unix.IPPROTO_UDP {
				t.Errorf("family %d, protocol %d", b[0], b[1])
			}
			if got := binary.BigEndian.Uint16(b[8:]); got != 40000 {
				t.Errorf("source port %d", got)
			}
			if got := binary.BigEndian.Uint16(b[10:]); got != 5353 {
				t.Errorf("destination port %d", got)
			}
			if !bytes.Equal(b[12:12+len(row.source)], row.source) {
				t.Errorf("source address % x", b[12:28])
			}
			if got := binary.NativeEndian.Uint32(b[44:]); got != 7 {
				t.Errorf("interface %d", got)
			}
			// The kernel compares the low half first.
			low, high := binary.NativeEndian.Uint32(b[48:]), binary.NativeEndian.Uint32(b[52:])
			if low != 0x55667788 || high != 0x11223344 {
				t.Errorf("cookie %x %x", low, high)
			}
		})
	}
}

func TestRecordsAreReadToTheEnd(t *testing.T) {
	want := []Stale{
		{NetnsInode: 4026531840, BackendID: 3, Local: netip.MustParseAddrPort("10.244.1.2:40000"),
			Peer: netip.MustParseAddrPort("10.244.1.53:53"), Cookie: 1 << 40,
			ServiceID: 5},
		{NetnsInode: 4026531841, BackendID: 4, Local: netip.MustParseAddrPort("[fd00::2]:40001"),
			Peer: netip.MustParseAddrPort("[fd00::53]:53"), BoundDevice: 2},
	}
	var b bytes.Buffer
	for _, s := range want {
		r := record{Cookie: s.Cookie, ServiceID: s.ServiceID, NetnsInode: s.NetnsInode, BackendID: s.BackendID,
			Local: maps.AddressOf(s.Local.Addr()),
			Peer:  maps.AddressOf(s.Peer.Addr()), LocalPort: s.Local.Port(), PeerPort: s.Peer.Port(),
			BoundDevice: s.BoundDevice}
		if err := binary.Write(&b, binary.NativeEndian, r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := decode(bytes.NewReader(b.Bytes()))
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("decode = %v, %v, want %v", got, err, want)
	}
	if _, err := decode(bytes.NewReader(b.Bytes()[:b.Len()-1])); err == nil {
		t.Error("a record that is cut off was not noticed")
	}
}

func TestANamespaceIsFoundByItsInode(t *testing.T) {
	dir := t.TempDir()
	wanted := map[uint32][]Stale{}
	for _, name := range []string{"cni-1", "cni-2"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		inode, err := inodeOf(path)
		if err != nil {
			t.Fatal(err)
		}
		if name == "cni-2" {
			wanted[inode] = nil
		}
	}
	wanted[1] = nil // not to be found
	found := finder{patterns: []string{filepath.Join(dir, "*")}}.find(wanted)
	if len(found) != 1 {
		t.Fatalf("found %v, want cni-2 alone", found)
	}
	for inode, path := range found {
		if _, ok := wanted[inode]; !ok || filepath.Base(path) != "cni-2" {
			t.Errorf("found %d at %s", inode, path)
		}
	}
}

func TestANamespaceThatIsAnotherByNowIsNotEntered(t *testing.T) {
	err := inNetns("/proc/self/ns/net", 1, func() { t.Error("entered") })
	if err == nil {
		t.Error("no error for an inode that is not the file's")
	}
}

func TestSocketsAreEndedUntilNoneIsListed(t *testing.T) {
	broken := errors.New("broken")
	for _, row := range []struct {
		name string
		// lists are how many sockets are listed at each look, ends how many are then ended.
		lists, ends []int
		listErr     error
		endErr      error
		ended       int
		fails       bool
	}{
		{name: "none", lists: []int{0}},
		{name: "all at once", lists: []int{3, 0}, ends: []int{3}, ended: 3},
		{name: "one after the other", lists: []int{3, 2, 1, 0}, ends: []int{1, 1, 1}, ended: 3},
		{name: "the process that led there had ended", lists: []int{2, 2, 2, 0}, ends: []int{0, 0, 2}, ended: 2},
		{name: "one that cannot be ended", lists: []int{2, 1, 1, 1}, ends: []int{1, 0, 0, 0}, ended: 1, fails: true},
		{name: "an error that lasts", lists: []int{1, 1, 1}, ends: []int{0, 0, 0}, endErr: broken, fails: true},
		{name: "they go while they cannot be ended", lists: []int{1, 0}, ends: []int{0}, endErr: broken},
		{name: "they cannot be listed", listErr: broken, fails: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			looks, ends := 0, 0
			ended, err := endAll(func() ([]Stale, error) {
				if row.listErr != nil {
					return nil, row.listErr
				}
				looks++
				return make([]Stale, row.lists[looks-1]), nil
			}, func([]Stale) (int, error) {
				ends++
				return row.ends[ends-1], row.endErr
			})
			if ended != row.ended || (err != nil) != row.fails || looks != len(row.lists) {
				t.Errorf("%d looks, %d ended, error %v; want %d, %d, %v", looks, ended, err, len(row.lists), row.ended, row.fails)
			}
			if cause := cmp.Or(row.listErr, row.endErr); row.fails && cause != nil && !errors.Is(err, cause) {
				t.Errorf("error %v, want %v", err, cause)
			}
		})
	}
}
