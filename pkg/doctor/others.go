// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"
)

// The words of the checks.
const (
	wordKubeProxy      = "kube-proxy"
	wordKubeProxyRules = "kube-proxy-rules"
	wordForeign        = "other-programs"
)

func checkKubeProxyProcess(f Facts) []Finding {
	if len(f.KubeProxyPIDs) > 0 {
		return []Finding{warn(wordKubeProxy, "once shunt runs, remove kube-proxy's DaemonSet, then run shunt cleanup "+
			"--kube-proxy", "kube-proxy runs (process %s); in sockets shunt translates before it does",
			numbers(f.KubeProxyPIDs))}
	}
	return []Finding{pass(wordKubeProxy, "does not run here")}
}

func numbers(list []int) string {
	words := make([]string, len(list))
	for i, n := range list {
		words[i] = fmt.Sprint(n)
	}
	return strings.Join(words, ", ")
}

// checkKubeProxyRules warns of rules: with kube-proxy gone they are stale, and translate to backends long gone what
// reaches them (packets of clients that have no socket here).
func checkKubeProxyRules(f Facts) []Finding {
	const advice = "when kube-proxy no longer runs on this node: shunt cleanup --kube-proxy"
	var findings []Finding
	if f.KubeProxyErr != nil {
		findings = append(findings, warn(wordKubeProxyRules, "", "cannot look for all rules: %v", f.KubeProxyErr))
	}
	state := f.KubeProxy
	if len(state.Tables) > 0 {
		findings = append(findings, warn(wordKubeProxyRules, advice, "nftables has its tables %s",
			strings.Join(state.Tables, ", ")))
	}
	if len(state.Chains) > 0 {
		findings = append(findings, warn(wordKubeProxyRules, advice, "iptables (nft) has its chains in the tables %s",
			strings.Join(state.Chains, ", ")))
	}
	if len(state.LegacyChains) > 0 {
		findings = append(findings, warn(wordKubeProxyRules, advice, "iptables (legacy) has its chains in the tables %s",
			strings.Join(state.LegacyChains, ", ")))
	}
	if state.IPVS {
		findings = append(findings, warn(wordKubeProxyRules, advice, "the device kube-ipvs0 of its IPVS mode has the "+
			"Service addresses, which the node then takes for its own"))
	}
	if len(findings) == 0 {
		findings = append(findings, pass(wordKubeProxyRules, "none"))
	}
	return findings
}

// ciliumPrefix begins the names of Cilium's programs.
const ciliumPrefix = "cil_"

// checkForeignPrograms looks at the hooks that shunt uses. Programs there run one after the other, each on what the
// former has made of the address: two translators of Services do not get on.
func checkForeignPrograms(f Facts) []Finding {
	if f.ForeignErr != nil {
		return []Finding{warn(wordForeign, "", "cannot look at the hooks: %v", f.ForeignErr)}
	}
	var findings []Finding
	var cilium, others []string
	for _, p := range f.Foreign {
		if strings.HasPrefix(p.Name, ciliumPrefix) {
			cilium = append(cilium, p.String())
			continue
		}
		others = append(others, p.String())
	}
	if len(cilium) > 0 {
		findings = append(findings, fail(wordForeign, "set Cilium's kubeProxyReplacement=false and socketLB.enabled=false, "+
			"or do without shunt", "Cilium translates Services in sockets: %s", strings.Join(cilium, ", ")))
	}
	if len(others) > 0 {
		findings = append(findings, warn(wordForeign, "find out whose they are (bpftool prog show id ID) and whether they "+
			"change addresses", "other programs are in the hooks that shunt uses: %s", strings.Join(others, ", ")))
	}
	if len(findings) == 0 {
		findings = append(findings, pass(wordForeign, "none in the hooks that shunt uses"))
	}
	return findings
}
