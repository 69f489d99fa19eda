// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// Options are what Load needs to know.
type Options struct {
	// Directory is the locked pin directory.
	Directory *Directory
	Capacity  Capacity
	// NetnsCookie is that of the node's network namespace; 0: the caller's own.
	NetnsCookie uint64
	// NodeAddress4 and NodeAddress6 are what source ranges judge the node's own processes by; invalid: the first
	// address that the namespace has.
	NodeAddress4, NodeAddress6 netip.Addr
	// UDPIdle is how long an unconnected UDP socket keeps an unused backend; 0: DefaultUDPIdle.
	UDPIdle time.Duration
	// LoopbackNodePorts serves node ports on loopback to the node's own processes.
	LoopbackNodePorts bool
	// HostOnly translates the node's own sockets alone.
	HostOnly bool
	// RefuseBind makes a bind to a port that a node port uses fail with EADDRINUSE.
	RefuseBind bool
	// Without makes the programs do without what the kernel has: the way older kernels take.
	Without Features
	// Log receives the verifier's words at level Debug, when a program is refused.
	Log *slog.Logger
}

// DefaultUDPIdle is how long the kernel's own connection tracking remembers a UDP flow that had replies.
const DefaultUDPIdle = 120 * time.Second

// Program is one loaded program and the hook that it is for.
type Program struct {
	Name   string
	Attach ebpf.AttachType
	*ebpf.Program
}

// Datapath is the programs and maps, in the kernel. Nothing is attached yet.
type Datapath struct {
	Programs []Program
	// Maps are all maps by name; all are pinned in the pin directory.
	Maps map[string]*ebpf.Map
	// Fresh tells that nothing was pinned before.
	Fresh bool
	// Resized are the maps that could not be given the size that was asked for; see Resize.
	Resized  []Resize
	Features Features

	directory *Directory
	// asked are the maps whose size was asked for; the others keep the size that they have.
	asked map[string]bool
}

// Load brings the programs into the kernel, over the maps that are pinned in the directory or, where there are none,
// over new ones.
func Load(o Options) (*Datapath, error) {
	has, err := Probe()
	if err != nil {
		return nil, err
	}
	has.SetRetval = has.SetRetval && !o.Without.SetRetval
	has.ReadKernel = has.ReadKernel && !o.Without.ReadKernel
	spec, err := specOf(o, has)
	if err != nil {
		return nil, err
	}
	d := &Datapath{
		Maps: map[string]*ebpf.Map{}, Features: has, directory: o.Directory, asked: o.Capacity.asked(),
	}
	if err := d.load(spec, o.Log); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Datapath) load(spec *ebpf.CollectionSpec, log *slog.Logger) error {
	if err := d.openMaps(spec); err != nil {
		return err
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: d.Maps})
	if err != nil {
		return programError(err, log)
	}
	for name, p := range spec.Programs {
		d.Programs = append(d.Programs, Program{Name: name, Attach: p.AttachType, Program: collection.DetachProgram(name)})
	}
	collection.Close()
	slices.SortFunc(d.Programs, func(a, b Program) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// Close closes programs and maps; what is pinned and attached stays.
func (d *Datapath) Close() error {
	var errs []error
	for _, p := range d.Programs {
		errs = append(errs, p.Program.Close())
	}
	for _, m := range d.Maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// specOf returns the programs with their settings, and the maps that they or the commands use, with their sizes.
func specOf(o Options, has Features) (*ebpf.CollectionSpec, error) {
	spec, err := loadSock()
	if err != nil {
		return nil, fmt.Errorf("read the compiled programs: %w", err)
	}
	values, err := settingsOf(o, has)
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["settings"].Set(values); err != nil {
		return nil, fmt.Errorf("set settings: %w", err)
	}
	m, err := thisMachine()
	if err != nil {
		return nil, err
	}
	keepMaps(spec)
	for name, entries := range o.Capacity.withDefaults(m).entries() {
		spec.Maps[name].MaxEntries = entries
	}
	return spec, nil
}

// keepMaps leaves out the maps of other programs: each object declares all.
func keepMaps(spec *ebpf.CollectionSpec) {
	used := map[string]bool{maps.MapServiceNames: true, maps.MapMeta: true}
	for _, p := range spec.Programs {
		for _, ins := range p.Instructions {
			if ins.IsLoadFromMap() {
				used[ins.Reference()] = true
			}
		}
	}
	for name := range spec.Maps {
		if !used[name] {
			delete(spec.Maps, name)
		}
	}
}

// ProgramError tells that the kernel refused a program. The verifier's log, which is for developers, goes to the debug
// log.
type ProgramError struct {
	Program string
	Cause   error
}

// Error names the program and what a user can do.
func (e *ProgramError) Error() string {
	return fmt.Sprintf("load program %s: this kernel's verifier refuses it (%v): start with --v=4 and report the log "+
		"together with the kernel's version", e.Program, e.Cause)
}

// Unwrap returns the kernel's errno.
func (e *ProgramError) Unwrap() error { return e.Cause }

var programName = regexp.MustCompile(`program (\w+):`)

func programError(err error, log *slog.Logger) error {
	name := "unknown"
	if m := programName.FindStringSubmatch(err.Error()); m != nil {
		name = m[1]
	}
	var verifier *ebpf.VerifierError
	isVerifier := errors.As(err, &verifier)
	if isVerifier && log != nil {
		log.Debug("the verifier refused a program", "program", name, "log", fmt.Sprintf("%+v", verifier))
	}
	switch {
	case !mayComputeWithPointers():
		// The kernel's words do not point to it: they are about the first program that does so.
		return fmt.Errorf("load programs: %w (%w)", ErrPermission, err)
	case isVerifier:
		return &ProgramError{Program: name, Cause: verifier.Cause}
	}
	return fmt.Errorf("load programs: %w", permission(err))
}
