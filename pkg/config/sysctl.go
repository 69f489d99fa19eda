// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
)

// The files of the kernel's connection tracking.
const (
	conntrackSysctls  = "/proc/sys/net/netfilter/"
	conntrackMaxFile  = conntrackSysctls + "nf_conntrack_max"
	conntrackHashFile = "/sys/module/nf_conntrack/parameters/hashsize"
	onlineCPUsFile    = "/sys/devices/system/cpu/online"
)

// conntrackMaxLimit bounds what a number of CPUs alone may ask for: 2^20 entries are about 300 MB.
const conntrackMaxLimit = 1 << 20

// Files reads and writes the kernel's settings.
type Files interface {
	ReadFile(name string) ([]byte, error)
	WriteFile(name string, data []byte) error
}

// OSFiles are the files of this machine.
type OSFiles struct{}

// ReadFile is os.ReadFile.
func (OSFiles) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }

// WriteFile writes to a file that exists.
func (OSFiles) WriteFile(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// sysctl is one setting and the flag that asked for it.
type sysctl struct {
	flag, file string
	value      int64
	// raise: a kernel value that is already higher stays.
	raise bool
}

// ApplySysctls makes the settings of connection tracking that the configuration asks for. What the user set by name
// must succeed; kube-proxy's defaults, which a KubeProxyConfiguration implies, are made where the node lets them be
// made. The number of CPUs is the node's, whatever this process may use of them; cpus counts where that cannot be read.
func (c *Config) ApplySysctls(files Files, cpus int, log *slog.Logger) error {
	if text, err := files.ReadFile(onlineCPUsFile); err == nil {
		if n, ok := countCPUs(string(text)); ok {
			cpus = n
		}
	}
	for _, setting := range c.sysctls(cpus) {
		err := setting.apply(files, log)
		if err == nil {
			continue
		}
		if !c.conntrackBestEffort[setting.flag] {
			return fmt.Errorf("apply --%s: %w; run `shunt agent --init-only` with full privileges first, or set it "+
				"to 0 to leave the kernel's value", setting.flag, err)
		}
		log.Warn("kube-proxy's default for connection tracking is not applied", "flag", setting.flag, "err", err)
	}
	return nil
}

// countCPUs counts a list of the kernel's: "0-3,8".
func countCPUs(list string) (int, bool) {
	n := 0
	for _, entry := range strings.Split(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(entry, "-")
		if !isRange {
			last = first
		}
		low, err := strconv.Atoi(first)
		high, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || high < low {
			return 0, false
		}
		n += high - low + 1
	}
	return n, true
}

func (c *Config) sysctls(cpus int) []sysctl {
	var list []sysctl
	add := func(flag, name string, value int64) {
		if value != 0 {
			list = append(list, sysctl{flag: flag, file: conntrackSysctls + name, value: value})
		}
	}
	if limit := c.conntrackMax(cpus); limit != 0 {
		// The table of buckets grows first: a higher limit over a small table is slow for every packet of the node.
		list = append(list,
			sysctl{"conntrack-max-per-core", conntrackHashFile, limit / 4, true},
			sysctl{"conntrack-max-per-core", conntrackMaxFile, limit, true})
	}
	seconds := func(d Duration) int64 { return int64(d.Seconds()) }
	add("conntrack-tcp-timeout-established", "nf_conntrack_tcp_timeout_established",
		seconds(c.ConntrackTCPTimeoutEstablished))
	add("conntrack-tcp-timeout-close-wait", "nf_conntrack_tcp_timeout_close_wait",
		seconds(c.ConntrackTCPTimeoutCloseWait))
	if c.ConntrackTCPBeLiberal {
		add("conntrack-tcp-be-liberal", "nf_conntrack_tcp_be_liberal", 1)
	}
	add("conntrack-udp-timeout", "nf_conntrack_udp_timeout", seconds(c.ConntrackUDPTimeout))
	add("conntrack-udp-timeout-stream", "nf_conntrack_udp_timeout_stream", seconds(c.ConntrackUDPTimeoutStream))
	return list
}

// conntrackMax is kube-proxy's rule, 0 for "leave it".
func (c *Config) conntrackMax(cpus int) int64 {
	if c.ConntrackMaxPerCore == 0 {
		return 0
	}
	scaled := int64(c.ConntrackMaxPerCore) * int64(cpus)
	if scaled > conntrackMaxLimit {
		return conntrackMaxLimit
	}
	return max(scaled, int64(c.ConntrackMin))
}

func (s sysctl) apply(files Files, log *slog.Logger) error {
	data, err := files.ReadFile(s.file)
	if err != nil {
		return err
	}
	current, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return fmt.Errorf("read %s: %w", s.file, err)
	}
	if current == s.value || s.raise && current > s.value {
		return nil
	}
	if err := files.WriteFile(s.file, []byte(strconv.FormatInt(s.value, 10))); err != nil {
		return err
	}
	log.Info("kernel setting changed", "file", s.file, "from", current, "to", s.value)
	return nil
}

// ApplyOOMScore sets the score of this process. Lowering it needs a capability that the agent does not insist on.
func (c *Config) ApplyOOMScore(files Files) error {
	if err := files.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(c.OOMScoreAdj)))); err != nil {
		return fmt.Errorf("set oom_score_adj to %d: %w", c.OOMScoreAdj, err)
	}
	return nil
}
