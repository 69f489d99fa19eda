// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTheLogFollowsFormatAndVerbosity(t *testing.T) {
	for _, row := range []struct {
		args  string
		debug bool
		begin string
	}{
		{"", false, "time="}, {"--v=3", false, "time="}, {"-v=4", true, "time="},
		{"--logging-format=json --verbosity=5", true, "{"},
	} {
		cfg, _, err := load(t, "", strings.Fields(row.args)...)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		log := cfg.Logger(&out)
		log.Debug("seldom")
		log.Info("always")
		if strings.Contains(out.String(), "seldom") != row.debug || !strings.Contains(out.String(), "always") ||
			!strings.HasPrefix(out.String(), row.begin) {
			t.Errorf("%s: log is %q", row.args, out.String())
		}
	}
}

func TestConfigzShowsTheEffectiveConfiguration(t *testing.T) {
	cfg, _, err := load(t, "", "--max-services=9")
	if err != nil {
		t.Fatal(err)
	}
	text, err := cfg.Configz()
	if err != nil {
		t.Fatal(err)
	}
	var view map[string]map[string]any
	if err := json.Unmarshal(text, &view); err != nil {
		t.Fatal(err)
	}
	shown := view["shunt.dev"]
	if shown["maxServices"] != 9.0 || shown["kind"] != Kind || shown["syncPeriod"] != "30s" {
		t.Errorf("Configz = %s", text)
	}
}
