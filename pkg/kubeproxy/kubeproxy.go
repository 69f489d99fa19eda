// SPDX-License-Identifier: Apache-2.0

// Package kubeproxy finds what kube-proxy has programmed in a node's network namespace, in each of its modes, and
// removes it on request. It reads through netlink and /proc and needs no other program for that; only chains of
// iptables are removed by iptables itself. It never touches what belongs to kubelet or anybody else.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ipvsDevice carries the Service addresses in IPVS mode.
const ipvsDevice = "kube-ipvs0"

// tableName is the name of kube-proxy's nftables tables, one of each family.
const tableName = "kube-proxy"

// State is what was found.
type State struct {
	// Tables are kube-proxy's nftables tables.
	Tables []string
	// Chains are the tables that hold kube-proxy's chains, through iptables-nft.
	Chains []string
	// LegacyChains are such tables of the kernel's own iptables.
	LegacyChains []string
	// IPVS: the device of IPVS mode is there.
	IPVS bool
}

// Found reports whether any of kube-proxy's rules are there.
func (s State) Found() bool {
	return len(s.Tables) > 0 || len(s.Chains) > 0 || len(s.LegacyChains) > 0 || s.IPVS
}

// Find looks for kube-proxy's rules; proc is where /proc is mounted. What could be read is returned beside an error.
func Find(proc string) (State, error) {
	var s State
	tables, errTables := listTables()
	for _, t := range tables {
		if isProxyTable(t) {
			s.Tables = append(s.Tables, t.String())
		}
	}
	chains, errChains := listChains()
	for _, c := range chains {
		if isProxyChain(c.chain) && !slices.Contains(s.Chains, c.table.String()) {
			s.Chains = append(s.Chains, c.table.String())
		}
	}
	slices.Sort(s.Tables)
	slices.Sort(s.Chains)
	var errLegacy, errIPVS error
	s.LegacyChains, errLegacy = legacyChains(proc)
	s.IPVS, errIPVS = hasDevice(ipvsDevice)
	return s, errors.Join(errTables, errChains, errLegacy, errIPVS)
}

// legacyChains returns the legacy tables that hold kube-proxy's chains.
func legacyChains(proc string) ([]string, error) {
	tables, err := legacyTables(proc)
	errs := []error{err}
	var found []string
	for _, t := range tables {
		has, err := t.hasProxyChains()
		if err != nil {
			errs = append(errs, err)
		}
		if has {
			found = append(found, t.String())
		}
	}
	slices.Sort(found)
	return found, errors.Join(errs...)
}

func isProxyTable(t table) bool {
	return t.name == tableName && (t.family == unix.NFPROTO_IPV4 || t.family == unix.NFPROTO_IPV6)
}

func hasDevice(name string) (bool, error) {
	_, err := netlink.LinkByName(name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for device %s: %w", name, err)
	}
	return true, nil
}

// Remove removes kube-proxy's rules and tells report of each thing done. It goes on after a failure; the errors are
// joined.
func Remove(ctx context.Context, proc string, report func(string)) error {
	errs := []error{removeTables(report), removeIPVS(report)}
	return errors.Join(append(errs, removeIPTables(ctx, proc, report))...)
}

func removeTables(report func(string)) error {
	tables, err := listTables()
	errs := []error{err}
	for _, t := range tables {
		if !isProxyTable(t) {
			continue
		}
		if err := deleteTable(t); err != nil {
			errs = append(errs, err)
			continue
		}
		report("removed the nftables table " + t.String())
	}
	return errors.Join(errs...)
}

func removeIPVS(report func(string)) error {
	device, err := netlink.LinkByName(ipvsDevice)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(device)
	}
	if err != nil {
		return fmt.Errorf("remove device %s: %w", ipvsDevice, err)
	}
	report("removed the device " + ipvsDevice + "; its virtual servers stay until \"ipvsadm --clear\" or a reboot")
	return nil
}

func removeIPTables(ctx context.Context, proc string, report func(string)) error {
	var errs []error
	commands := iptablesCommands(exec.LookPath)
	legacy, err := legacyTables(proc)
	if err != nil {
		return err
	}
	for _, command := range commands {
		// The legacy command would create the tables that it looks for.
		if strings.HasSuffix(command, "-legacy") && len(legacy) == 0 {
			continue
		}
		n, err := removeChains(ctx, command)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if n > 0 {
			report(fmt.Sprintf("removed %d chains through %s", n, command))
		}
	}
	return errors.Join(append(errs, checkLeft(proc))...)
}

// checkLeft looks again: chains that no command here could remove are the user's to know about.
func checkLeft(proc string) error {
	left, err := Find(proc)
	if err != nil {
		return err
	}
	if chains := slices.Concat(left.Chains, left.LegacyChains); len(chains) > 0 {
		return fmt.Errorf("remove kube-proxy's iptables chains in %s: install iptables (both iptables-nft and "+
			"iptables-legacy), or reboot the node", strings.Join(chains, ", "))
	}
	return nil
}
