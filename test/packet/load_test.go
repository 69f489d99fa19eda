// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

func TestManyConnectionsAtOnceAllSucceed(t *testing.T) {
	for _, v := range variants[:2] {
		t.Run(v.name, func(t *testing.T) {
			v.flows = 4096
			w := newWorld(t, v)
			near := w.node.Pod(lab.PodOptions{Name: "near"}).Process()
			far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
			pod := w.node.Pod(lab.PodOptions{Name: "client"}).Process()
			w.attach()
			const each = 300
			var series []*lab.Series
			for _, family := range []int{4, 6} {
				for _, c := range []*lab.Process{w.client, pod} {
					series = append(series, c.StartConnects(process.ConnectsRequest{
						Network: tcp, Address: w.nodePort(tcp, family, 30081, near, far), Count: each, Workers: 4}))
				}
			}
			for _, s := range series {
				got := s.Stop()
				if got.Total() != each || got.Failed() != 0 || got.Servers["near"] == 0 || got.Servers["far"] == 0 {
					t.Errorf("%+v", got)
				}
			}
			if counted := w.counted(); counted != "" {
				t.Errorf("counted: %s", counted)
			}
		})
	}
}

// Connections that have closed give way, so a small table holds any number one after the other; those in use do not.
func TestTableOfFewFlows(t *testing.T) {
	v := variants[0]
	v.flows = 64
	w := newWorld(t, v)
	near := w.node.Pod(lab.PodOptions{Name: "near"}).Process()
	far := w.far.Pod(lab.PodOptions{Name: "far"}).Process()
	w.attach()
	dialled := w.nodePort(tcp, 4, 30081, near, far)
	if got := w.client.Connects(tcp, dialled, 300); got.Total() != 300 {
		t.Fatalf("%+v\n%s", got, w.counted())
	}
	var open []*lab.Socket
	for range 64 {
		s := w.client.Dial(tcp, dialled)
		if !s.OK() {
			t.Fatalf("connection %d: %s\n%s", len(open), s.Errno, w.counted())
		}
		if answer := s.Exchange("hello"); !answer.OK() {
			t.Fatalf("connection %d: %s\n%s", len(open), answer.Errno, w.counted())
		}
		open = append(open, s)
	}
	if late := w.client.Dial(tcp, dialled); late.OK() {
		t.Error("a connection was made beyond the table's size")
	}
	if !strings.Contains(w.counted(), "conntrack_full") {
		t.Errorf("counted: %s", w.counted())
	}
	for i, s := range open {
		if answer := s.Exchange(fmt.Sprint(i)); !answer.OK() || answer.Text != fmt.Sprint(i) {
			t.Errorf("connection %d: %s", i, answer.Errno)
		}
	}
	for _, s := range open[:32] {
		s.Close()
	}
	if late := w.client.Dial(tcp, dialled); !late.OK() {
		t.Errorf("no connection after others have closed: %s\n%s", late.Errno, w.counted())
	}
}

// counted is what the programs have counted that is no part of a good day.
func (w *world) counted() string {
	text := ""
	counts, err := w.maps.Drops()
	w.must(err)
	for reason, n := range counts {
		if n > 0 {
			text += fmt.Sprintf(" %s %d", maps.ReasonWord(reason), n)
		}
	}
	return text
}
