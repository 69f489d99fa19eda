// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// kubelet's own chains begin with KUBE- too and stay: kubelet makes them anew, other programs find out by them which
// iptables the node uses.
var kubeletChains = []string{"KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT", "KUBE-FIREWALL", "KUBE-MARK-DROP"}

// chainPrefix begins the names of kube-proxy's chains.
const chainPrefix = "KUBE-"

// isProxyChain tells kube-proxy's chains by their names.
func isProxyChain(name string) bool {
	return strings.HasPrefix(name, chainPrefix) && !slices.Contains(kubeletChains, name)
}

// removal turns the output of iptables-save into input for iptables-restore --noflush that removes kube-proxy's
// chains: first the rules elsewhere that jump to them, then the chains, each emptied before any is deleted. It
// returns the names of the chains as well; none means that there is nothing to do.
func removal(save []byte) (script []byte, chains []string) {
	var out bytes.Buffer
	for _, t := range bytes.Split(save, []byte("COMMIT\n")) {
		lines := strings.Split(string(t), "\n")
		s, found := tableRemoval(lines)
		if len(found) > 0 {
			out.WriteString(s)
			chains = append(chains, found...)
		}
	}
	return out.Bytes(), chains
}

func tableRemoval(lines []string) (script string, chains []string) {
	var name string
	var jumps []string
	for _, line := range lines {
		switch {
		case strings.HasPrefix(line, "*"):
			name = line
		case strings.HasPrefix(line, ":"):
			if chain, _, _ := strings.Cut(line[1:], " "); isProxyChain(chain) {
				chains = append(chains, chain)
			}
		case strings.HasPrefix(line, "-A "):
			chain, rule, _ := strings.Cut(line[len("-A "):], " ")
			if !isProxyChain(chain) && isProxyChain(jumpTarget(rule)) {
				jumps = append(jumps, "-D "+chain+" "+rule)
			}
		}
	}
	if len(chains) == 0 {
		return "", nil
	}
	var b strings.Builder
	fmt.Fprintln(&b, name)
	for _, c := range chains {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c)
	}
	for _, j := range jumps {
		fmt.Fprintln(&b, j)
	}
	for _, c := range chains {
		fmt.Fprintf(&b, "-X %s\n", c)
	}
	fmt.Fprintln(&b, "COMMIT")
	return b.String(), chains
}

// jumpTarget returns what a rule jumps to.
func jumpTarget(rule string) string {
	fields := strings.Fields(rule)
	for i, f := range fields {
		if (f == "-j" || f == "-g") && i+1 < len(fields) {
			return fields[i+1]
		}
	}
	return ""
}

// iptablesVariants are the commands that see different rules: each family with each of the two backends. Plain
// iptables is one of the two, which is asked where the other names are missing.
var iptablesVariants = [][]string{
	{"iptables-nft", "iptables-legacy", "iptables"},
	{"ip6tables-nft", "ip6tables-legacy", "ip6tables"},
}

// iptablesCommands returns the commands that are installed: both backends of a family, or else its plain name.
func iptablesCommands(lookPath func(string) (string, error)) []string {
	var commands []string
	for _, family := range iptablesVariants {
		var found []string
		for _, name := range family[:2] {
			if _, err := lookPath(name + "-save"); err == nil {
				found = append(found, name)
			}
		}
		if _, err := lookPath(family[2] + "-save"); err == nil && len(found) == 0 {
			found = append(found, family[2])
		}
		commands = append(commands, found...)
	}
	return commands
}

// removeChains removes kube-proxy's chains through one variant of iptables, and returns their number.
func removeChains(ctx context.Context, command string) (int, error) {
	var stderr bytes.Buffer
	save := exec.CommandContext(ctx, command+"-save")
	save.Stderr = &stderr
	rules, err := save.Output()
	if err != nil {
		return 0, fmt.Errorf("run %s-save: %w: %s", command, err, firstLine(stderr.Bytes()))
	}
	script, chains := removal(rules)
	if len(chains) == 0 {
		return 0, nil
	}
	restore := exec.CommandContext(ctx, command+"-restore", "--noflush")
	restore.Stdin = bytes.NewReader(script)
	if out, err := restore.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("run %s-restore: %w: %s", command, err, firstLine(out))
	}
	return len(chains), nil
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line
}
