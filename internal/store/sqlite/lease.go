package sqlite

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Acquire locks the file, brings its schema up to date and begins a term. It
// does not wait for another holder: it names it and fails.
func (j *Journal) Acquire(ctx context.Context, c state.Candidate) (state.Grant, error) {
	if _, err := j.database(); err == nil {
		return state.Grant{}, fleet.Errorf(fleet.CodeUnavailable, "state database %s is open already: %w", j.cfg.Path, fleet.ErrNotLeader)
	}
	if err := os.MkdirAll(filepath.Dir(j.cfg.Path), 0o700); err != nil {
		return state.Grant{}, fmt.Errorf("state database: %w", err)
	}
	asked := lease.Now()
	lock, err := lockFile(ctx, j.cfg.Path)
	if err != nil {
		return state.Grant{}, err
	}
	before := readHolder(lock)
	h := holder{Candidate: c, PID: os.Getpid(), Last: max(before.Term, before.Last)}
	_, absent := os.Stat(j.cfg.Path)
	if err := h.write(lock); err != nil {
		return state.Grant{}, errors.Join(err, lock.Close())
	}
	d, err := openDatabase(ctx, j.cfg, lock)
	if err != nil {
		return state.Grant{}, err
	}
	d.emptied = h.Last > 0 && absent == nil
	grant, err := d.claim(ctx, c.Name)
	if err == nil {
		grant.Fingerprint, err = fingerprint(j.cfg)
	}
	if err == nil {
		h.Term = grant.Term
		err = h.write(lock)
	}
	if err == nil {
		err = d.identify()
	}
	if err != nil {
		return state.Grant{}, errors.Join(explain(j.cfg.Path, err), d.close())
	}
	d.holder = h
	d.tenure = lease.Keep(lease.Config{
		Timing: lease.Timing{Renew: fileCheck}, Lasting: true, Asked: asked, Logger: j.cfg.Logger,
		Extend: func(context.Context) error { return d.inPlace() },
	})
	grant.Tenure = d.tenure
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open = d
	return grant, nil
}

// fileCheck is how often the owner looks whether its files are still those at
// their paths.
const fileCheck = time.Second

// claim makes the new term and its token durable before anybody sees them.
func (d *database) claim(ctx context.Context, holder string) (grant state.Grant, err error) {
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return state.Grant{}, fmt.Errorf("make claim token: %w", err)
	}
	grant.ClaimToken = hex.EncodeToString(token)
	err = d.transaction(ctx, func(ctx context.Context, conn *sql.Conn) error {
		var last int64
		err := conn.QueryRowContext(ctx, "SELECT term, revision FROM meta").Scan(&last, &grant.Revision)
		if errors.Is(err, sql.ErrNoRows) && d.emptied {
			return lost(d.path)
		}
		if errors.Is(err, sql.ErrNoRows) {
			_, err = conn.ExecContext(ctx, "INSERT INTO meta VALUES (1, ?, 0, '', '', 0, 0, '')", uid.New())
		}
		if err != nil {
			return err
		}
		grant.Term = max(last+1, time.Now().UnixMilli())
		if _, err = conn.ExecContext(ctx, "UPDATE meta SET term = ?, claim_token = ?, holder = ?", grant.Term, grant.ClaimToken, holder); err != nil {
			return err
		}
		grant.Earlier, err = recordTerm(ctx, conn, grant, holder)
		return err
	})
	if err != nil {
		return state.Grant{}, fmt.Errorf("begin a term: %w", err)
	}
	return grant, nil
}

// lost refuses a file without a fleet in which a fleet was: it was cut to nothing,
// or what it held was in a -wal file that is gone. An empty fleet in its place
// would look as if nothing had happened.
func lost(path string) error {
	return fleet.Errorf(fleet.CodeUnavailable, "state database %s is empty, but a server has led a fleet from it before: "+
		"it was cut, or its -wal file was deleted", path).With(fleet.DetailRemedy, instead(path))
}

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}
