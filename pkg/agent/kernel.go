// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"

	"github.com/shunt-lb/shunt/pkg/model"
)

// kernelFamilies returns the families that this kernel has.
func kernelFamilies() []model.Family {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return []model.Family{model.IPv4}
	}
	disabled, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && len(disabled) > 0 && disabled[0] == '1' {
		return []model.Family{model.IPv4}
	}
	return []model.Family{model.IPv4, model.IPv6}
}
