// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// ErrFileChanged is what Watch returns when the file has other content than at Load.
var ErrFileChanged = errors.New("configuration file changed: restart to use it")

// Watch returns ErrFileChanged when the content of the configuration file differs from what is there now, and nil when
// ctx ends first or there is no file. The agent exits then, and its supervisor starts it with the new configuration;
// what is programmed goes on working meanwhile.
//
// It watches the directory, not the file: a ConfigMap volume changes by replacing a symbolic link above the file.
func (f *Flags) Watch(ctx context.Context) error {
	if f.ConfigFile == "" {
		<-ctx.Done()
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch configuration: %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(filepath.Dir(f.ConfigFile)); err != nil {
		return fmt.Errorf("watch configuration %s: %w", f.ConfigFile, err)
	}
	before, err := f.readFile(f.ConfigFile)
	if err != nil {
		return fmt.Errorf("watch configuration: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			return fmt.Errorf("watch configuration %s: %w", f.ConfigFile, err)
		case <-watcher.Events:
			// A file that is away for a moment, or empty because it is being written, is no new configuration.
			if now, err := f.readFile(f.ConfigFile); err == nil && len(now) > 0 && !bytes.Equal(now, before) {
				return fmt.Errorf("%s: %w", f.ConfigFile, ErrFileChanged)
			}
		}
	}
}
