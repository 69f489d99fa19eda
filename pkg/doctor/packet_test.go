// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/maps"
)

func TestDevicesOfThePacketPath(t *testing.T) {
	t.Parallel()
	on := func(device int, hooks ...attach.Hook) (list []attach.PacketAttachment) {
		for _, h := range hooks {
			list = append(list, attach.PacketAttachment{Device: device, Hook: h, Mode: attach.TCX})
		}
		return list
	}
	both := on(2, attach.Ingress, attach.Egress)
	for _, c := range []struct {
		name   string
		facts  Facts
		status Status
		want   string
	}{
		{"all is well", Facts{Packets: both}, Pass, "on 1 devices, by tcx"},
		{"one direction", Facts{Packets: append(on(7, attach.Ingress), both...)}, Fail, "by index) has a program: 7"},
		{"gone", Facts{Packets: append(on(0, attach.Ingress, attach.Egress), both...)}, Warn, "devices that have gone"},
		{"unreadable", Facts{PacketsErr: errors.New("no permission")}, Fail, "no permission"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := checkPackets(c.facts)
			if len(got) != 1 || got[0].Status != c.status || !strings.Contains(got[0].Message, c.want) {
				t.Errorf("%+v, want %s %q", got, c.status, c.want)
			}
		})
	}
	if got := checkPackets(Facts{}); got != nil {
		t.Errorf("the packet path is off, and doctor says %v", got)
	}
}

func TestThePacketPathStandsInForSocketsThatAreLeftAlone(t *testing.T) {
	t.Parallel()
	f := healthy()
	f.Links = nil
	f.Packets = []attach.PacketAttachment{{Device: 2, Hook: attach.Ingress}, {Device: 2, Hook: attach.Egress}}
	if got := checkLinks(f); len(got) != 1 || got[0].Status != Pass {
		t.Errorf("%+v", got)
	}
	f.Links = healthy().Links[1:]
	if got := checkLinks(f); got[0].Status != Fail {
		t.Errorf("one link is missing: %+v", got)
	}
}

func TestAFullConntrackIsNormal(t *testing.T) {
	t.Parallel()
	f := healthy()
	f.Usage[maps.MapConntrack] = maps.Usage{Used: 100, Capacity: 100}
	for _, finding := range checkFill(f) {
		if finding.Status != Pass {
			t.Errorf("%+v", finding)
		}
	}
}
