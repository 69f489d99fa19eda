// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/source"
)

// contentOf decodes a file as a scan does.
func contentOf(name, text string) change {
	out := change{name: name}
	for _, d := range split([]byte(text)) {
		out.add(decoder{node: "n1"}.document(name, d))
	}
	return out
}

func newWorld() *world {
	return &world{services: map[string]string{}, slices: map[string]string{}, problems: map[string][]source.Problem{}}
}

// randomFile returns a file of a few Services and slices; broken adds a document that cannot be read.
func randomFile(r *rand.Rand, broken bool) string {
	var docs []string
	for range r.IntN(4) {
		name := string(rune('a' + r.IntN(4)))
		switch r.IntN(3) {
		case 0:
			docs = append(docs, strings.NewReplacer("web-1", name, "10.244.1.5", fmt.Sprintf("10.244.1.%d", 1+r.IntN(3))).Replace(webSlice))
		case 1:
			docs = append(docs, serviceText(name, fmt.Sprintf("10.96.0.%d", 1+r.IntN(3))))
		default:
			docs = append(docs, serviceText(name, "None"))
		}
	}
	if broken {
		docs = slices.Insert(docs, r.IntN(len(docs)+1), "a: [\n")
	}
	return strings.Join(docs, "---\n")
}

// TestAnySequenceOfChangesEndsWhereAFreshReadDoes writes, breaks, repairs and removes files at random. Once all files
// are good, a consumer that saw every step knows what one knows that came last.
func TestAnySequenceOfChangesEndsWhereAFreshReadDoes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		names := []string{"a.yaml", "b.yaml", "c.json", "d.yml"}
		texts := map[string]string{}
		s, incremental := newState(), newWorld()
		apply := func(changes ...change) {
			for _, e := range s.apply(changes) {
				incremental.take(e)
			}
		}
		for range 20 {
			var changes []change
			for _, name := range names[:1+r.IntN(len(names))] {
				if r.IntN(4) == 0 {
					delete(texts, name)
					changes = append(changes, change{name: name, removed: true})
					continue
				}
				texts[name] = randomFile(r, r.IntN(3) == 0)
				changes = append(changes, contentOf(name, texts[name]))
			}
			apply(changes...)
		}
		fresh, all := newWorld(), []change{}
		for _, name := range names {
			if texts[name] = randomFile(r, false); r.IntN(3) == 0 {
				delete(texts, name)
				apply(change{name: name, removed: true})
				continue
			}
			apply(contentOf(name, texts[name]))
			all = append(all, contentOf(name, texts[name]))
		}
		for _, e := range newState().apply(all) {
			fresh.take(e)
		}
		if got, want := incremental.state(), fresh.state(); got != want {
			t.Fatalf("seed %d: after every step\n%s\nafter one\n%s", seed, got, want)
		}
		if kept := len(s.definitions); kept != len(definedObjects(all)) {
			t.Fatalf("seed %d: %d objects are remembered, want %d", seed, kept, len(definedObjects(all)))
		}
	}
}

func definedObjects(changes []change) map[source.Object]bool {
	out := map[source.Object]bool{}
	for _, c := range changes {
		for _, o := range c.objects {
			out[o.id] = true
		}
	}
	return out
}

func TestNothingIsMissingWhileAnObjectMovesToAnotherFile(t *testing.T) {
	t.Parallel()
	s := newState()
	s.apply([]change{contentOf("a.yaml", webService)})
	for _, e := range s.apply([]change{{name: "a.yaml", removed: true}, contentOf("b.yaml", webService)}) {
		t.Errorf("moving an unchanged object is told as %+v", e)
	}
	changed := strings.Replace(webService, "0.10", "0.11", 1)
	events := s.apply([]change{{name: "b.yaml", removed: true}, contentOf("a.yaml", changed)})
	if len(events) != 1 {
		t.Fatalf("events %+v", events)
	}
	if e, ok := events[0].(source.SetService); !ok || e.Service.ClusterIPs[0].String() != "10.96.0.11" {
		t.Errorf("event %+v", events[0])
	}
}
