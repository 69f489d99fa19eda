// SPDX-License-Identifier: Apache-2.0

package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestDescribeSaysWhereABuildComesFrom(t *testing.T) {
	t.Parallel()
	stamped := &debug.BuildInfo{
		Main: debug.Module{Version: "v0.3.1"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "0123abc"},
			{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
			{Key: "vcs.modified", Value: "true"},
		},
	}
	for _, tc := range []struct {
		name, linked string
		build        *debug.BuildInfo
		want         string
	}{
		{"the linker's version wins", "v1.0.0", stamped, "shunt v1.0.0 (commit 0123abc, modified) "},
		{"else the module's", "", stamped, "shunt v0.3.1 (commit 0123abc, modified) "},
		{"else it is a development build", "", &debug.BuildInfo{}, "shunt (devel) "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := describe(tc.linked, tc.build).String()
			if !strings.HasPrefix(got, tc.want) {
				t.Errorf("got %q, want prefix %q", got, tc.want)
			}
			if !strings.HasSuffix(got, runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH) {
				t.Errorf("%q does not end with the Go version and platform", got)
			}
		})
	}
}
