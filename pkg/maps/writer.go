// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"
)

// Writer changes what is programmed. Each method takes many elements and writes them in order; it returns how many
// were written before the first that failed, and that one's error: elements after it were not tried. Writing an
// element that is there replaces it, deleting one that is not there succeeds.
//
// One Writer at a time writes a set of maps: the agent holds a lock on the pin directory.
type Writer interface {
	PutServices(keys []Frontend, values []Service) (int, error)
	DeleteServices(keys []Frontend) (int, error)
	PutBackends(backends []Backend) (int, error)
	DeleteBackends(ids []uint32) (int, error)
	// PutSlots writes the cells from base on. The caller sees to it that nobody reads these cells.
	PutSlots(base uint32, ids []uint32) error
	PutAddresses(keys []Address, values []AddressFlags) (int, error)
	DeleteAddresses(keys []Address) (int, error)
	PutServiceNames(ids []uint32, names []ServiceName) (int, error)
	DeleteServiceNames(ids []uint32) (int, error)
	PutSourceRanges(ranges []SourceRange) (int, error)
	DeleteSourceRanges(ranges []SourceRange) (int, error)
	// ResetServiceStats sets the counters of ids to zero on all CPUs.
	ResetServiceStats(ids []uint32) (int, error)
	PutMeta(Meta) error
	// Capacity returns how many elements each map can hold, by map name.
	Capacity() map[string]uint32
}

// The names of the maps, which are also those of their pins.
const (
	MapServices     = "services"
	MapBackends     = "backends"
	MapSlots        = "slots"
	MapAddresses    = "addresses"
	MapAffinity     = "affinity"
	MapSourceRanges = "source_ranges"
	MapServiceNames = "service_names"
	MapServiceStats = "service_stats"
	MapDrops        = "drops"
	MapMeta         = "meta"
)

// ErrFull is what each FullError is.
var ErrFull = errors.New("map is full")

// FullError tells that a map has no room for an element. What is programmed is unaffected.
type FullError struct {
	Map  string
	Size uint32
}

// Error names the map, its size and the flag that raises it.
func (e *FullError) Error() string {
	return fmt.Sprintf("map %s is full at %d elements: raise %s", e.Map, e.Size, e.Flag())
}

// Is makes a FullError an ErrFull.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// Flag returns the agent's flag that sets the map's size.
func (e *FullError) Flag() string {
	switch e.Map {
	case MapBackends:
		return "--max-backends"
	case MapSlots:
		return "--max-slots"
	case MapSourceRanges:
		return "--max-source-ranges"
	}
	return "--max-services" // services, and all that are sized by it
}
