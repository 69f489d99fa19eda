// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// Stale is a connected UDP socket whose backend may no longer be used (struct stale_socket).
type Stale struct {
	// Cookie is what the kernel knows the socket by: another one may have its addresses by now.
	Cookie      uint64
	NetnsInode  uint32
	ServiceID   uint32
	BackendID   uint32
	Local, Peer netip.AddrPort
	BoundDevice uint32
}

// record is struct stale_socket.
type record struct {
	Cookie      uint64
	NetnsInode  uint32
	ServiceID   uint32
	BackendID   uint32
	BoundDevice uint32
	Local       maps.Address
	Peer        maps.Address
	LocalPort   uint16
	PeerPort    uint16
	_           uint32
}

// Ender lists and ends stale sockets.
type Ender struct {
	iterator *ebpf.Program
	sockets  *ebpf.Map
	finder   finder
}

// NewEnder loads the iterator over the maps backends and socket_flows, which stay the caller's.
func NewEnder(backends, sockets *ebpf.Map) (*Ender, error) {
	spec, err := loadStale()
	if err != nil {
		return nil, fmt.Errorf("read the compiled iterator: %w", err)
	}
	// Each object declares all maps; the program uses one of them, and the iterator is given the other.
	spec.Maps = map[string]*ebpf.MapSpec{maps.MapBackends: spec.Maps[maps.MapBackends]}
	spec.Maps[maps.MapBackends].MaxEntries = backends.MaxEntries()
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{maps.MapBackends: backends},
	})
	if err != nil {
		return nil, fmt.Errorf("load the iterator over sockets (Linux 5.12 and later have it): %w", err)
	}
	defer collection.Close()
	return &Ender{iterator: collection.DetachProgram("iter_stale"), sockets: sockets, finder: hostFinder()}, nil
}

// Close unloads the iterator.
func (e *Ender) Close() error { return e.iterator.Close() }

// List returns the stale sockets of this moment, of all network namespaces.
func (e *Ender) List() ([]Stale, error) {
	iterator, err := link.AttachIter(link.IterOptions{Program: e.iterator, Map: e.sockets})
	if err != nil {
		return nil, fmt.Errorf("list stale sockets: %w", err)
	}
	defer iterator.Close()
	reader, err := iterator.Open()
	if err != nil {
		return nil, fmt.Errorf("list stale sockets: %w", err)
	}
	defer reader.Close()
	return decode(reader)
}

// decode reads records to the end.
func decode(reader io.Reader) ([]Stale, error) {
	var list []Stale
	for {
		var r record
		err := binary.Read(reader, binary.NativeEndian, &r)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return list, fmt.Errorf("read stale sockets: %w", err)
		}
		list = append(list, Stale{
			Cookie:      r.Cookie,
			NetnsInode:  r.NetnsInode,
			ServiceID:   r.ServiceID,
			BackendID:   r.BackendID,
			Local:       netip.AddrPortFrom(r.Local.Addr(), r.LocalPort),
			Peer:        netip.AddrPortFrom(r.Peer.Addr(), r.PeerPort),
			BoundDevice: r.BoundDevice,
		})
	}
}

// EndStale ends the stale sockets, but for those that keep speaks for, and returns how many it has ended. What the
// error is about is left: a socket whose namespace is not to be found or not to be entered. The others are ended all
// the same.
func (e *Ender) EndStale(keep func(Stale) bool) (int, error) {
	list := func() ([]Stale, error) {
		all, err := e.List()
		return slices.DeleteFunc(all, keep), err
	}
	return endAll(list, e.end)
}

// idleRounds is how often the sockets are listed again although none could be ended.
const idleRounds = 3

// endAll ends sockets until none is listed. Once is not enough: a namespace is entered through a process that may have
// ended while others in it go on, and of sockets with the same addresses the kernel finds one at a time.
func endAll(list func() ([]Stale, error), end func([]Stale) (int, error)) (int, error) {
	ended, idle := 0, 0
	for {
		stale, err := list()
		if err != nil || len(stale) == 0 {
			return ended, err
		}
		n, err := end(stale)
		if ended += n; n > 0 {
			idle = 0
			continue
		}
		if idle++; idle == idleRounds {
			return ended, cmp.Or(err, fmt.Errorf("end UDP socket %s -> %s: it cannot be reached in its network namespace",
				stale[0].Local, stale[0].Peer))
		}
	}
}

// end ends sockets, each in its namespace.
func (e *Ender) end(stale []Stale) (int, error) {
	byNetns := map[uint32][]Stale{}
	for _, s := range stale {
		byNetns[s.NetnsInode] = append(byNetns[s.NetnsInode], s)
	}
	ended := 0
	var failed []error
	paths := e.finder.find(byNetns)
	for inode, sockets := range byNetns {
		path, found := paths[inode]
		if !found {
			failed = append(failed, fmt.Errorf("end %d UDP sockets in network namespace %d: %w",
				len(sockets), inode, errNoNetns))
			continue
		}
		n, err := endIn(path, inode, sockets)
		ended += n
		if err != nil {
			failed = append(failed, err)
		}
	}
	return ended, errors.Join(failed...)
}

var errNoNetns = errors.New("the namespace is not below /proc nor among the CNI's in /run/netns: " +
	"give the agent hostPID, or mount the host's /run/netns")

// endIn ends sockets in the namespace at path.
func endIn(path string, inode uint32, sockets []Stale) (int, error) {
	ended := 0
	var failed []error
	err := inNetns(path, inode, func() {
		for _, s := range sockets {
			switch err := destroy(s); {
			case err == nil:
				ended++
			case errors.Is(err, unix.ENOENT): // its owner was faster, or another one with its addresses stands before it
			default:
				failed = append(failed, err)
			}
		}
	})
	if errors.Is(err, fs.ErrNotExist) {
		return ended, nil // the process that led there has ended: the next look finds another one, or no socket
	}
	return ended, errors.Join(append(failed, err)...)
}
