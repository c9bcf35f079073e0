// Package postgres is the journal in a PostgreSQL database (15 or newer), for
// a control plane with standbys. Several servers may be connected; one at a
// time owns the fleet, by a lease row on the database's clock and by the term
// that every commit checks in its own transaction.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
)

// Config says where the database is and how it is used.
type Config struct {
	URL      string // postgres://… or a list of keyword=value
	MaxConns int    // connections at most; 0: DefaultMaxConns
	Lease    lease.Timing
	// CommitTimeout is how long a commit may take before its outcome counts as
	// unknown; 0: DefaultCommitTimeout.
	CommitTimeout time.Duration
	Logger        *slog.Logger
}

// Defaults of Config.
const (
	DefaultMaxConns      = 8
	DefaultCommitTimeout = 10 * time.Second

	// MinConns is the smallest MaxConns.
	MinConns = writers + 1
)

// Two connections are the writer's: one commits, the other renews the lease
// however busy readers are. The rest reads, and deletes old events.
const writers = 2

// connectTimeout bounds the making of a connection.
const connectTimeout = 5 * time.Second

// Journal is a state.Journal and a state.Lease. It connects first in Acquire
// or Leader; until then every other method fails.
type Journal struct {
	cfg Config

	mu   sync.Mutex // guards open alone, never held over I/O
	open *database
}

// database is a connected journal.
type database struct {
	cfg         Config
	name        string // for messages, without password
	write, read *pgxpool.Pool

	mu      sync.Mutex // guards what follows; never held over I/O
	tenure  *lease.Keeper
	term    int64
	n       int64  // number of the newest commit
	pending string // id of a batch whose commit has an unknown outcome
}

// New makes a journal in the database at cfg.URL.
func New(cfg Config) *Journal {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = DefaultMaxConns
	}
	cfg.MaxConns = max(cfg.MaxConns, MinConns)
	if cfg.CommitTimeout <= 0 {
		cfg.CommitTimeout = DefaultCommitTimeout
	}
	cfg.Lease = cfg.Lease.Normal()
	return &Journal{cfg: cfg}
}

var errClosed = errors.New("the state database is not connected")

func (j *Journal) database() (*database, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open == nil {
		return nil, errClosed
	}
	return j.open, nil
}

// connect returns the database, which it makes at first; pools connect when
// they are used.
func (j *Journal) connect() (*database, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open != nil {
		return j.open, nil
	}
	d := &database{cfg: j.cfg}
	var err error
	if d.write, err = d.pool(writers); err != nil {
		return nil, err
	}
	if d.read, err = d.pool(j.cfg.MaxConns - writers); err != nil {
		d.write.Close()
		return nil, err
	}
	j.open = d
	return d, nil
}

func (d *database) pool(conns int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(d.cfg.URL)
	if err != nil {
		return nil, badAddress(err)
	}
	cc := cfg.ConnConfig
	d.name = fmt.Sprintf("%s:%d/%s", cc.Host, cc.Port, cc.Database)
	cfg.MaxConns, cfg.MinConns = int32(conns), 0
	cfg.MaxConnIdleTime = 5 * time.Minute
	cfg.HealthCheckPeriod = time.Minute
	if cc.ConnectTimeout == 0 || cc.ConnectTimeout > connectTimeout {
		cc.ConnectTimeout = connectTimeout
	}
	// A database server that vanished is noticed within this, idle or not.
	cc.DialFunc = (&net.Dialer{Control: dropUnanswered, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: connectTimeout, Interval: connectTimeout, Count: 2,
	}}).DialContext
	if cc.RuntimeParams["application_name"] == "" {
		cc.RuntimeParams["application_name"] = "fuse"
	}
	// A cluster that answers before the disk has it would break the promise.
	cc.RuntimeParams["synchronous_commit"] = "on"
	// A server that was cut off must not hold a lock until TCP notices.
	cc.RuntimeParams["idle_in_transaction_session_timeout"] = "10s"
	cc.RuntimeParams["tcp_user_timeout"] = "10s"
	return pgxpool.NewWithConfig(context.Background(), cfg)
}

// unanswered is for how long what was sent to the database server may stay
// unacknowledged. Without it the kernel would go on for a quarter of an hour, and
// for minutes after a network has come back.
const unanswered = 10 * time.Second

func dropUnanswered(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var set error
	err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unanswered.Milliseconds()))
	})
	return errors.Join(err, set)
}

// Close gives the lease back and ends the connections. It waits for a commit
// under way.
func (j *Journal) Close() error {
	j.mu.Lock()
	d := j.open
	j.open = nil
	j.mu.Unlock()
	if d == nil {
		return nil
	}
	d.mu.Lock()
	tenure := d.tenure
	d.mu.Unlock()
	if tenure != nil {
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		defer cancel()
		if err := tenure.Release(ctx); err != nil {
			// It expires by itself.
			d.cfg.Logger.Warn("the lease could not be given back", slog.Any("error", err))
		}
	}
	d.read.Close()
	d.write.Close()
	return nil
}

// Load reads every table that lives in memory, in one read transaction.
func (j *Journal) Load(ctx context.Context, events int) (*state.Loaded, error) {
	d, err := j.database()
	if err != nil {
		return nil, err
	}
	var l *state.Loaded
	err = pgx.BeginTxFunc(ctx, d.read, snapshot, func(tx pgx.Tx) (err error) {
		l, err = load(ctx, tx, events)
		return err
	})
	if err != nil {
		return nil, d.explain(err)
	}
	return l, nil
}

// snapshot is a transaction that sees one state of the database.
var snapshot = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

var (
	_ state.Journal = (*Journal)(nil)
	_ state.Lease   = (*Journal)(nil)
)
