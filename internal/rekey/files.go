package rekey

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/secrets"
)

// Files of keys in a data directory. The next key is there while a rekey is
// under way.
const (
	KeyFile     = "key"
	NextKeyFile = "key.next"
)

// NextKey makes the ring of a rekey that gives a data directory a new key, which
// is a file before anything is sealed with it. It opens with the directory's
// key, the old ones and what lies in the clear. Call finish once everything is
// sealed anew: it puts the next key in the place of the key, which it keeps
// under the name that it returns.
func NextKey(dir string, old []string) (ring *secrets.Sealer, finish func() (kept string, err error), err error) {
	var keys []secrets.Key
	if path := filepath.Join(dir, KeyFile); exists(path) {
		k, err := secrets.LoadOrCreateKey(path)
		if err != nil {
			return nil, nil, fmt.Errorf("encryption key: %w", err)
		}
		keys = append(keys, k)
	}
	for _, text := range old {
		k, err := secrets.ParseKey(text)
		if err != nil {
			return nil, nil, fmt.Errorf("earlier encryption key: %w", err)
		}
		keys = append(keys, k)
	}
	next, err := secrets.LoadOrCreateKey(filepath.Join(dir, NextKeyFile))
	if err != nil {
		return nil, nil, fmt.Errorf("next encryption key: %w", err)
	}
	return secrets.NewSealer(next, keys...).TakingClear(), func() (string, error) { return promote(dir) }, nil
}

// promote may be interrupted anywhere and done again.
func promote(dir string) (kept string, err error) {
	path := filepath.Join(dir, KeyFile)
	if exists(path) {
		old, err := secrets.LoadOrCreateKey(path)
		if err != nil {
			return "", err
		}
		kept = path + ".old-" + old.ID()
		if err := os.Link(path, kept); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("keep the key before: %w", err)
		}
	}
	if err := os.Rename(filepath.Join(dir, NextKeyFile), path); err != nil {
		return "", fmt.Errorf("put the next key in place: %w", err)
	}
	return kept, durable.SyncDir(dir)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
