// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/test/lab"

	"github.com/shunt-lb/shunt/test/cluster/probe"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == helperArgument {
		exit(lab.Helper(os.Args[2:], probe.Operations(), operations()))
		return
	}
	os.Exit(m.Run())
}

// TestEveryProxyIsMeasured runs the bench for a moment: the figures mean nothing, but each is there.
func TestEveryProxyIsMeasured(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the lab makes network namespaces and cgroups: run as root")
	}
	var out bytes.Buffer
	b := &bench{changes: 2, churn: time.Second, patience: time.Minute, out: &out}
	if err := b.choose("20", "nftables,shunt"); err != nil {
		t.Fatal(err)
	}
	if err := b.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	if !strings.Contains(out.String(), "| figure | nftables | shunt | shunt / nftables |") {
		t.Error("the table has not the columns that were asked for")
	}
	for _, f := range figures {
		_, row, found := strings.Cut(out.String(), "| "+f.title+" |")
		row, _, _ = strings.Cut(row, "\n")
		if !found || strings.Contains(row, " 0 ") || strings.Contains(row, "given up") {
			t.Errorf("%s: %s", f.title, row)
		}
	}
}
