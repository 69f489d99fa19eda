// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	"github.com/shunt-lb/shunt/pkg/attach"
	"github.com/shunt-lb/shunt/pkg/kubeproxy"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// Facts is what the checks judge. An error beside a fact tells that it could not be read.
type Facts struct {
	Capabilities    Capabilities
	CapabilitiesErr error

	Kernel   Version
	BTFErr   error
	Features []Feature

	// CgroupRoot is the root of the cgroup v2 hierarchy.
	CgroupRoot string
	CgroupErr  error

	// BPFFS is where the BPF file system should be.
	BPFFS        string
	BPFFSMounted bool
	BPFFSErr     error

	// Pins is shunt's directory.
	Pins string
	// Holder is the process that holds the lock on Pins; 0 when nobody does.
	Holder    int
	HolderErr error
	Health    Health
	// MapsErr is why the pinned maps cannot be read; Usage is their fill.
	MapsErr error
	Usage   map[string]maps.Usage
	// Links are the pinned links.
	Links    []Link
	LinksErr error
	// Packets are the packet programs on devices.
	Packets    []attach.PacketAttachment
	PacketsErr error

	// KubeProxyPIDs are processes of that name.
	KubeProxyPIDs []int
	KubeProxy     kubeproxy.State
	KubeProxyErr  error
	// Foreign are others' programs in the hooks that shunt uses.
	Foreign    []Program
	ForeignErr error
}

// Capabilities is a set of Linux capabilities, by number.
type Capabilities uint64

// Has tells whether capability n is in the set.
func (c Capabilities) Has(n int) bool { return c>>n&1 == 1 }

// Version is a kernel's version.
type Version struct {
	Major, Minor int
	// Release is the whole string, as uname prints it.
	Release string
}

// AtLeast compares versions.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Feature is something the kernel may have.
type Feature struct {
	Name string
	// Since is the version that introduced it.
	Since string
	// Need says what is lost without it.
	Need string
	// Advice is what to do beside upgrading, where that helps.
	Advice string
	// Required: without it shunt does not work.
	Required bool
	// Err is nil when the kernel has it.
	Err error
	// Unknown: Err tells why it could not be tried.
	Unknown bool
}

// Health is the answer of the agent's health server.
type Health struct {
	URL    string
	Status int
	Err    error
}

// Link is one of shunt's links.
type Link struct {
	// Program is the name of the pin, which is the program's.
	Program string
	// Hook is where in the cgroup the kernel has the program; empty: nowhere.
	Hook string
	// ProgramID is the program's id in this kernel.
	ProgramID uint32
	// Cgroup is the path of the cgroup, empty when it is gone, or outside the hierarchy that is mounted here.
	Cgroup string
	// Root: the cgroup is the root, so that every process passes the program.
	Root bool
}

// Program is a program in a hook.
type Program struct {
	ID   uint32
	Name string
	Hook string
}

// String names the program in a sentence.
func (p Program) String() string {
	return fmt.Sprintf("%s (id %d) in %s", p.Name, p.ID, p.Hook)
}
