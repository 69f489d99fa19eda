// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/shunt-lb/shunt/pkg/loader"
	"golang.org/x/sys/unix"
)

// LinksName is the directory of the links in the pin directory.
const LinksName = "links"

// Sockets attaches the programs to a cgroup, each by a link pinned in the locked pin directory. A program that is
// attached there already is replaced in one step. On an error some hooks may have the new program and others the
// old one; calling again goes on.
func Sockets(d *loader.Directory, cgroup string, programs []loader.Program) error {
	id, err := cgroupID(cgroup)
	if err != nil {
		return err
	}
	directory := filepath.Join(d.Path, LinksName)
	if err := os.Mkdir(directory, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make directory of links: %w", err)
	}
	for _, p := range programs {
		if err := socket(filepath.Join(directory, p.Name), cgroup, id, p); err != nil {
			return fmt.Errorf("attach %s to %s: %w", p.Name, cgroup, err)
		}
	}
	return nil
}

func socket(path, cgroup string, id uint64, p loader.Program) error {
	updated, err := update(path, p.Program, func(info *link.Info) (bool, error) {
		on := info.Cgroup()
		return on != nil && on.CgroupId == id && ebpf.AttachType(on.AttachType) == p.Attach, nil
	})
	if updated || err != nil {
		return err
	}
	// The new link is there before the old one goes: a connect meets one of them, or both, which is as good: the second
	// finds an address that is no frontend.
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: p.Attach, Program: p.Program})
	if err != nil {
		return err
	}
	defer l.Close()
	return pin(l, path)
}

// update replaces the program of a link that is pinned, alive, and where it should be.
func update(path string, program *ebpf.Program, inPlace func(*link.Info) (bool, error)) (bool, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open link: %w", err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("read link: %w", err)
	}
	if is, err := inPlace(info); err != nil || !is {
		return false, err
	}
	if err := l.Update(program); err != nil {
		return false, fmt.Errorf("replace program: %w", err)
	}
	return true, nil
}

// halfMade ends the name of a link that is not yet in its place. A bpffs takes no dots in names.
const halfMade = "-new"

// pin puts a link in the place of one that may be there, in one step.
func pin(l link.Link, path string) error {
	fresh := path + halfMade
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove half-made pin: %w", err)
	}
	if err := l.Pin(fresh); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

// Attachment is one pinned link.
type Attachment struct {
	Name    string
	Program ebpf.ProgramID
	// CgroupID is that of the cgroup, 0 when the link is dead: its cgroup has been removed.
	CgroupID uint64
}

// List tells what is attached, from the links pinned in <bpffs>/shunt. It needs no lock.
func List(bpffs string) ([]Attachment, error) {
	directory := filepath.Join(bpffs, loader.DirectoryName, LinksName)
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("read directory of links: %w (%w)", loader.ErrPermission, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read directory of links: %w", err)
	}
	var attachments []Attachment
	for _, e := range entries {
		if e.IsDir() || strings.HasSuffix(e.Name(), halfMade) {
			continue
		}
		a, err := inspect(filepath.Join(directory, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read link %s: %w", e.Name(), err)
		}
		attachments = append(attachments, a)
	}
	return attachments, nil
}

func inspect(path string) (Attachment, error) {
	// The kernel opens pinned links for reading and writing alone, whatever is done with them.
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return Attachment{}, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return Attachment{}, err
	}
	a := Attachment{Name: filepath.Base(path), Program: info.Program}
	if on := info.Cgroup(); on != nil {
		a.CgroupID = on.CgroupId
	}
	return a, nil
}

// Verify returns an error that names each of the programs that is not attached to the cgroup by a live link.
func Verify(bpffs, cgroup string, programs []string) error {
	id, err := cgroupID(cgroup)
	if err != nil {
		return err
	}
	attachments, err := List(bpffs)
	if err != nil {
		return err
	}
	state := map[string]uint64{}
	for _, a := range attachments {
		state[a.Name] = a.CgroupID
	}
	var errs []error
	for _, name := range programs {
		on, there := state[name]
		switch {
		case !there:
			errs = append(errs, fmt.Errorf("program %s is not attached", name))
		case on == 0:
			errs = append(errs, fmt.Errorf("program %s was attached to a cgroup that is gone", name))
		case on != id:
			errs = append(errs, fmt.Errorf("program %s is attached to another cgroup (id %d, not %d)", name, on, id))
		}
	}
	return errors.Join(errs...)
}

// Detach takes all programs off the cgroup: it removes the pinned links, and with them the programs.
func Detach(d *loader.Directory) error {
	directory := filepath.Join(d.Path, LinksName)
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read directory of links: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		if err := detach(filepath.Join(directory, e.Name())); err != nil {
			return fmt.Errorf("detach %s: %w", e.Name(), err)
		}
	}
	return nil
}

// DetachAll takes all programs off everything.
func DetachAll(d *loader.Directory) error {
	if err := Detach(d); err != nil {
		return err
	}
	if err := DetachPackets(d); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(d.Path, LinksName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove directory of links: %w", err)
	}
	return nil
}

// detach takes the program off at once: without its pin the kernel would do so too, some time later.
func detach(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return fmt.Errorf("open link: %w", err)
	}
	defer l.Close()
	if err := l.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove link: %w", err)
	}
	return nil
}

// Cleanup removes all that shunt has in a bpffs: links first, so that no program works on maps that are half gone. It
// is refused while an agent runs (loader.ErrLocked).
func Cleanup(bpffs string) error {
	d, err := loader.Lock(bpffs)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := DetachAll(d); err != nil {
		return err
	}
	return loader.RemovePins(d)
}
