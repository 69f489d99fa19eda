// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/attach"
)

// The words of the checks.
const (
	wordPrivileges = "privileges"
	wordKernel     = "kernel"
	wordBTF        = "kernel-btf"
	wordFeature    = "kernel-feature"
	wordCgroup     = "cgroup"
	wordBPFFS      = "bpffs"
)

// checkPrivileges looks for what the agent needs. CAP_SYS_ADMIN contains the other two.
func checkPrivileges(f Facts) []Finding {
	if f.CapabilitiesErr != nil {
		return []Finding{fail(wordPrivileges, "mount /proc", "cannot tell: %v", f.CapabilitiesErr)}
	}
	needed := []struct {
		number int
		name   string
	}{
		{unix.CAP_BPF, "CAP_BPF"}, {unix.CAP_PERFMON, "CAP_PERFMON"}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
	}
	var missing []string
	for _, c := range needed {
		implied := c.number != unix.CAP_NET_ADMIN && f.Capabilities.Has(unix.CAP_SYS_ADMIN)
		if !f.Capabilities.Has(c.number) && !implied {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return []Finding{fail(wordPrivileges, "run as root, or add the capabilities to the container's securityContext",
			"missing %s; what needs them is not checked", strings.Join(missing, ", "))}
	}
	return []Finding{pass(wordPrivileges, "CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN")}
}

// The oldest kernel that has all that is required.
const (
	minMajor = 5
	minMinor = 14
)

func checkKernel(f Facts) []Finding {
	if !f.Kernel.AtLeast(minMajor, minMinor) {
		return []Finding{fail(wordKernel, "upgrade to Linux 5.14 or later", "Linux %s is too old", f.Kernel.Release)}
	}
	return []Finding{pass(wordKernel, "Linux %s", f.Kernel.Release)}
}

func checkBTF(f Facts) []Finding {
	if f.BTFErr != nil {
		return []Finding{fail(wordBTF, "use a kernel with CONFIG_DEBUG_INFO_BTF=y (all large distributions' have it)",
			"the kernel does not describe its types: %v", f.BTFErr)}
	}
	return []Finding{pass(wordBTF, "the kernel describes its types")}
}

func checkFeatures(f Facts) []Finding {
	var findings []Finding
	for _, feature := range f.Features {
		switch {
		case feature.Err == nil:
			findings = append(findings, pass(wordFeature, "%s (Linux %s)", feature.Name, feature.Since))
		case feature.Unknown:
			findings = append(findings, warn(wordFeature, "", "%s: cannot tell: %v", feature.Name, feature.Err))
		case feature.Required:
			findings = append(findings, fail(wordFeature, feature.advice(), "no %s: %s", feature.Name, feature.Need))
		default:
			findings = append(findings, warn(wordFeature, feature.advice(), "no %s: %s", feature.Name, feature.Need))
		}
	}
	return findings
}

// advice is what to do to have a feature.
func (f Feature) advice() string {
	if f.Advice != "" {
		return f.Advice
	}
	return "it needs Linux " + f.Since + " or later"
}

func checkCgroup(f Facts) []Finding {
	switch {
	case errors.Is(f.CgroupErr, attach.ErrNoCgroup):
		return []Finding{fail(wordCgroup, "mount -t cgroup2 none /sys/fs/cgroup, or boot with "+
			"systemd.unified_cgroup_hierarchy=1", "cgroup v2 is not mounted: there is nothing to attach to")}
	case f.CgroupErr != nil:
		return []Finding{fail(wordCgroup, "", "%v", f.CgroupErr)}
	}
	return []Finding{pass(wordCgroup, "cgroup v2 is mounted at %s", f.CgroupRoot)}
}

func checkBPFFS(f Facts) []Finding {
	switch {
	case f.BPFFSErr != nil:
		return []Finding{fail(wordBPFFS, "give the right place with --bpffs", "cannot look at %s: %v", f.BPFFS, f.BPFFSErr)}
	case !f.BPFFSMounted:
		return []Finding{fail(wordBPFFS, "mount -t bpf bpf "+f.BPFFS,
			"%s is not a BPF file system: there is nowhere to keep the maps", f.BPFFS)}
	}
	return []Finding{pass(wordBPFFS, "mounted at %s", f.BPFFS)}
}
