// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/attach"
)

func probeBTF() error {
	_, err := btf.LoadKernelSpec()
	return err
}

// probeFeatures tries what the programs use and not every kernel has.
func probeFeatures() []Feature {
	list := []Feature{
		{
			Name: "programs that change the address of a socket call", Since: "4.17", Required: true,
			Need: "nothing can be translated",
			Err:  features.HaveProgramType(ebpf.CGroupSockAddr),
		},
		{
			Name: "memory in a socket for cgroup programs", Since: "5.8", Required: true,
			Need: "replies and getpeername(2) cannot show the Service's address",
			Err:  features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnSkStorageGet),
		},
		{
			Name: "cookies of network namespaces in programs", Since: "5.8", Required: true,
			Need: "the node's own processes cannot be told from pods",
			Err:  features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnGetNetnsCookie),
		},
		{
			Name: "ring buffers", Since: "5.8", Required: true, Need: "nothing can be traced",
			Err: features.HaveMapType(ebpf.RingBuf),
		},
		{
			Name: "bpf_set_retval", Since: "5.18",
			Need: "a send to a Service without endpoints fails with EPERM, not ECONNREFUSED, and a dropped connect with " +
				"ECONNREFUSED, not ETIMEDOUT",
			Err: features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnSetRetval),
		},
		{
			Name: "programs that read kernel memory", Since: "5.8",
			Need: "session affinity goes by network namespace instead of address, and load-balancer addresses with " +
				"loadBalancerSourceRanges are not translated in sockets",
			Advice: "give the agent CAP_PERFMON, and boot without lockdown=confidentiality",
			Err:    features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnProbeReadKernel),
		},
		{
			Name: "an iterator over the sockets that a map knows", Since: "5.10",
			Need: "connected UDP sockets stay with a backend that is gone",
			Err:  haveFunction("bpf_iter_bpf_sk_storage_map"),
		},
		{
			Name: "TCX links", Since: "6.6",
			Need: "nothing of this version needs them; translation in packets, which is to come, will use clsact filters",
			Err:  haveTCX(),
		},
	}
	for i, f := range list {
		list[i].Unknown = f.Err != nil && !errors.Is(f.Err, ebpf.ErrNotSupported)
	}
	return list
}

// haveFunction looks for a function in the kernel's description of itself.
func haveFunction(name string) error {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return err
	}
	var f *btf.Func
	if err := spec.TypeByName(name, &f); err != nil {
		return fmt.Errorf("kernel function %s: %w", name, ebpf.ErrNotSupported)
	}
	return nil
}

// haveTCX asks for the programs on the loopback device.
func haveTCX() error {
	const loopback = 1
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("TCX: %w", ebpf.ErrNotSupported)
	}
	return err
}

// hook is a place in a cgroup where shunt attaches.
type hook struct {
	name   string
	attach ebpf.AttachType
}

func hooks() []hook {
	return []hook{
		{"connect4", ebpf.AttachCGroupInet4Connect},
		{"connect6", ebpf.AttachCGroupInet6Connect},
		{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg},
		{"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
		{"recvmsg4", ebpf.AttachCGroupUDP4Recvmsg},
		{"recvmsg6", ebpf.AttachCGroupUDP6Recvmsg},
		{"getpeername4", ebpf.AttachCgroupInet4GetPeername},
		{"getpeername6", ebpf.AttachCgroupInet6GetPeername},
		{"post_bind4", ebpf.AttachCGroupInet4PostBind},
		{"post_bind6", ebpf.AttachCGroupInet6PostBind},
	}
}

// readLinks reads the pinned links and finds where they are attached.
func readLinks(bpffs, root string) ([]Link, error) {
	attachments, err := attach.List(bpffs)
	if err != nil {
		return nil, err
	}
	cgroups := cgroupFinder{root: root}
	links := make([]Link, 0, len(attachments))
	for _, a := range attachments {
		l := Link{Program: a.Name, ProgramID: uint32(a.Program)}
		l.Cgroup, l.Root = cgroups.find(a.CgroupID)
		if l.Cgroup != "" {
			if l.Hook, err = hookOf(l.Cgroup, a.Program); err != nil {
				return nil, err
			}
		}
		links = append(links, l)
	}
	return links, nil
}

// hookOf finds the hook of a cgroup that has a program; empty for none.
func hookOf(cgroup string, program ebpf.ProgramID) (string, error) {
	for _, h := range hooks() {
		programs, err := programsAt(cgroup, h.attach)
		if err != nil {
			return "", err
		}
		if slices.Contains(programs, program) {
			return h.name, nil
		}
	}
	return "", nil
}

// programsAt lists the programs attached to one cgroup itself; none in a hook that this kernel does not have.
func programsAt(cgroup string, attach ebpf.AttachType) ([]ebpf.ProgramID, error) {
	dir, err := os.Open(cgroup)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	result, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: attach})
	if errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("query programs of %s: %w", cgroup, err)
	}
	ids := make([]ebpf.ProgramID, len(result.Programs))
	for i, p := range result.Programs {
		ids[i] = p.ID
	}
	return ids, nil
}

// cgroupFinder finds the path of a cgroup id, which is its directory's inode number.
type cgroupFinder struct {
	root  string
	known map[uint64]string
}

// find looks at the root first, and walks the hierarchy once for cgroups that are not.
func (f *cgroupFinder) find(id uint64) (path string, root bool) {
	if id == 0 || f.root == "" {
		return "", false
	}
	if inode(f.root) == id {
		return f.root, true
	}
	if f.known == nil {
		f.known = map[uint64]string{}
		// Cgroups come and go meanwhile: what cannot be read is passed over.
		_ = filepath.WalkDir(f.root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				f.known[inode(path)] = path
			}
			return nil
		})
	}
	return f.known[id], false
}

func inode(path string) uint64 {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return 0
	}
	return s.Ino
}

// foreignPrograms lists the programs at the root of the cgroup hierarchy that are none of shunt's links.
func foreignPrograms(root string, own []Link) ([]Program, error) {
	if root == "" {
		return nil, nil
	}
	var found []Program
	for _, h := range hooks() {
		ids, err := programsAt(root, h.attach)
		if err != nil {
			return found, err
		}
		for _, id := range ids {
			if slices.ContainsFunc(own, func(l Link) bool { return l.ProgramID == uint32(id) }) {
				continue
			}
			found = append(found, Program{ID: uint32(id), Name: programName(id), Hook: h.name})
		}
	}
	return found, nil
}

// programName asks for a program's name, which is empty when it has ended meanwhile.
func programName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}
