// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/spf13/pflag"
)

// watch starts Watch on a file and returns its result when the file is known to be watched: the first read of the
// file comes after the watch is set.
func watch(t *testing.T, ctx context.Context, file string) <-chan error {
	t.Helper()
	flags := AddFlags(pflag.NewFlagSet("agent", pflag.ContinueOnError))
	flags.ConfigFile = file
	read := make(chan struct{})
	var once sync.Once
	flags.readFile = func(name string) ([]byte, error) {
		data, err := os.ReadFile(name)
		once.Do(func() { close(read) })
		return data, err
	}
	result := make(chan error, 1)
	go func() { result <- flags.Watch(ctx) }()
	<-read
	return result
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAWrittenFileIsAChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.conf")
	write(t, file, "one")
	result := watch(t, t.Context(), file)
	write(t, file, "two")
	if err := <-result; !errors.Is(err, ErrFileChanged) {
		t.Errorf("Watch = %v", err)
	}
}

// A ConfigMap volume: file -> ..data/file, ..data -> a directory per version.
func TestAReplacedConfigMapVolumeIsAChange(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(dir, ".."+version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, ".."+version, "config.conf"), version)
	}
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("..one", "..data")
	link("..data/config.conf", "config.conf")
	result := watch(t, t.Context(), filepath.Join(dir, "config.conf"))
	link("..two", "..data_tmp")
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, ErrFileChanged) {
		t.Errorf("Watch = %v", err)
	}
}

func TestTheSameContentAgainIsNoChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.conf")
	write(t, file, "one")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	flags := AddFlags(pflag.NewFlagSet("agent", pflag.ContinueOnError))
	flags.ConfigFile = file
	reads := make(chan string, 100)
	flags.readFile = func(name string) ([]byte, error) {
		data, err := os.ReadFile(name)
		reads <- string(data)
		return data, err
	}
	result := make(chan error, 1)
	go func() { result <- flags.Watch(ctx) }()
	<-reads // what Watch compares with
	write(t, file, "one")
	for <-reads != "one" { // it may see the file while it is empty
	}
	select {
	case err := <-result:
		t.Fatalf("Watch = %v", err)
	default:
	}
	cancel()
	if err := <-result; err != nil {
		t.Errorf("Watch = %v", err)
	}
}
