// Package sqlite is the embedded journal: one SQLite file in WAL mode with
// synchronous=FULL, so that what was answered survives a loss of power. One
// process at a time owns the file, by a lock on a file beside it and by the
// term that every commit checks.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
)

// Config says where the database is.
type Config struct {
	Path   string // of the database file; its directory is made if need be
	Logger *slog.Logger

	pragmas   []string // more of them, for tests
	machineID string   // file of the machine id, for tests
}

// Journal is a state.Journal and a state.Lease. It touches the disk first in
// Acquire; until then every other method fails.
type Journal struct {
	cfg Config

	mu   sync.Mutex // guards open alone, never held over I/O
	open *database
}

// database is what an owner of the file holds.
type database struct {
	path    string
	lock    *os.File
	write   *sql.DB // one connection
	read    *sql.DB
	conn    *sql.Conn      // the writer's one connection, once there is one
	writer  chan *sql.Conn // conn, taken for a transaction; closed by close
	stmts   statements
	tenure  *lease.Keeper
	holder  holder
	emptied bool      // a term began beside this file before; should it hold none, that is lost
	files   [2]fileID // of the database and the lock, when they were opened
	counter int64     // commits so far, see table commits; with the writer
}

// New makes a journal on the file at cfg.Path.
func New(cfg Config) *Journal {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.machineID == "" {
		cfg.machineID = "/etc/machine-id"
	}
	return &Journal{cfg: cfg}
}

var errClosed = errors.New("the state database is not open")

func (j *Journal) database() (*database, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open == nil {
		return nil, errClosed
	}
	return j.open, nil
}

// readers bounds the connections that read events and logs.
const readers = 2

// pragmas of every connection. The page cache is small because reads are
// answered from memory. A checkpoint makes the commit that meets it wait for two
// more syncs, so they are four times rarer than SQLite's default, which keeps
// the WAL at 16 MiB; the size limit gives the space of a longer one back.
var pragmas = []string{
	"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)",
	"cache_size(-2048)", "temp_store(MEMORY)", "wal_autocheckpoint(4000)", "journal_size_limit(16777216)",
}

func openDatabase(ctx context.Context, cfg Config, lock *os.File) (_ *database, err error) {
	d := &database{path: cfg.Path, lock: lock, writer: make(chan *sql.Conn, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(explain(cfg.Path, err), d.close())
		}
	}()
	if err := createFile(cfg.Path); err != nil {
		return nil, err
	}
	if d.write, err = sql.Open("sqlite", dsn(cfg)); err != nil {
		return nil, err
	}
	d.write.SetMaxOpenConns(1)
	if err := migrate(ctx, d.write, cfg.Path); err != nil {
		return nil, err
	}
	if d.conn, err = d.write.Conn(ctx); err != nil {
		return nil, err
	}
	d.writer <- d.conn
	if err := d.stmts.prepare(ctx, d.conn); err != nil {
		return nil, err
	}
	if err := d.conn.QueryRowContext(ctx, "SELECT coalesce(max(n), 0) FROM commits").Scan(&d.counter); err != nil {
		return nil, err
	}
	if d.read, err = sql.Open("sqlite", dsn(cfg)+"&_pragma=query_only(1)"); err != nil {
		return nil, err
	}
	d.read.SetMaxOpenConns(readers)
	return d, nil
}

// dsn escapes the path, which may hold any byte that a file name may.
func dsn(cfg Config) string {
	q := url.Values{"_pragma": append(append([]string(nil), pragmas...), cfg.pragmas...)}
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: cfg.Path}).EscapedPath(), RawQuery: q.Encode()}
	return u.String()
}

// readOnly is for a look beside the owner.
func readOnly(path string) string {
	q := url.Values{"_pragma": {"busy_timeout(5000)"}, "mode": {"ro"}}
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}
	return u.String()
}

// createFile makes the file readable by its owner alone before SQLite opens
// it; the WAL takes the same mode.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		info, err := os.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			err = fleet.Errorf(fleet.CodeInvalidArgument, "state database %s: it is no regular file", path)
		}
		return err
	}
	if err != nil {
		return fmt.Errorf("state database: %w", err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(f.Close(), dir.Sync(), dir.Close())
}

// close waits for a transaction under way, lets none begin after it, and gives
// everything back, the lock last.
func (d *database) close() error {
	var errs []error
	if d.read != nil {
		errs = append(errs, d.read.Close())
	}
	if d.conn != nil {
		<-d.writer
		close(d.writer)
		d.stmts.close()
		// A file that is complete without its WAL is easier to copy.
		_, err := d.conn.ExecContext(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)")
		errs = append(errs, err, d.conn.Close())
	}
	if d.write != nil {
		errs = append(errs, d.write.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	return errors.Join(errs...)
}

// Close closes the database and gives the file free for another process. It
// waits for a commit under way.
func (j *Journal) Close() error {
	j.mu.Lock()
	d := j.open
	j.open = nil
	j.mu.Unlock()
	if d == nil {
		return nil
	}
	d.tenure.End(errClosed) //nolint:errcheck // it says why the term has ended, and that is here
	return errors.Join(d.tenure.Release(context.Background()), d.close())
}

// explain names the file and what to do about it, where the cause is known.
func explain(path string, err error) error {
	code, ok := resultCode(err)
	if !ok {
		return err
	}
	var e *fleet.Error
	switch code {
	case codeNotADB, codeCorrupt:
		e = fleet.Errorf(fleet.CodeUnavailable, "state database %s is damaged or no database: %w", path, err).
			With(fleet.DetailRemedy, instead(path))
	case codeFull:
		e = fleet.Errorf(fleet.CodeUnavailable, "state database %s: no space is left: %w", path, err).
			With(fleet.DetailRemedy, "free space on the file system that holds "+filepath.Dir(path))
	case codeReadonly, codeCantOpen, codePerm:
		e = fleet.Errorf(fleet.CodeUnavailable, "state database %s cannot be written: %w", path, err).
			With(fleet.DetailRemedy, "make it and its directory writable for this user")
	case codeBusy:
		e = fleet.Errorf(fleet.CodeUnavailable, "state database %s is held by another program: %w", path, err).
			With(fleet.DetailRemedy, "end the program that has it open for writing")
	default:
		e = fleet.Errorf(fleet.CodeUnavailable, "state database %s: %w", path, err)
	}
	return e
}

// instead is what to do about a file whose content is gone.
func instead(path string) string {
	return "stop every server that uses it and restore " + path + " from a backup; or move it away (with its -wal and -shm files) " +
		"to begin with an empty fleet, for which the VMs that still run are foreign"
}

// fingerprint tells this very file apart from a copy: machine, device and
// inode. The machine id itself is not given away.
func fingerprint(cfg Config) (string, error) {
	machine, err := os.ReadFile(cfg.machineID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("state database: machine id: %w", err)
	}
	id, err := identityAt(cfg.Path)
	if err != nil {
		return "", fmt.Errorf("state database: %w", err)
	}
	return fmt.Sprintf("sqlite/%s/%d/%d", digest("fuse state store", strings.TrimSpace(string(machine))), id.dev, id.ino), nil
}

var (
	_ state.Journal = (*Journal)(nil)
	_ state.Lease   = (*Journal)(nil)
)
