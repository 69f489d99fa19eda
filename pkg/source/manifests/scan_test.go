// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/source"
)

// parsed returns the names of the files that a scan has parsed.
func parsed(t *testing.T, s *scanner) []string {
	t.Helper()
	changes, again, err := s.scan()
	if err != nil || again {
		t.Fatalf("scan: again %v, %v", again, err)
	}
	var out []string
	for _, c := range changes {
		out = append(out, c.name)
	}
	return out
}

func TestAFileThatHasNotChangedIsNotParsedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, a, serviceText("a", "10.96.0.1"))
	write(t, b, serviceText("b", "10.96.0.2"))
	long := time.Hour
	s := newScanner(dir, "n1", func() time.Time { return time.Now().Add(long) })
	for _, row := range []struct {
		what   string
		change func()
		want   []string
	}{
		{"the first time", func() {}, []string{"a.yaml", "b.yaml"}},
		{"nothing happened", func() {}, nil},
		{"rewritten with the same content", func() { write(t, a, serviceText("a", "10.96.0.1")) }, nil},
		{"one has changed", func() { write(t, a, serviceText("a", "10.96.0.9")) }, []string{"a.yaml"}},
		{"same size and time stamps, while they are fresh", func() {
			long = 0
			write(t, a, serviceText("a", "10.96.0.8"))
			parsed(t, s)
			// The clock tick is the same: only the content tells.
			sig := s.seen["a.yaml"]
			write(t, a, serviceText("a", "10.96.0.7"))
			fresh, err := os.Stat(a)
			if err != nil {
				t.Fatal(err)
			}
			now := signatureOf(fresh)
			now.racy, now.hash = sig.racy, sig.hash
			s.seen["a.yaml"] = now
		}, []string{"a.yaml"}},
		{"removed", func() {
			if err := os.Remove(b); err != nil {
				t.Fatal(err)
			}
		}, []string{"b.yaml"}},
	} {
		row.change()
		if got := parsed(t, s); !slices.Equal(got, row.want) {
			t.Errorf("%s: parsed %v, want %v", row.what, got, row.want)
		}
	}
}

func TestAFileThatIsTooLargeIsReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	write(t, a, "")
	if err := os.Truncate(a, maxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	changes, _, err := newScanner(dir, "n1", time.Now).scan()
	if err != nil || len(changes) != 1 || !changes[0].broken {
		t.Fatalf("scan: %+v, %v", changes, err)
	}
	if p := changes[0].problems[0]; p.Reason != source.ReasonUnreadable || !strings.Contains(p.Message, "larger than 256 MiB") {
		t.Errorf("problem %v", p)
	}
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what, text string
		want       []string
	}{
		{"nothing", "", nil},
		{"one without markers", "a: 1\n", []string{"1:a: 1\n"}},
		{"without a last line end", "a: 1\n---\nb: 2", []string{"1:a: 1\n", "2:\nb: 2"}},
		{"a leading marker does not count", "---\na: 1\n", []string{"1:\na: 1\n"}},
		{"content on the marker's line", "--- {a: 1}\n---\tb: 2\n", []string{"1: {a: 1}\n", "2:\tb: 2\n"}},
		{"an end marker", "a: 1\n...\n---\nb: 2\n", []string{"1:a: 1\n", "3:\nb: 2\n"}},
		{"what only looks like a marker", "a: |\n  ---\n----\n---x\n", []string{"1:a: |\n  ---\n----\n---x\n"}},
		{"empty documents and directives", "# x\n---\n\n---\n%YAML 1.1\n---\na: 1\n", []string{"6:\na: 1\n"}},
	} {
		var got []string
		for i, d := range split([]byte(row.text)) {
			got = append(got, fmt.Sprintf("%d:%s", d.line, d.text))
			if d.number != i+1 {
				t.Errorf("%s: document %d has number %d", row.what, i+1, d.number)
			}
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: %q, want %q", row.what, got, row.want)
		}
	}
}

// BenchmarkFirstScan reads 10,000 Services and slices of five endpoints, one object per file and all in one.
func BenchmarkFirstScan(b *testing.B) {
	for _, perFile := range []int{1, 20000} {
		b.Run(fmt.Sprintf("objects-per-file=%d", perFile), func(b *testing.B) {
			dir := b.TempDir()
			writeMany(b, dir, 10000, perFile)
			b.ResetTimer()
			for b.Loop() {
				changes, _, err := newScanner(dir, "n1", time.Now).scan()
				if err != nil {
					b.Fatal(err)
				}
				if events := newState().apply(changes); len(events) != 20000 {
					b.Fatalf("%d events", len(events))
				}
			}
		})
	}
}

func BenchmarkScanOfNothingNew(b *testing.B) {
	dir := b.TempDir()
	writeMany(b, dir, 10000, 1)
	s := newScanner(dir, "n1", func() time.Time { return time.Now().Add(time.Hour) })
	for range 2 {
		if _, _, err := s.scan(); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	for b.Loop() {
		if changes, _, err := s.scan(); err != nil || len(changes) != 0 {
			b.Fatalf("%d changes, %v", len(changes), err)
		}
	}
}

func writeMany(b *testing.B, dir string, services, perFile int) {
	b.Helper()
	var docs []string
	for i := range services {
		docs = append(docs, serviceText(fmt.Sprintf("s%d", i), fmt.Sprintf("10.%d.%d.1", 100+i/250, i%250)), manyEndpoints(i))
	}
	n := 0
	for chunk := range slices.Chunk(docs, perFile) {
		name := filepath.Join(dir, fmt.Sprintf("f%05d.yaml", n))
		if err := os.WriteFile(name, []byte(strings.Join(chunk, "---\n")), 0o644); err != nil {
			b.Fatal(err)
		}
		n++
	}
}

func manyEndpoints(i int) string {
	var s strings.Builder
	fmt.Fprintf(&s, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: s%d-x\n  labels:\n"+
		"    kubernetes.io/service-name: s%d\naddressType: IPv4\nports:\n- port: 8080\nendpoints:\n", i, i)
	for e := range 5 {
		fmt.Fprintf(&s, "- addresses:\n  - 10.%d.%d.%d\n  nodeName: node-%d\n  conditions:\n    ready: true\n", 180+e, i/250, i%250, e)
	}
	return s.String()
}
