// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shunt-lb/shunt/pkg/source"
)

const (
	// maxFileBytes is far above any manifest and below what would exhaust a node.
	maxFileBytes = 256 << 20
	// batchBytes bounds how much file content is in memory at once.
	batchBytes = 8 << 20
	// racyWindow is how long after its last change a file may change again without a visible trace: time stamps are as
	// coarse as a clock tick on most file systems, a second on some.
	racyWindow = 2 * time.Second
)

// scanner reads the directory and parses what has changed since the last time.
type scanner struct {
	dir     string
	decoder decoder
	seed    maphash.Seed
	seen    map[string]signature
	now     func() time.Time
}

// signature tells whether a file may have changed.
type signature struct {
	device, inode    uint64
	size             int64
	modified         time.Time
	changed          syscall.Timespec
	hash             uint64
	racy, unreadable bool
}

// same compares what stat tells.
func (s signature) same(o signature) bool {
	return s.device == o.device && s.inode == o.inode && s.size == o.size && s.modified.Equal(o.modified) &&
		s.changed == o.changed
}

func newScanner(dir, node string, now func() time.Time) *scanner {
	return &scanner{dir: dir, decoder: decoder{node: node}, seed: maphash.MakeSeed(), now: now,
		seen: map[string]signature{}}
}

// scan returns what has changed. again is true when a file was being written: it is left as it was, and the directory
// should be scanned again soon.
func (s *scanner) scan() (changes []change, again bool, err error) {
	names, err := s.list()
	if err != nil {
		return nil, false, err
	}
	for name := range s.seen {
		if _, found := slices.BinarySearch(names, name); !found {
			delete(s.seen, name)
			changes = append(changes, change{name: name, removed: true})
		}
	}
	var batch []*content
	size := 0
	flush := func() {
		changes = append(changes, s.parse(batch)...)
		batch, size = nil, 0
	}
	for _, name := range names {
		c, err := s.read(name)
		switch {
		case errors.Is(err, errUnstable):
			again = true
		case err != nil:
			changes = append(changes, s.unreadable(name, err)...)
		case c != nil:
			batch = append(batch, c)
			if size += len(c.text); size >= batchBytes {
				flush()
			}
		}
	}
	flush()
	return changes, again, nil
}

// list returns the names of the files that hold manifests, sorted.
func (s *scanner) list() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	var names []string
	for _, e := range entries {
		if isManifest(e.Name()) && !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// content is the content of a file that is to be parsed.
type content struct {
	name string
	text []byte
	docs []document
	// results are those of docs.
	results []outcome
}

var (
	errUnstable = errors.New("the file is being written")
	errSpecial  = errors.New("it is not a regular file")
	errTooLarge = fmt.Errorf("it is larger than %d MiB", maxFileBytes>>20)
)

// read returns the content of a file if it has changed, nil if not.
func (s *scanner) read(name string) (*content, error) {
	path := filepath.Join(s.dir, name)
	info, err := os.Stat(path)
	if err != nil {
		if _, gone := os.Lstat(path); gone != nil {
			// It went since the directory was listed.
			return nil, errUnstable
		}
		return nil, err
	}
	sig, known := signatureOf(info), s.seen[name]
	if !known.racy && !known.unreadable && sig.same(known) {
		return nil, nil
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, errSpecial
	case info.Size() > maxFileBytes:
		return nil, errTooLarge
	}
	text, sig, err := readStable(path)
	if err != nil {
		return nil, err
	}
	sig.racy = s.now().Sub(time.Unix(sig.changed.Unix())).Abs() < racyWindow
	sig.hash = maphash.Bytes(s.seed, text)
	s.seen[name] = sig
	if known.hash == sig.hash && known.inode != 0 && !known.unreadable {
		return nil, nil
	}
	return &content{name: name, text: text, docs: split(text)}, nil
}

// readStable reads a file that does not change meanwhile.
func readStable(path string) ([]byte, signature, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, signature{}, err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return nil, signature{}, err
	}
	text := make([]byte, 0, before.Size()+1)
	for {
		n, err := f.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, signature{}, err
		}
		if len(text) == cap(text) {
			return nil, signature{}, errUnstable
		}
	}
	after, err := f.Stat()
	if err != nil {
		return nil, signature{}, err
	}
	sig := signatureOf(after)
	if int64(len(text)) != after.Size() || !sig.same(signatureOf(before)) {
		return nil, signature{}, errUnstable
	}
	return text, sig, nil
}

func signatureOf(info fs.FileInfo) signature {
	sig := signature{size: info.Size(), modified: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		sig.device, sig.inode, sig.changed = uint64(st.Dev), st.Ino, st.Ctim
	}
	return sig
}

// unreadable returns the change of a file that is there and cannot be read: what it defined before stays.
func (s *scanner) unreadable(name string, err error) []change {
	s.seen[name] = signature{unreadable: true}
	var o outcome
	o.broken = true
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	o.problems = []source.Problem{{Where: name, Reason: source.ReasonUnreadable,
		Message: fmt.Sprintf("the file cannot be read: %v", err), Effect: "its last good state stays in force"}}
	return []change{{name: name, outcome: o}}
}

// parse decodes the documents of files, on all processors.
func (s *scanner) parse(batch []*content) []change {
	type job struct {
		c *content
		i int
	}
	var jobs []job
	for _, c := range batch {
		c.results = make([]outcome, len(c.docs))
		for i := range c.docs {
			jobs = append(jobs, job{c, i})
		}
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		workers.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= len(jobs) {
					return
				}
				j := jobs[n]
				j.c.results[j.i] = s.decoder.document(j.c.name, j.c.docs[j.i])
			}
		})
	}
	workers.Wait()
	out := make([]change, 0, len(batch))
	for _, c := range batch {
		change := change{name: c.name}
		for _, r := range c.results {
			change.add(r)
		}
		out = append(out, change)
	}
	return out
}
