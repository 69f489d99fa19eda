// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestReasonsAreThoseOfTheHeader(t *testing.T) {
	header, err := os.ReadFile("../../bpf/reason.h")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\tREASON_(\w+) = (\d+),$`).FindAllSubmatch(header, -1)
	members := 0
	for _, m := range found {
		word := strings.ToLower(string(m[1]))
		if word == "capacity" {
			continue
		}
		members++
		number, err := strconv.Atoi(string(m[2]))
		if err != nil {
			t.Fatal(err)
		}
		if got := ReasonWord(number); got != word {
			t.Errorf("reason %d is %q, in the header %q", number, got, word)
		}
	}
	if members != len(reasons) {
		t.Errorf("%d reasons in the header, %d here", members, len(reasons))
	}
}
