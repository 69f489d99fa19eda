// SPDX-License-Identifier: Apache-2.0

// Package version tells which build of shunt this is. The version itself is set by the linker
// (-X github.com/shunt-lb/shunt/pkg/version.version=v0.1.0); the rest is what the Go tool recorded.
package version

import (
	"runtime"
	"runtime/debug"
)

// version is set at link time; a build without it is a development build.
var version string

// Info describes a build. The JSON names are part of the command line's contract.
type Info struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Date     string `json:"date,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Get returns the description of the running binary.
func Get() Info {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = &debug.BuildInfo{}
	}
	return describe(version, build)
}

func describe(linked string, build *debug.BuildInfo) Info {
	info := Info{Version: linked, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Commit = s.Value
		case "vcs.time":
			info.Date = s.Value
		case "vcs.modified":
			info.Modified = s.Value == "true"
		}
	}
	if info.Version == "" {
		info.Version = build.Main.Version
	}
	if info.Version == "" {
		info.Version = "(devel)"
	}
	return info
}

// String returns the description in one line.
func (i Info) String() string {
	s := "shunt " + i.Version
	if i.Commit != "" {
		s += " (commit " + i.Commit
		if i.Modified {
			s += ", modified"
		}
		s += ")"
	}
	return s + " " + i.Go + " " + i.Platform
}
