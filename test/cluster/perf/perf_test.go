// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/test/cluster/perf/traffic"
	"github.com/shunt-lb/shunt/test/lab"
)

const testHelper = "shunt-lab-helper" // what lab.Main looks for

func TestMain(m *testing.M) {
	lab.Main(traffic.Operations())
	os.Exit(m.Run())
}

// TestShort runs all that the benchmark does, on a small scale: each operation must succeed in each world, and each
// figure must be there.
func TestShort(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the lab makes network namespaces and cgroups: run as root")
	}
	settings := shortSettings()
	settings.document = filepath.Join(t.TempDir(), "benchmarks.md")
	if err := os.WriteFile(settings.document, []byte("by hand\n"+marker+"figures of before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), settings, []string{testHelper}, io.Discard, t.Output()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(settings.document)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	if !strings.HasPrefix(text, "by hand\n"+marker) || strings.Contains(text, "figures of before") {
		t.Errorf("the document is not replaced below its marker alone:\n%s", text)
	}
	for _, want := range []string{"sock_connect4", "kube-proxy iptables, 10 Services", "shunt, 10 Services", "TCP megabyte"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report says nothing of %s:\n%s", want, text)
		}
	}
	for _, absent := range []string{" 0.00 (", "NaN", "Inf"} {
		if strings.Contains(text, absent) {
			t.Errorf("the report has figures without a measurement (%q):\n%s", absent, text)
		}
	}
	t.Log(text)
}

func TestSpread(t *testing.T) {
	for _, row := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}},
		{[]float64{2}, spread{2, 2, 2}},
		{[]float64{3, 1, 2}, spread{2, 1, 3}},
		{[]float64{4, 1, 2, 3}, spread{2.5, 1, 4}},
	} {
		if have := newSpread(row.values); have != row.want {
			t.Errorf("newSpread(%v) = %v, want %v", row.values, have, row.want)
		}
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if have := thousands(n); have != want {
			t.Errorf("thousands(%d) = %s, want %s", n, have, want)
		}
	}
}
