// SPDX-License-Identifier: Apache-2.0

package model_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/semantics.md promises a test for each rule; a promise without a test is worse than none.
func TestTheSemanticsPageNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/semantics.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z/]+)\\.(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	if len(named) < 40 {
		t.Fatalf("the page names %d tests only", len(named))
	}
	for _, n := range named {
		if pkg, test := n[1], n[2]; !strings.Contains(testsOf(t, pkg), "func "+test+"(") {
			t.Errorf("package %s has no %s", pkg, test)
		}
	}
}

// testsOf returns the text of all test files of a package.
func testsOf(t *testing.T, pkg string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
