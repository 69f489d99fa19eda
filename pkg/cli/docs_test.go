// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/doctor"
	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/version"
)

// The JSON is a contract, and docs/cli.md is its text.
func TestEachFieldAndCommandIsInTheDocumentation(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, v := range []any{
		portRow{}, serviceRow{}, runRow{}, backendRow{}, affinityRow{}, packetsRow{}, flowRow{}, explain.Answer{}, doctor.Report{}, doctor.Finding{},
		version.Info{},
	} {
		kind := reflect.TypeOf(v)
		for i := range kind.NumField() {
			if kind.Field(i).Anonymous {
				continue // one of those above
			}
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
			if name == "" || !strings.Contains(page, "`"+name+"`") {
				t.Errorf("%s: field %s (%q) is not documented", kind, kind.Field(i).Name, name)
			}
		}
	}
	for _, command := range newRoot(environment{}).Commands() {
		if !strings.Contains(page, "shunt "+command.Name()) {
			t.Errorf("command %s is not documented", command.Name())
		}
	}
}
