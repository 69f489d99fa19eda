// SPDX-License-Identifier: Apache-2.0

package packetpath

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/shunt-lb/shunt/pkg/attach"
)

// attachments are the packet programs on the node's devices.
func (w *world) attachments() (list []attach.PacketAttachment) {
	w.T.Helper()
	w.Must(w.Node.Do(func() (err error) {
		list, err = attach.ListPackets(w.Node.BPFFS)
		return err
	}))
	return list
}

// programIDs are the programs that are attached.
func (w *world) programIDs() map[ebpf.ProgramID]bool {
	w.T.Helper()
	ids := map[ebpf.ProgramID]bool{}
	for _, a := range w.attachments() {
		ids[a.Program] = true
	}
	return ids
}

// attached counts the packet programs on each device of the node, by name.
func (w *world) attached() map[string]int {
	w.T.Helper()
	links, err := w.Node.Netlink().LinkList()
	w.Must(err)
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	programs := map[string]int{}
	for _, a := range w.attachments() {
		name, ok := names[a.Device]
		if !ok {
			name = fmt.Sprintf("device %d, which is gone", a.Device)
		}
		programs[name]++
	}
	return programs
}

// awaitAttached waits until every veth of the node has both programs, once, and nothing else has any.
func (w *world) awaitAttached() {
	w.T.Helper()
	w.Eventually("the devices have the programs", func() (bool, string) {
		var want []string
		links, err := w.Node.Netlink().LinkList()
		w.Must(err)
		for _, l := range links {
			if l.Type() == "veth" {
				want = append(want, l.Attrs().Name+":2")
			}
		}
		var got []string
		for name, count := range w.attached() {
			got = append(got, fmt.Sprintf("%s:%d", name, count))
		}
		slices.Sort(want)
		slices.Sort(got)
		return slices.Equal(got, want), fmt.Sprintf("%v, want %v", got, want)
	})
}
