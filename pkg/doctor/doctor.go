// SPDX-License-Identifier: Apache-2.0

// Package doctor says whether shunt can work on this node, whether it does, and who else translates Services here.
//
// Gather reads the node into Facts; each check is a pure function of Facts, so that tests need no kernel. Nothing is
// changed, and no program but this one is run.
package doctor

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Status is the outcome of a check.
type Status string

// The outcomes. A FAIL keeps shunt from working, or from being the one that translates; a WARN limits it.
const (
	Pass Status = "PASS"
	Warn Status = "WARN"
	Fail Status = "FAIL"
)

// Finding is the outcome of one check. Its JSON form is part of the command line's contract.
type Finding struct {
	Status Status `json:"status"`
	// Check is a stable word.
	Check string `json:"check"`
	// Message says what was found.
	Message string `json:"message"`
	// Advice says what to do; empty when there is nothing to do.
	Advice string `json:"advice,omitempty"`
}

// Report is the findings in their order: the node, then shunt, then others.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Failures counts the checks that failed.
func (r Report) Failures() int {
	n := 0
	for _, f := range r.Findings {
		if f.Status == Fail {
			n++
		}
	}
	return n
}

// Examine runs all checks.
func Examine(f Facts) Report {
	var r Report
	for _, check := range []func(Facts) []Finding{
		checkPrivileges, checkKernel, checkBTF, checkFeatures, checkCgroup, checkBPFFS,
		checkAgent, checkHealth, checkMaps, checkFill, checkLinks, checkPackets,
		checkKubeProxyProcess, checkKubeProxyRules, checkForeignPrograms,
	} {
		r.Findings = append(r.Findings, check(f)...)
	}
	return r
}

// WriteText writes the report for people.
func (r Report) WriteText(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Status, f.Check, f.Message)
		if f.Advice != "" {
			fmt.Fprintf(t, "\t\t-> %s\n", f.Advice)
		}
	}
	return t.Flush()
}

func pass(check, format string, args ...any) Finding {
	return Finding{Status: Pass, Check: check, Message: fmt.Sprintf(format, args...)}
}

func warn(check, advice, format string, args ...any) Finding {
	return Finding{Status: Warn, Check: check, Message: fmt.Sprintf(format, args...), Advice: advice}
}

func fail(check, advice, format string, args ...any) Finding {
	return Finding{Status: Fail, Check: check, Message: fmt.Sprintf(format, args...), Advice: advice}
}
