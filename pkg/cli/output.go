// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// format is the value of -o.
type format string

// The formats of -o.
const (
	formatText  format = "text"
	formatTable format = "table"
	formatWide  format = "wide"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

// formatFlag is -o with the formats that a command has.
type formatFlag struct {
	value   format
	choices []format
}

func (f *formatFlag) String() string { return string(f.value) }
func (f *formatFlag) Type() string   { return "format" }

func (f *formatFlag) Set(s string) error {
	for _, choice := range f.choices {
		if s == string(choice) {
			f.value = choice
			return nil
		}
	}
	return fmt.Errorf("give one of %s", f.list())
}

func (f *formatFlag) list() string {
	words := make([]string, len(f.choices))
	for i, choice := range f.choices {
		words[i] = string(choice)
	}
	return strings.Join(words, ", ")
}

// addFormat gives a command -o; the first choice is the default.
func addFormat(cmd *cobra.Command, choices ...format) *formatFlag {
	f := &formatFlag{value: choices[0], choices: choices}
	cmd.Flags().VarP(f, "output", "o", "output format: "+f.list())
	return f
}

// printDocument prints v as JSON or YAML.
func printDocument(out io.Writer, f format, v any) error {
	if f == formatYAML {
		b, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
		_, err = out.Write(b)
		return writeError(err)
	}
	buffered := bufio.NewWriter(out)
	e := json.NewEncoder(buffered)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return writeError(err)
	}
	return writeError(buffered.Flush())
}

// column is one column of a listing's table.
type column[R any] struct {
	title string
	wide  bool // only with -o wide
	text  func(R) string
}

// printListing prints rows, which are never nil in JSON.
func printListing[R any](out io.Writer, f format, rows []R, columns []column[R]) error {
	if f == formatJSON || f == formatYAML {
		if rows == nil {
			rows = []R{}
		}
		return printDocument(out, f, rows)
	}
	shown := make([]column[R], 0, len(columns))
	titles := make([]string, 0, len(columns))
	for _, c := range columns {
		if c.wide && f != formatWide {
			continue
		}
		shown = append(shown, c)
		titles = append(titles, c.title)
	}
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, strings.Join(titles, "\t"))
	cells := make([]string, len(shown))
	for _, row := range rows {
		for i, c := range shown {
			cells[i] = c.text(row)
			if cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return writeError(t.Flush())
}

func writeError(err error) error {
	if err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
