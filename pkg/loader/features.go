// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// Features is what the programs do without where the kernel lacks it.
type Features struct {
	// SetRetval (5.18): a refused connect or sendmsg fails with the right errno. Without it a connect is led to a
	// closed port of loopback, and a sendmsg fails with EPERM.
	SetRetval bool
	// ReadKernel (no lockdown in mode confidentiality): session affinity and source ranges know a
	// pod's address. Without it affinity goes by network namespace, and a load-balancer address with source ranges is
	// not translated in the socket.
	ReadKernel bool
}

// Probe asks the kernel.
func Probe() (Features, error) {
	setRetval, err := haveHelper(asm.FnSetRetval)
	if err != nil {
		return Features{}, err
	}
	readKernel, err := haveHelper(asm.FnProbeReadKernel)
	// Some kernels that know the helper and do not let this process use it say just this.
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return Features{}, err
	}
	return Features{SetRetval: setRetval, ReadKernel: readKernel}, nil
}

func haveHelper(helper asm.BuiltinFunc) (bool, error) {
	err := features.HaveProgramHelper(ebpf.CGroupSockAddr, helper)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ebpf.ErrNotSupported):
		return false, nil
	}
	return false, fmt.Errorf("ask the kernel for helper %v: %w", helper, permission(err))
}

// mayComputeWithPointers tells whether the verifier lets this process's programs add to pointers, as most of them do.
func mayComputeWithPointers() bool {
	var sets [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]); err != nil {
		return true // the verifier's own words are all there is to tell
	}
	effective := uint64(sets[1].Effective)<<32 | uint64(sets[0].Effective)
	return effective&(1<<unix.CAP_PERFMON|1<<unix.CAP_SYS_ADMIN) != 0
}

// netnsCookie returns the cookie of the caller's network namespace.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the cookie of the node's network namespace (Linux 5.14 and later have it): %w", err)
	}
	return cookie, nil
}
