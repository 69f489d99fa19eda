// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"io"
	"log/slog"

	"sigs.k8s.io/yaml"
)

// debugVerbosity is the -v from which kube-proxy's log holds what a debugging person wants.
const debugVerbosity = 4

// Logger returns the agent's log on w.
func (c *Config) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if c.Verbosity >= debugVerbosity {
		options.Level = slog.LevelDebug
	}
	if c.LoggingFormat == LogJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// Configz returns the view of the effective configuration that /configz serves: the configuration under its API
// group. It holds no secrets: a kubeconfig is named, not shown.
func (c *Config) Configz() ([]byte, error) {
	return json.Marshal(map[string]*Config{"shunt.dev": c})
}

// YAML returns the effective configuration as a file that --config takes.
func (c *Config) YAML() ([]byte, error) { return yaml.Marshal(c) }
