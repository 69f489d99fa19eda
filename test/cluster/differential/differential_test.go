// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestShuntDoesWhatKubeProxyDoes runs the tables with the settings that a cluster has by default.
func TestShuntDoesWhatKubeProxyDoes(t *testing.T) {
	s := newSuite(t)
	s.start(t)
	s.runAll(t, allCases())
}

func (s *suite) runAll(t *testing.T, cases []testCase) {
	for _, c := range cases {
		t.Run(c.section+" "+c.name, func(t *testing.T) {
			t.Parallel()
			s.run(t, c)
		})
	}
}

func allCases() []testCase {
	return slices.Concat(objectCases, sliceCases, frontendCases, conditionCases, policyCases, hintCases, affinityCases,
		filterCases, flowCases, hairpinCases, outsideCases, healthCases)
}

// TestDifferencesAreListed keeps docs/differences.md and the tables in step.
func TestDifferencesAreListed(t *testing.T) {
	page, err := os.ReadFile("../../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^### (.+)$`).FindAllSubmatch(page, -1) {
		listed[string(heading[1])] = true
	}
	used := map[string]bool{}
	for _, c := range slices.Concat(allCases(), settingsCases()) {
		for _, step := range c.steps {
			for _, check := range step.checks {
				used[check.difference] = true
			}
		}
	}
	delete(used, "")
	for name := range used {
		if !listed[name] {
			t.Errorf("difference %s is not in docs/differences.md", name)
		}
	}
	for name := range listed {
		if !used[name] {
			t.Errorf("docs/differences.md lists %s, which no case shows", name)
		}
	}
}
