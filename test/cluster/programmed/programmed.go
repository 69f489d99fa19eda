// SPDX-License-Identifier: Apache-2.0

// Package programmed reads what an agent has programmed as text that does not depend on the ids and cells that it chose,
// so that two agents that say the same can be seen to say the same.
package programmed

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// State is a line for each thing that is programmed, sorted. Memory of flows (affinity) and counters are not in it.
type State []string

// Read reads the maps pinned in a directory.
func Read(directory string) (State, error) {
	kernel, err := maps.Open(directory, maps.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	r := &reader{maps: kernel, names: map[uint32]string{}, backends: map[uint32]string{}}
	for _, step := range []func() error{r.readNames, r.readBackends, r.readServices, r.readAddresses, r.readRanges} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	slices.Sort(r.lines)
	return r.lines, nil
}

type reader struct {
	maps     maps.Reader
	names    map[uint32]string
	backends map[uint32]string
	lines    State
}

func (r *reader) add(format string, arguments ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, arguments...))
}

// each goes over an iteration that may end with an error.
func each[T any](items iter.Seq2[T, error], do func(T)) error {
	for item, err := range items {
		if err != nil {
			return err
		}
		do(item)
	}
	return nil
}

func (r *reader) readNames() error {
	return each(r.maps.ServiceNames(), func(entry maps.Entry[uint32, maps.ServiceName]) {
		name := entry.Value
		text := fmt.Sprintf("%s/%s:%s/%d/%d", maps.Text(name.Namespace[:]), maps.Text(name.Name[:]),
			maps.Text(name.Port[:]), name.Protocol, name.Family)
		r.names[entry.Key] = text
		r.add("service port %s", text)
	})
}

func (r *reader) nameOf(id uint32) string {
	if name, found := r.names[id]; found {
		return name
	}
	return fmt.Sprintf("without a name, id %d", id)
}

func (r *reader) readBackends() error {
	return each(r.maps.Backends(), func(backend maps.Backend) {
		text := fmt.Sprintf("%s %d/%d flags %#x", backend.Address.Addr(), backend.Port, backend.Protocol, backend.Flags)
		r.backends[backend.BackendID] = r.nameOf(backend.ServiceID) + " " + text
		r.add("backend %s", r.backends[backend.BackendID])
	})
}

func (r *reader) readServices() error {
	var failed error
	err := each(r.maps.Services(), func(entry maps.Entry[maps.Frontend, maps.Service]) {
		key, value := entry.Key, entry.Value
		internal, err := r.run(value, value.Internal)
		if err != nil {
			failed = err
			return
		}
		external, err := r.run(value, value.External)
		if err != nil {
			failed = err
			return
		}
		check := ""
		if value.FrontendCheck != key.Check() {
			check = " with the check of another frontend"
		}
		r.add("frontend %s %d/%d%s: %s kind %d flags %#x affinity %d algorithm %d internal [%s] external [%s]",
			key.Address.Addr(), key.Port, key.Protocol, check, r.nameOf(value.ServiceID), value.Kind, value.Flags,
			value.AffinityTimeout, value.Algorithm, internal, external)
	})
	if err == nil {
		err = failed
	}
	return err
}

// run is the backends of a run, in an order of its own.
func (r *reader) run(service maps.Service, run maps.Run) (string, error) {
	ids, err := r.maps.Slots(run)
	if err != nil {
		return "", fmt.Errorf("read run of %s: %w", r.nameOf(service.ServiceID), err)
	}
	var texts []string
	for _, id := range ids {
		text, found := r.backends[id]
		if !found {
			text = fmt.Sprintf("backend %d is gone", id)
		}
		texts = append(texts, strings.TrimPrefix(text, r.nameOf(service.ServiceID)+" "))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", "), nil
}

// readAddresses leaves out link-local addresses: each copy of a node makes its own.
func (r *reader) readAddresses() error {
	return each(r.maps.Addresses(), func(entry maps.Entry[maps.Address, maps.AddressFlags]) {
		if entry.Key.Addr().IsLinkLocalUnicast() {
			return
		}
		r.add("address %s flags %#x", entry.Key.Addr(), entry.Value)
	})
}

func (r *reader) readRanges() error {
	return each(r.maps.SourceRanges(), func(prefix maps.SourceRange) {
		r.add("range of %s: %s bits %d", r.nameOf(prefix.ServiceID), prefix.Address.Addr(), prefix.PrefixBits)
	})
}

// Difference says in what other differs from s; empty: in nothing.
func (s State) Difference(other State) string {
	var lines []string
	for _, line := range s {
		if _, found := slices.BinarySearch(other, line); !found {
			lines = append(lines, "- "+line)
		}
	}
	for _, line := range other {
		if _, found := slices.BinarySearch(s, line); !found {
			lines = append(lines, "+ "+line)
		}
	}
	if len(lines) == 0 && len(s) != len(other) {
		return fmt.Sprintf("the same lines, some of them more often: %d and %d", len(s), len(other))
	}
	const most = 40
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d more", len(lines)-most))
	}
	return strings.Join(lines, "\n")
}

// InForce is the lines that decide about new connections: without what is kept for a while for those who may still read
// it.
func (s State) InForce() State {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool {
		return strings.HasPrefix(line, "backend ") || strings.HasPrefix(line, "service port ")
	})
}

// Mentions says whether a line has the text.
func (s State) Mentions(text string) bool {
	return slices.ContainsFunc(s, func(line string) bool { return strings.Contains(line, text) })
}
