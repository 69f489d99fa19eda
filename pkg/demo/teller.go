// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	indent     = "   "
	labelWidth = 28
	barWidth   = 40
	lineWidth  = 96
)

// teller prints the story and keeps account of its claims.
type teller struct {
	output   io.Writer
	color    bool
	chapters int
	claims   int
	untrue   []error
}

type style string

const (
	bold  style = "1"
	dim   style = "2"
	red   style = "31"
	green style = "32"
	cyan  style = "36"
)

func newTeller(output io.Writer, color bool) *teller {
	return &teller{output: output, color: color, chapters: 1}
}

func (t *teller) paint(s style, text string) string {
	if !t.color {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// line prints one line. When the reader has gone (shunt demo | head) the signal ends the program, and the lab's janitor
// cleans.
func (t *teller) line(text string) { _, _ = fmt.Fprintln(t.output, strings.TrimRight(text, " ")) }

func (t *teller) opening() {
	t.line(t.paint(bold, "shunt demo") + ": a Kubernetes node in network namespaces on this machine.")
	t.line("No packet leaves them, and everything is removed at the end. All that follows is live.")
}

func (t *teller) closing(took time.Duration) {
	t.line("")
	t.line(t.paint(green, fmt.Sprintf("%d claims, all true", t.claims)) +
		fmt.Sprintf(", in %.1f s. Namespaces, cgroups, mounts, processes and files are removed.", took.Seconds()))
}

func (t *teller) chapter(title string) {
	t.line("")
	t.line(t.paint(bold, fmt.Sprintf("%2d. %s", t.chapters, title)))
	t.chapters++
}

// say prints prose, wrapped.
func (t *teller) say(format string, arguments ...any) {
	for _, line := range wrap(fmt.Sprintf(format, arguments...), lineWidth-len(indent)) {
		t.line(indent + line)
	}
}

// show prints one piece of evidence.
func (t *teller) show(label, format string, arguments ...any) {
	t.line(fmt.Sprintf("%s  %-*s  %s", indent, labelWidth, label, t.paint(cyan, fmt.Sprintf(format, arguments...))))
}

// quote prints text of another source as it is: a file, or what a command said.
func (t *teller) quote(heading, text string) {
	t.line(indent + t.paint(bold, heading))
	for line := range strings.Lines(text) {
		t.line(indent + t.paint(dim, "| ") + strings.TrimSuffix(line, "\n"))
	}
}

// bar prints a count as a bar whose full length is total.
func (t *teller) bar(label string, count, total int) {
	length := 0
	if total > 0 {
		length = (count*barWidth + total/2) / total
	}
	t.line(fmt.Sprintf("%s  %-*s  %5d  %s", indent, labelWidth, label, count,
		t.paint(cyan, strings.Repeat("#", length))))
}

// claim prints what the evidence shows, and says so when it does not.
func (t *teller) claim(isTrue bool, format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	t.claims++
	mark := t.paint(green, "[ok]")
	if !isTrue {
		mark = t.paint(red, "[NOT TRUE]")
		t.untrue = append(t.untrue, fmt.Errorf("this claim is not true: %s", text))
	}
	for i, line := range wrap(text, lineWidth-len(indent)-len("[ok] ")) {
		if i > 0 {
			mark = "    "
		}
		t.line(indent + mark + " " + line)
	}
}

// verdict is an error if a claim was not true.
func (t *teller) verdict() error { return errors.Join(t.untrue...) }

// wrap breaks text at spaces.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
