// SPDX-License-Identifier: Apache-2.0

// Command lint checks the rules of this repository that no other linter knows: which package may import which, that
// each source file names its licence in its first lines, and that no file outgrows what one can hold in the head.
package main

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/shunt-lb/shunt/"

// maxLines is the length of file at which it should be split.
const maxLines = 600

// rule limits what the packages below one directory may import.
type rule struct {
	dir string
	// only: nothing but the standard library and these. nil: any import that is not forbidden.
	only []string
	// never: these import paths, and what lies below them.
	never []string
}

// rules keep the pipeline one-directional: source -> model -> plan -> writer -> maps.
var rules = []rule{
	{dir: "pkg/model", only: []string{}},
	{dir: "pkg/plan", only: []string{module + "pkg/model"}},
	{dir: "pkg/source", never: []string{module + "pkg/maps", module + "pkg/plan", module + "pkg/writer", module + "pkg/loader"}},
	{dir: "pkg/explain", never: []string{"k8s.io"}},
	{dir: "pkg", never: []string{module + "cmd", "k8s.io/kubernetes"}},
}

func main() {
	problems, err := check()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lint:", err)
		os.Exit(2)
	}
	for _, p := range problems {
		fmt.Println(p)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}

// check returns what is wrong with the files that git tracks, one line each.
func check() ([]string, error) {
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return nil, fmt.Errorf("list files with git: %w", err)
	}
	var problems []string
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		if err != nil {
			return nil, err
		}
		problems = append(problems, checkFile(name, text)...)
	}
	return problems, nil
}

// checkFile returns what is wrong with one file.
func checkFile(name string, text []byte) []string {
	var problems []string
	generated := bytes.Contains(firstLines(text, 3), []byte("Code generated"))
	if needsLicence(name) && !generated && !bytes.Contains(firstLines(text, 3), []byte("SPDX-License-Identifier:")) {
		problems = append(problems, name+": no SPDX-License-Identifier in the first three lines")
	}
	switch filepath.Ext(name) {
	case ".go", ".c", ".h":
		if n := bytes.Count(text, []byte{'\n'}); n > maxLines && !generated {
			problems = append(problems, fmt.Sprintf("%s: %d lines, more than %d: split it", name, n, maxLines))
		}
	}
	if filepath.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") {
		problems = append(problems, checkImports(name, text)...)
	}
	return problems
}

func firstLines(text []byte, n int) []byte {
	end := 0
	for range n {
		i := bytes.IndexByte(text[end:], '\n')
		if i < 0 {
			return text
		}
		end += i + 1
	}
	return text[:end]
}

func needsLicence(name string) bool {
	switch filepath.Base(name) {
	case "Makefile", "Dockerfile", "run":
		return true
	}
	return slices.Contains([]string{".go", ".c", ".h", ".sh", ".yaml", ".yml"}, filepath.Ext(name)) &&
		!strings.Contains(name, "testdata/")
}

// checkImports applies the rules whose directory holds the file.
func checkImports(name string, text []byte) []string {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
	if err != nil {
		return []string{fmt.Sprintf("%s: %v", name, err)}
	}
	var problems []string
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return []string{fmt.Sprintf("%s: import %s: %v", name, spec.Path.Value, err)}
		}
		for _, r := range rules {
			if strings.HasPrefix(name, r.dir+"/") && !r.allows(path) {
				problems = append(problems, fmt.Sprintf("%s: may not import %s (a rule for %s)", name, path, r.dir))
			}
		}
	}
	return problems
}

// allows tells whether the rule lets its packages import path.
func (r rule) allows(path string) bool {
	for _, never := range r.never {
		if path == strings.TrimSuffix(never, "/") || strings.HasPrefix(path, strings.TrimSuffix(never, "/")+"/") {
			return false
		}
	}
	first, _, _ := strings.Cut(path, "/")
	standard := !strings.Contains(first, ".")
	return r.only == nil || standard || slices.Contains(r.only, path)
}
