package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/sqlite"
)

func (p *plane) openStore(ctx context.Context) error {
	journal := sqlite.New(sqlite.Config{Path: dataDir(p.settings.DataDir).path("fuse.db"), Logger: p.log})
	p.journal = journal
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	p.store, err = state.Open(ctx, state.Config{
		Journal: timedJournal{journal, p.metrics}, Lease: journal, Logger: p.log,
		Candidate: state.Candidate{Name: fmt.Sprintf("%s pid %d", hostname, os.Getpid())},
	})
	return err
}

func openSealer(s config.Server) (*secrets.Sealer, error) {
	var key secrets.Key
	var err error
	if s.EncryptionKey != "" {
		key, err = secrets.ParseKey(s.EncryptionKey)
	} else {
		key, err = fileKey(dataDir(s.DataDir))
	}
	if err != nil {
		return nil, fmt.Errorf("encryption key: %w", err)
	}
	return secrets.NewSealer(key), nil
}

// fileKey reads the key of a data directory, and makes one only for a state
// that has nothing sealed yet: a new key would make what the old one sealed
// unreadable without a word.
func fileKey(dir dataDir) (secrets.Key, error) {
	path := dir.path("key")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if db, err := os.Stat(dir.path("fuse.db")); err == nil && db.Size() > 0 {
			return secrets.Key{}, fleet.Errorf(fleet.CodeUnavailable, "%s is missing, but the state that it seals is there", path).
				With(fleet.DetailRemedy, "restore the file, or give the key in TOKEN_ENCRYPTION_KEY; without it move fuse.db away and register the hosts again")
		}
	}
	return secrets.LoadOrCreateKey(path)
}
