// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// PacketSpec returns the programs of the packet path and all maps that they declare, as compiled.
func PacketSpec() (*ebpf.CollectionSpec, error) {
	spec, err := loadTc()
	if err != nil {
		return nil, fmt.Errorf("read the compiled packet programs: %w", err)
	}
	return spec, nil
}
