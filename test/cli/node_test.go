// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/doctor"
	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/loader"
)

// diagnose runs doctor and returns the findings of one check.
func (w *world) diagnose(check string) []doctor.Finding {
	w.t.Helper()
	stdout, stderr, _ := w.shunt("doctor", "-o", "json")
	var report doctor.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		w.t.Fatalf("%v: %s", err, stderr)
	}
	var found []doctor.Finding
	for _, f := range report.Findings {
		if f.Check == check {
			found = append(found, f)
		}
	}
	return found
}

func (w *world) expect(check string, status doctor.Status, message string) {
	w.t.Helper()
	for _, f := range w.diagnose(check) {
		if f.Status == status && strings.Contains(f.Message, message) {
			return
		}
	}
	w.t.Errorf("no %s of %s with %q in %+v", status, check, message, w.diagnose(check))
}

func TestDoctorSeesWhatIsAttached(t *testing.T) {
	w := newWorld(t)
	programmed(w)
	w.expect("bpffs", doctor.Pass, w.node.BPFFS)
	w.expect("agent", doctor.Pass, "writes the maps")
	w.expect("maps", doctor.Pass, "9 services, 3 backends")
	w.expect("programs", doctor.Warn, "all attached to the cgroup "+w.node.CgroupRoot+":")
	if findings := w.diagnose("programs"); len(findings) != 1 {
		t.Errorf("%+v", findings)
	}

	w.must(os.Remove(filepath.Join(w.node.BPFFS, loader.DirectoryName, "links", "sock_connect4")))
	w.expect("programs", doctor.Fail, "not attached: connect4:")
	if a := w.explain(t, "10.96.0.1:80", "node"); a.Reason != explain.ReasonNotAttached {
		t.Errorf("explained: %+v", a)
	}

	w.must(w.directory.Close())
	w.expect("agent", doctor.Warn, "no agent runs: what is programmed goes on working")
}

func TestCleanupLeavesNothingAndCanBeRepeated(t *testing.T) {
	w := newWorld(t)
	_, stderr, status := w.shunt("cleanup")
	if status != 1 || !strings.Contains(stderr, "another agent is running on this node") {
		t.Errorf("with an agent: status %d, %s", status, stderr)
	}
	w.expect("programs", doctor.Warn, "all attached")

	w.must(w.directory.Close())
	for _, want := range []string{"removed shunt's programs and maps", "shunt has left nothing"} {
		stdout, stderr, status := w.shunt("cleanup")
		if status != 0 || !strings.Contains(stdout, want) {
			t.Errorf("status %d, %s%s", status, stdout, stderr)
		}
		w.isClean()
	}
}

func TestCleanupByForceRemovesWhatAnAgentStillHolds(t *testing.T) {
	w := newWorld(t)
	stdout, stderr, status := w.shunt("cleanup", "--force")
	if status != 0 || !strings.Contains(stdout, "removed shunt's programs and maps") {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
	w.isClean()
}

// isClean looks at the bpffs and at the hooks of the node's cgroup.
func (w *world) isClean() {
	w.t.Helper()
	if _, err := os.Stat(filepath.Join(w.node.BPFFS, loader.DirectoryName)); !errors.Is(err, fs.ErrNotExist) {
		w.t.Errorf("the pin directory is left: %v", err)
	}
	facts := doctor.Gather(w.t.Context(), doctor.Options{Proc: "/proc", BPFFS: w.node.BPFFS,
		Pins: filepath.Join(w.node.BPFFS, loader.DirectoryName)})
	if len(facts.Links) != 0 {
		w.t.Errorf("left attached: %+v", facts.Links)
	}
	_, stderr, status := w.shunt("services")
	if status != 1 || !strings.Contains(stderr, "nothing is pinned here") {
		w.t.Errorf("services after cleanup: status %d, %s", status, stderr)
	}
}
