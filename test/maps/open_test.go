// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/maps"
)

func TestOpeningWhatIsNotThereSaysThatShuntDoesNotRun(t *testing.T) {
	dir := bpffs(t)
	for _, dir := range []string{dir, filepath.Join(dir, "absent"), t.TempDir()} {
		if _, err := maps.Open(dir, maps.Options{ReadOnly: true}); !errors.Is(err, maps.ErrNotPinned) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestOpeningAnotherLayoutSaysWhichOneItIs(t *testing.T) {
	dir := bpffs(t)
	made := pin(t, dir, nil)
	meta := maps.Meta{LayoutVersion: maps.LayoutVersion + 7}
	if err := made[maps.MapMeta].Put(uint32(0), &meta); err != nil {
		t.Fatal(err)
	}
	_, err := maps.Open(dir, maps.Options{})
	var layout *maps.LayoutError
	if !errors.As(err, &layout) || layout.Pinned != maps.LayoutVersion+7 || layout.Known != maps.LayoutVersion {
		t.Fatal(err)
	}
}

func TestOpeningAMapOfOtherSizesIsRefused(t *testing.T) {
	dir := bpffs(t)
	pin(t, dir, nil)
	path := filepath.Join(dir, maps.MapBackends)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Open(dir, maps.Options{}); err == nil || !strings.Contains(err.Error(), maps.MapBackends) {
		t.Fatalf("with a map missing: %v", err)
	}
	other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Pin(path); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Open(dir, maps.Options{}); err == nil || !strings.Contains(err.Error(), "another") {
		t.Fatalf("with another map: %v", err)
	}
}

func TestAReaderCannotWrite(t *testing.T) {
	dir := bpffs(t)
	pin(t, dir, nil)
	if err := open(t, dir, maps.Options{}).PutSlots(3, []uint32{8, 9}); err != nil {
		t.Fatal(err)
	}
	k := open(t, dir, maps.Options{ReadOnly: true})
	if _, err := k.PutBackends([]maps.Backend{{BackendID: 1}}); err == nil {
		t.Error("a backend was written")
	}
	if err := k.PutSlots(0, []uint32{1}); err == nil {
		t.Error("slots were written")
	}
	if ids, err := k.Slots(maps.Run{Base: 3, Count: 3}); err != nil || !slices.Equal(ids, []uint32{8, 9, 0}) {
		t.Errorf("slots: %v, %v", ids, err)
	}
}

func TestOpeningWithoutPermissionSaysSo(t *testing.T) {
	dir := bpffs(t)
	pin(t, dir, nil)
	if err := os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755); err != nil {
		t.Fatal(err)
	}
	result := make(chan error)
	go func() {
		// Only this thread becomes another user, and it ends with the goroutine.
		runtime.LockOSThread()
		const nobody = 65534
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
			result <- e
			return
		}
		_, err := maps.Open(dir, maps.Options{ReadOnly: true})
		result <- err
	}()
	if err := <-result; !errors.Is(err, maps.ErrNoPermission) {
		t.Fatal(err)
	}
}
