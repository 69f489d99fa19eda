// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strconv"
	"strings"

	"github.com/shunt-lb/shunt/pkg/attach"
)

const wordPackets = "packet-path"

// checkPackets looks at the devices that have the packet programs. None has: the packet path is off.
func checkPackets(f Facts) []Finding {
	if f.PacketsErr != nil {
		return []Finding{fail(wordPackets, "", "cannot read what is attached to devices: %v", f.PacketsErr)}
	}
	if len(f.Packets) == 0 {
		return nil
	}
	hooksOf := map[int]map[attach.Hook]bool{}
	for _, a := range f.Packets {
		if hooksOf[a.Device] == nil {
			hooksOf[a.Device] = map[attach.Hook]bool{}
		}
		hooksOf[a.Device][a.Hook] = true
	}
	var findings []Finding
	if len(hooksOf[0]) > 0 {
		findings = append(findings, warn(wordPackets, "start shunt agent, or restart it",
			"links are left of devices that have gone"))
		delete(hooksOf, 0)
	}
	var half []string
	for device, hooks := range hooksOf {
		if len(hooks) < 2 {
			half = append(half, strconv.Itoa(device))
		}
	}
	slices.Sort(half)
	if len(half) > 0 {
		findings = append(findings, fail(wordPackets, "start shunt agent, or restart it",
			"only one direction of these devices (by index) has a program: %s", strings.Join(half, ", ")))
	}
	if len(findings) == 0 {
		findings = append(findings, pass(wordPackets, "on %d devices, by %s", len(hooksOf), f.Packets[0].Mode))
	}
	return findings
}
