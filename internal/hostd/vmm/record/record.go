// Package record keeps small records as files of JSON, which survive a crash.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/durable"
)

// Write writes a file in one step that survives a crash, readable by its owner
// alone.
func Write(dir, name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, name), append(b, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Read reads what Write wrote. fs.ErrNotExist means that it never came to that.
func Read[T any](dir, name string) (T, error) {
	var v T
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("read %s: %w", filepath.Join(dir, name), err)
	}
	return v, nil
}

// Change changes what Write wrote. An error means that it is as it was: a change
// that may have come as far as the disk is taken back.
func Change[T any](dir, name string, change func(*T)) error {
	before, err := Read[T](dir, name)
	if err != nil {
		return err
	}
	next := before
	change(&next)
	if err := Write(dir, name, next); err != nil {
		return errors.Join(err, Write(dir, name, before))
	}
	return nil
}
