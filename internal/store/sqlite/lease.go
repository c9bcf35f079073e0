package sqlite

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Acquire locks the file, brings its schema up to date and begins a term. It
// does not wait for another holder: it names it and fails.
func (j *Journal) Acquire(ctx context.Context, holder string) (state.Grant, error) {
	if _, err := j.database(); err == nil {
		return state.Grant{}, fleet.Errorf(fleet.CodeUnavailable, "state database %s is open already: %w", j.cfg.Path, fleet.ErrNotLeader)
	}
	if err := os.MkdirAll(filepath.Dir(j.cfg.Path), 0o700); err != nil {
		return state.Grant{}, fmt.Errorf("state database: %w", err)
	}
	lock, err := lockFile(j.cfg.Path+".lock", j.cfg.Path, holder)
	if err != nil {
		return state.Grant{}, err
	}
	d, err := openDatabase(ctx, j.cfg, lock)
	if err != nil {
		return state.Grant{}, err
	}
	grant, err := d.claim(ctx, holder)
	if err == nil {
		grant.Fingerprint, err = fingerprint(j.cfg)
	}
	if err != nil {
		return state.Grant{}, errors.Join(explain(j.cfg.Path, err), d.close())
	}
	d.tenure = &tenure{}
	grant.Tenure = d.tenure
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open = d
	return grant, nil
}

// lockFile takes the lock that lasts as long as the process: the kernel drops
// it when the process dies, however it dies.
func lockFile(path, database, holder string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the state database: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock of the state database: %w", err), f.Close())
		}
		other, _ := io.ReadAll(io.LimitReader(f, 256)) // only for the message
		return nil, errors.Join(fleet.Errorf(fleet.CodeUnavailable, "state database %s is in use by %q: %w", database, strings.TrimSpace(string(other)), fleet.ErrNotLeader).
			With(fleet.DetailRemedy, "stop that server, or start this one with another data directory"), f.Close())
	}
	text := fmt.Sprintf("%s (pid %d)\n", holder, os.Getpid())
	_, err = f.WriteAt([]byte(text), 0)
	if err = errors.Join(err, f.Truncate(int64(len(text)))); err != nil {
		return nil, errors.Join(fmt.Errorf("lock of the state database: %w", err), f.Close())
	}
	return f, nil
}

// claim makes the new term and its token durable before anybody sees them.
func (d *database) claim(ctx context.Context, holder string) (grant state.Grant, err error) {
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return state.Grant{}, fmt.Errorf("make claim token: %w", err)
	}
	grant.ClaimToken = hex.EncodeToString(token)
	err = d.transaction(ctx, func(ctx context.Context, conn *sql.Conn) error {
		var last int64
		err := conn.QueryRowContext(ctx, "SELECT term FROM meta").Scan(&last)
		if errors.Is(err, sql.ErrNoRows) {
			_, err = conn.ExecContext(ctx, "INSERT INTO meta VALUES (1, ?, 0, '', '', 0, 0, '')", uid.New())
		}
		if err != nil {
			return err
		}
		grant.Term = max(last+1, time.Now().UnixMilli())
		_, err = conn.ExecContext(ctx, "UPDATE meta SET term = ?, claim_token = ?, holder = ?", grant.Term, grant.ClaimToken, holder)
		return err
	})
	if err != nil {
		return state.Grant{}, fmt.Errorf("begin a term: %w", err)
	}
	return grant, nil
}

// tenure lasts until the journal is closed: no other process can lock the
// file before.
type tenure struct{ over atomic.Bool }

func (t *tenure) end() { t.over.Store(true) }

// Check reports whether the term has been given up.
func (t *tenure) Check() error {
	if t.over.Load() {
		return fmt.Errorf("the state database was closed: %w", fleet.ErrNotLeader)
	}
	return nil
}

// Release ends the term; the file stays locked until it is closed.
func (t *tenure) Release(context.Context) error {
	t.end()
	return nil
}

func identity(path string) (dev, ino uint64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, errors.New("the file has no inode")
	}
	return st.Dev, st.Ino, nil
}

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}
