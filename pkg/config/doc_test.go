// SPDX-License-Identifier: Apache-2.0

package config

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "rewrite the tables in docs/configuration.md")

const docFile = "../../docs/configuration.md"

func TestTheDocumentationHasEveryFlagAndEveryField(t *testing.T) {
	data, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	for _, table := range []struct{ name, text string }{
		{"flags", flagTable()}, {"kube-proxy flags", kubeProxyFlagTable()}, {"positions", positionTable()},
	} {
		begin, end := "<!-- begin "+table.name+" -->\n", "<!-- end "+table.name+" -->"
		head, rest, ok := strings.Cut(doc, begin)
		_, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no table between %q and %q", docFile, begin, end)
		}
		doc = head + begin + table.text + end + tail
	}
	if *update {
		if err := os.WriteFile(docFile, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if doc != string(data) {
		t.Errorf("%s is not what the code says; run go test ./pkg/config -update and look at the difference", docFile)
	}
}

// flagTable has the flags that set a field, with the field.
func flagTable() string {
	var b strings.Builder
	b.WriteString("| flag | field | default | meaning |\n|---|---|---|---|\n")
	s := newState()
	fields := fieldNames()
	s.flagSet().VisitAll(func(f *pflag.Flag) {
		if field, ok := fields[strings.ReplaceAll(f.Name, "-", "")]; ok {
			fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", f.Name, field, code(strings.Trim(f.DefValue, "[]")), cell(f.Usage))
		}
	})
	return b.String()
}

// kubeProxyFlagTable has the flags that are there for kube-proxy's sake.
func kubeProxyFlagTable() string {
	var b strings.Builder
	b.WriteString("| flag | here |\n|---|---|\n")
	fields := fieldNames()
	newState().flagSet().VisitAll(func(f *pflag.Flag) {
		if _, ok := fields[strings.ReplaceAll(f.Name, "-", "")]; !ok {
			fmt.Fprintf(&b, "| `--%s` | %s |\n", f.Name, cell(f.Usage))
		}
	})
	return b.String()
}

func positionTable() string {
	var b strings.Builder
	b.WriteString("| field | here |\n|---|---|\n")
	var paths []string
	for path := range positions {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		stand := positions[path]
		word := map[fate]string{honoured: "honoured", meaningless: "accepted, named in the log: ",
			refused: "refused when set: "}[stand.fate]
		fmt.Fprintf(&b, "| `%s` | %s |\n", path, word+stand.why)
	}
	return b.String()
}

func code(value string) string {
	if value == "" {
		return ""
	}
	return "`" + value + "`"
}

func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
