// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/source"
)

// world is what a consumer knows after the events so far.
type world struct {
	mu sync.Mutex
	// services maps each Service to its first ClusterIP, slices each slice to its first endpoint.
	services, slices map[string]string
	problems         map[string][]source.Problem
	synced, sets     int
	node             *source.Node
	cidrs            string
}

func (w *world) take(e source.Event) {
	if batch, ok := e.(source.Batch); ok {
		for _, e := range batch {
			w.take(e)
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := e.(type) {
	case source.SetService:
		w.sets++
		w.services[e.Service.ServiceName.String()] = e.Service.ClusterIPs[0].String()
	case source.DeleteService:
		delete(w.services, e.Name.String())
	case source.SetSlice:
		w.sets++
		w.slices[e.Slice.Namespace+"/"+e.Slice.Name] = e.Slice.Endpoints[0].Address.String()
	case source.DeleteSlice:
		delete(w.slices, e.Name.Namespace+"/"+e.Name.Name)
	case source.SetNode:
		w.node = e.Node
	case source.DeleteNode:
		w.node = nil
	case source.SetServiceCIDRs:
		w.cidrs = fmt.Sprint(e.CIDRs)
	case source.SetProblems:
		w.problems[e.Origin] = e.Problems
		if len(e.Problems) == 0 {
			delete(w.problems, e.Origin)
		}
	case source.Synced:
		w.synced++
	}
}

// state returns everything in one comparable text.
func (w *world) state() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var reasons []string
	for _, origin := range slices.Sorted(maps.Keys(w.problems)) {
		for _, p := range w.problems[origin] {
			reasons = append(reasons, filepath.Base(origin)+":"+p.Reason)
		}
	}
	return fmt.Sprint("services ", w.services, " slices ", w.slices, " problems ", reasons)
}

// directory is a manifests directory with a source running on it.
type directory struct {
	*testing.T
	path string
	*world
	cancel context.CancelFunc
	done   chan error
}

// eventsOnly makes the events do the work: nothing is found by looking around.
var eventsOnly = Timing{Settle: 10 * time.Millisecond, Check: time.Hour, Rescan: time.Hour}

// polling finds the directory when it returns, and what changes without events.
var polling = Timing{Settle: 10 * time.Millisecond, Check: 5 * time.Millisecond, Rescan: 20 * time.Millisecond}

func start(t *testing.T, path string, timing Timing) *directory {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := &directory{T: t, path: path, cancel: cancel, done: make(chan error, 1), world: newWorld()}
	events := make(chan source.Event)
	go func() { d.done <- New(path, "n1", timing).Run(ctx, events) }()
	go func() {
		for {
			select {
			case e := <-events:
				d.take(e)
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-d.done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	return d
}

// eventually waits until the world is as wanted.
func (d *directory) eventually(want string) {
	d.Helper()
	d.until(func() bool { return d.state() == want }, func() string { return "want\n" + want + "\nhave\n" + d.state() })
}

func (d *directory) until(ok func() bool, complaint func() string) {
	d.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			d.Fatal(complaint())
		}
	}
}

func (d *directory) eventuallySynced() {
	d.Helper()
	d.until(func() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.synced == 1 }, func() string { return "not synced: " + d.state() })
}

// write replaces a file by renaming a complete one over it.
func write(t *testing.T, path, text string) {
	t.Helper()
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(hidden, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, path); err != nil {
		t.Fatal(err)
	}
}

func serviceText(name, ip string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: %s, ports: [{port: 80}]}\n", name, ip)
}

func TestFilesComeChangeAndGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.json")
	write(t, a, webService+"---\n"+webSlice)
	d := start(t, dir, eventsOnly)
	d.eventuallySynced()
	d.eventually("services map[shop/web:10.96.0.10] slices map[shop/web-1:10.244.1.5] problems []")

	write(t, b, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"b"},"spec":{"clusterIP":"10.96.0.2","ports":[{"port":1}]}}`)
	d.eventually("services map[default/b:10.96.0.2 shop/web:10.96.0.10] slices map[shop/web-1:10.244.1.5] problems []")

	// In place, as a shell's redirection writes.
	if err := os.WriteFile(a, []byte(strings.Replace(webService, "0.10", "0.11", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	d.eventually("services map[default/b:10.96.0.2 shop/web:10.96.0.11] slices map[] problems []")

	if err := os.Remove(b); err != nil {
		t.Fatal(err)
	}
	d.eventually("services map[shop/web:10.96.0.11] slices map[] problems []")
	if err := os.Rename(a, filepath.Join(dir, "c.yml")); err != nil {
		t.Fatal(err)
	}
	write(t, b, serviceText("b", "10.96.0.3"))
	d.eventually("services map[default/b:10.96.0.3 shop/web:10.96.0.11] slices map[] problems []")
}

func TestOtherFilesAreNotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{".hidden.yaml", "a.yaml~", "a.yaml.swp", "README.md"} {
		write(t, filepath.Join(dir, name), "a: [")
	}
	if err := os.Mkdir(filepath.Join(dir, "sub.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "z.yaml"), serviceText("z", "10.96.0.1"))
	d := start(t, dir, eventsOnly)
	d.eventuallySynced()
	d.eventually("services map[default/z:10.96.0.1] slices map[] problems []")
}

func TestABrokenDocumentKeepsTheLastGoodState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	two := serviceText("one", "10.96.0.1") + "---\n" + serviceText("two", "10.96.0.2")
	write(t, a, two)
	d := start(t, dir, eventsOnly)
	d.eventually("services map[default/one:10.96.0.1 default/two:10.96.0.2] slices map[] problems []")

	write(t, a, serviceText("one", "10.96.0.11")+"---\n"+serviceText("two", "10.96.0.256"))
	d.eventually("services map[default/one:10.96.0.11 default/two:10.96.0.2] slices map[] problems [a.yaml:InvalidManifest]")

	write(t, a, "a: [\n")
	d.eventually("services map[default/one:10.96.0.11 default/two:10.96.0.2] slices map[] problems [a.yaml:InvalidManifest]")

	// The file is still broken; another one defines what it only keeps.
	write(t, filepath.Join(dir, "b.yaml"), serviceText("two", "10.96.0.22"))
	d.eventually("services map[default/one:10.96.0.11 default/two:10.96.0.22] slices map[] problems [a.yaml:InvalidManifest]")

	write(t, a, serviceText("one", "10.96.0.1"))
	d.eventually("services map[default/one:10.96.0.1 default/two:10.96.0.22] slices map[] problems []")
}

func TestABrokenFileAtTheStartBlocksNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "a: [\n---\n"+serviceText("one", "10.96.0.1"))
	write(t, filepath.Join(dir, "b.yaml"), serviceText("two", "10.96.0.2"))
	d := start(t, dir, eventsOnly)
	d.eventuallySynced()
	d.eventually("services map[default/one:10.96.0.1 default/two:10.96.0.2] slices map[] problems [a.yaml:InvalidManifest]")
}

func TestAFileThatCannotBeReadKeepsItsState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, target := filepath.Join(dir, "a.yaml"), filepath.Join(t.TempDir(), "target")
	write(t, target, serviceText("one", "10.96.0.1"))
	if err := os.Symlink(target, a); err != nil {
		t.Fatal(err)
	}
	d := start(t, dir, polling)
	d.eventually("services map[default/one:10.96.0.1] slices map[] problems []")
	if err := os.Rename(target, target+".away"); err != nil {
		t.Fatal(err)
	}
	d.eventually("services map[default/one:10.96.0.1] slices map[] problems [a.yaml:ManifestUnreadable]")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	d.until(func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		p := d.problems["a.yaml"]
		return len(p) == 1 && strings.Contains(p[0].Message, "not a regular file")
	}, d.state)
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(target+".away", target); err != nil {
		t.Fatal(err)
	}
	d.eventually("services map[default/one:10.96.0.1] slices map[] problems []")
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	d.eventually("services map[] slices map[] problems []")
}

func TestTheFirstDefinitionCounts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.yaml")
	write(t, b, serviceText("one", "10.96.0.2")+"---\n"+serviceText("one", "10.96.0.22"))
	write(t, c, serviceText("one", "10.96.0.3"))
	d := start(t, dir, eventsOnly)
	d.eventually("services map[default/one:10.96.0.2] slices map[] problems [b.yaml:DuplicateObject c.yaml:DuplicateObject]")
	d.mu.Lock()
	got := d.problems["c.yaml"][0].String()
	d.mu.Unlock()
	want := "c.yaml: document 1 (line 1): Service default/one: it is defined in b.yaml: document 1 (line 1) already; this definition is ignored"
	if got != want {
		t.Errorf("problem %q, want %q", got, want)
	}

	write(t, a, serviceText("one", "10.96.0.1"))
	d.eventually("services map[default/one:10.96.0.1] slices map[] " +
		"problems [b.yaml:DuplicateObject b.yaml:DuplicateObject c.yaml:DuplicateObject]")
	for _, name := range []string{a, b} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	d.eventually("services map[default/one:10.96.0.3] slices map[] problems []")
}

// TestAVolumeOfAConfigMapIsFollowed swaps the content the way a kubelet does: a symbolic link is renamed over another.
func TestAVolumeOfAConfigMapIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	publish := func(version string, files map[string]string) {
		t.Helper()
		for name, text := range files {
			if err := os.MkdirAll(filepath.Join(dir, version), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, version, name), text)
		}
		link := filepath.Join(dir, "..data_tmp")
		if err := errors.Join(os.Symlink(version, link), os.Rename(link, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	publish("..1", map[string]string{"a.yaml": serviceText("one", "10.96.0.1"), "b.yaml": serviceText("two", "10.96.0.2")})
	for _, name := range []string{"a.yaml", "b.yaml"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	d := start(t, dir, eventsOnly)
	d.eventually("services map[default/one:10.96.0.1 default/two:10.96.0.2] slices map[] problems []")
	publish("..2", map[string]string{"a.yaml": serviceText("one", "10.96.0.11"), "b.yaml": serviceText("two", "10.96.0.22")})
	d.eventually("services map[default/one:10.96.0.11 default/two:10.96.0.22] slices map[] problems []")
}

func TestADirectoryThatDisappearsKeepsItsState(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"removed", "renamed away"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "manifests")
			a := filepath.Join(dir, "a.yaml")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, a, serviceText("one", "10.96.0.1"))
			d := start(t, dir, polling)
			d.eventually("services map[default/one:10.96.0.1] slices map[] problems []")
			if err := os.Rename(dir, dir+".away"); err != nil {
				t.Fatal(err)
			}
			if how == "removed" {
				if err := os.RemoveAll(dir + ".away"); err != nil {
					t.Fatal(err)
				}
			}
			d.eventually("services map[default/one:10.96.0.1] slices map[] problems [manifests:ManifestUnreadable]")

			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, a, serviceText("one", "10.96.0.2"))
			d.eventually("services map[default/one:10.96.0.2] slices map[] problems []")
			write(t, a, serviceText("one", "10.96.0.3"))
			d.eventually("services map[default/one:10.96.0.3] slices map[] problems []")
		})
	}
}

func TestADirectoryThatIsNotThereYetIsWaitedFor(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "manifests")
	d := start(t, dir, polling)
	d.eventually("services map[] slices map[] problems [manifests:ManifestUnreadable]")
	if d.synced != 0 {
		t.Error("synced without a directory: everything that is programmed would be removed")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.yaml"), serviceText("one", "10.96.0.1"))
	d.eventuallySynced()
	d.eventually("services map[default/one:10.96.0.1] slices map[] problems []")
}

func TestADirectoryBehindASymbolicLinkIsFollowed(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	link := filepath.Join(base, "current")
	for i, version := range []string{"v1", "v2"} {
		dir := filepath.Join(base, version)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "a.yaml"), serviceText("one", fmt.Sprintf("10.96.0.%d", i+1)))
	}
	if err := os.Symlink("v1", link); err != nil {
		t.Fatal(err)
	}
	d := start(t, link, polling)
	d.eventually("services map[default/one:10.96.0.1] slices map[] problems []")
	if err := errors.Join(os.Symlink("v2", link+".new"), os.Rename(link+".new", link)); err != nil {
		t.Fatal(err)
	}
	d.eventually("services map[default/one:10.96.0.2] slices map[] problems []")
}

func TestTheNodeAndTheServiceRanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	node, cidr := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "cidr.yaml")
	write(t, node, "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}\n"+
		"status: {addresses: [{type: InternalIP, address: 10.0.0.1}]}\n")
	write(t, cidr, "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: a}\nspec: {cidrs: [10.96.0.0/12]}\n---\n"+
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: b}\nspec: {cidrs: [10.96.0.0/12, fd00::/112]}\n")
	d := start(t, dir, eventsOnly)
	d.eventuallySynced()
	is := func(zone, cidrs string) func() bool {
		return func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.cidrs == cidrs && (d.node == nil) == (zone == "") && (d.node == nil || d.node.Zone == zone)
		}
	}
	d.until(is("a", "[10.96.0.0/12 fd00::/112]"), func() string { return fmt.Sprintf("node %+v, ranges %s", d.node, d.cidrs) })
	write(t, cidr, "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: a}\nspec: {cidrs: [10.96.0.0/12]}\n")
	d.until(is("a", "[10.96.0.0/12]"), func() string { return fmt.Sprintf("node %+v, ranges %s", d.node, d.cidrs) })
	if err := os.Remove(node); err != nil {
		t.Fatal(err)
	}
	d.until(is("", "[10.96.0.0/12]"), func() string { return fmt.Sprintf("node %+v, ranges %s", d.node, d.cidrs) })
}

func TestOnlyWhatChangedIsSent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var all []string
	for i := range 50 {
		all = append(all, serviceText(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.0.%d", i+1)))
	}
	a := filepath.Join(dir, "a.yaml")
	write(t, a, strings.Join(all, "---\n"))
	d := start(t, dir, eventsOnly)
	d.eventuallySynced()
	all[7] = serviceText("s7", "10.96.1.7")
	write(t, a, strings.Join(all, "---\n"))
	d.until(func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.services["default/s7"] == "10.96.1.7"
	}, d.state)
	if d.sets != 51 {
		t.Errorf("%d objects were sent, want 50 and the one that changed", d.sets)
	}
}

func TestWithoutEventsTheDirectoryIsPolled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newWatch(dir, eventsOnly)
	// A closed watcher refuses as the kernel does when it gives no more watches.
	w.close()
	if err := w.attach(t.Context()); err != nil || w.failure == nil {
		t.Fatalf("attach: %v, failure %v", err, w.failure)
	}
	write(t, filepath.Join(dir, "a.yaml"), serviceText("one", "10.96.0.1"))
	events := make(chan source.Event, 10)
	r := &run{source: New(dir, "n1", eventsOnly), events: events, scanner: newScanner(dir, "n1", time.Now), state: newState()}
	r.pass(t.Context(), w)
	close(events)
	d := newWorld()
	for e := range events {
		d.take(e)
	}
	want := "services map[default/one:10.96.0.1] slices map[] problems [" + filepath.Base(dir) + ":ManifestUnreadable]"
	if got := d.state(); got != want || d.synced != 1 {
		t.Errorf("have %s, synced %d, want %s", got, d.synced, want)
	}
}
