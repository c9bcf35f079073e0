package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-memdb"

	"github.com/fusevm/fuse/internal/fleet"
)

// Config is what Open needs. Journal and Lease are required; zero numbers take
// the defaults below.
type Config struct {
	Journal   Journal
	Lease     Lease
	Candidate Candidate // names this process to one that finds the lease taken
	Logger    *slog.Logger

	MaxEventsInMemory int // newest events kept for Events; the rest is read from the journal
	QueueLimit        int // Updates that may wait; more block their callers
	MaxBatch          int // Updates in one commit
	WatchBuffer       int // change sets a subscriber may be behind

	// LookupPause is the pause between the tries to look up a commit whose
	// outcome is unknown.
	LookupPause time.Duration
	// LookupTries bounds them. Zero: as long as the term lasts, and a few where
	// it has no end.
	LookupTries int
}

// Defaults of Config.
const (
	DefaultEventsInMemory = 8192
	DefaultQueueLimit     = 1024
	DefaultMaxBatch       = 256
	DefaultWatchBuffer    = 256
	DefaultLookupPause    = 200 * time.Millisecond
)

func (c Config) normal() Config {
	for _, d := range []struct {
		n     *int
		value int
	}{
		{&c.MaxEventsInMemory, DefaultEventsInMemory},
		{&c.QueueLimit, DefaultQueueLimit},
		{&c.MaxBatch, DefaultMaxBatch},
		{&c.WatchBuffer, DefaultWatchBuffer},
	} {
		if *d.n <= 0 {
			*d.n = d.value
		}
	}
	if c.LookupPause <= 0 {
		c.LookupPause = DefaultLookupPause
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Store is the one owner of the state. Its methods are safe for concurrent
// use.
type Store struct {
	cfg     Config
	db      *memdb.MemDB
	fleetID string
	grant   Grant
	hub     *hub
	writer  *writer
	// life ends when the store does, and with it a commit that hangs.
	life context.Context
	die  context.CancelCauseFunc

	failure  atomic.Pointer[error] // why the store has ended for good
	failed   chan struct{}
	degraded atomic.Pointer[error] // why the newest commit failed
}

// Open begins a term, loads the journal into memory and starts the writer. It
// owns cfg.Journal from here on, also when it fails.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	cfg = cfg.normal()
	defer func() {
		if err != nil {
			err = errors.Join(err, cfg.Journal.Close())
		}
	}()
	grant, err := cfg.Lease.Acquire(ctx, cfg.Candidate)
	if err != nil {
		return nil, fmt.Errorf("take the lease of the state store: %w", err)
	}
	defer func() {
		if err != nil {
			limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
			defer cancel()
			err = errors.Join(err, grant.Tenure.Release(limit))
		}
	}()
	loaded, err := load(ctx, cfg, grant.Tenure)
	if err != nil {
		return nil, fmt.Errorf("load the state: %w", err)
	}
	s := &Store{cfg: cfg, fleetID: loaded.FleetID, grant: grant, failed: make(chan struct{})}
	s.life, s.die = context.WithCancelCause(context.WithoutCancel(ctx))
	if s.db, err = newDB(); err != nil {
		return nil, err
	}
	if err := fill(s.db, loaded); err != nil {
		return nil, fmt.Errorf("load the state: %w", err)
	}
	s.hub = newHub(cfg, loaded)
	s.writer = startWriter(s)
	go s.watch()
	return s, nil
}

// releaseLimit bounds the giving back of a term that came to nothing; the lease
// runs out by itself.
const releaseLimit = 5 * time.Second

// load reads the journal for as long as the term lasts. Who has lost it must not
// wait for a database that does not answer: the next leader may need this one to
// stand by.
func load(ctx context.Context, cfg Config, t Tenure) (*Loaded, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-t.Lost():
			cancel()
		case <-ctx.Done():
		}
	}()
	loaded, err := cfg.Journal.Load(ctx, cfg.MaxEventsInMemory)
	if lost := t.Check(); err != nil && lost != nil {
		err = notLeader(errors.Join(lost, err))
	}
	return loaded, err
}

// FleetID is the ULID of the fleet, made when its journal was first used.
func (s *Store) FleetID() string { return s.fleetID }

// Term is the number of this term of ownership.
func (s *Store) Term() int64 { return s.grant.Term }

// LeaseLeft is for how long this process may still act as the owner unless the
// lease is renewed; lasting says that it ends only when it is given up.
func (s *Store) LeaseLeft() (left time.Duration, lasting bool) {
	t, ok := s.grant.Tenure.(interface {
		Left() (left time.Duration, lasting bool)
	})
	if !ok {
		return 0, s.grant.Tenure.Check() == nil
	}
	return t.Left()
}

// Fence returns what proves to a host that this process owns the fleet now,
// or the error with which leadership ended. It does no I/O.
func (s *Store) Fence() (fleetID string, term int64, claimToken, fingerprint string, err error) {
	if err := s.check(); err != nil {
		return "", 0, "", "", err
	}
	return s.fleetID, s.grant.Term, s.grant.ClaimToken, s.grant.Fingerprint, nil
}

// View calls fn with a snapshot of what is durable. It never waits for a
// writer. fn must not keep the transaction.
func (s *Store) View(fn func(*ReadTx) error) error { return view(s.db.Txn(false), fn) }

func view(txn *memdb.Txn, fn func(*ReadTx) error) error {
	tx := newReadTx(txn)
	defer func() { tx.txn = nil }()
	return fn(&tx)
}

// Commit says what an Update did. Without writes and events Revision is the
// newest there was.
type Commit struct {
	Revision uint64
	Events   []fleet.Event
	At       time.Time
}

// Update runs fn in the writer and returns when what fn did is durable and
// visible. An error of fn, a broken invariant or a panic undoes fn alone. fn
// runs at most once; ctx counts only until it begins. After an
// ErrStoreUnavailable or ErrNotLeader the change may still turn out durable
// once the state is loaded again, but never visible before that.
func (s *Store) Update(ctx context.Context, fn func(*Tx) error) (Commit, error) {
	return s.writer.submit(ctx, &request{fn: fn})
}

// Watch subscribes to every commit from the next one on. The subscription
// ends with ctx, Close, or the store.
func (s *Store) Watch(ctx context.Context) *Subscription { return s.hub.subscribe(ctx, "") }

// WatchVM is Watch for the commits that change one environment or carry an
// event of it.
func (s *Store) WatchVM(ctx context.Context, vmID string) *Subscription {
	return s.hub.subscribe(ctx, vmID)
}

// ViewAndWatch is View and Watch with nothing in between: the subscription
// begins with the commit after the snapshot that fn saw.
func (s *Store) ViewAndWatch(ctx context.Context, fn func(*ReadTx) error) (*Subscription, error) {
	return viewAndWatch(ctx, s, "", fn)
}

// ViewAndWatchVM is ViewAndWatch for one environment, as WatchVM is.
func (s *Store) ViewAndWatchVM(ctx context.Context, vmID string, fn func(*ReadTx) error) (*Subscription, error) {
	return viewAndWatch(ctx, s, vmID, fn)
}

func viewAndWatch(ctx context.Context, s *Store, vmID string, fn func(*ReadTx) error) (*Subscription, error) {
	var txn *memdb.Txn
	sub := s.hub.subscribeWith(ctx, vmID, func() { txn = s.db.Txn(false) })
	if err := view(txn, fn); err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// Events reads visible events in rising order, from memory when it still holds
// all that q asks for, else from the journal.
func (s *Store) Events(ctx context.Context, q EventQuery) ([]fleet.Event, error) {
	q = q.Normal()
	events, upTo, ok := s.hub.recent(q)
	if ok {
		return events, nil
	}
	q.UpTo = upTo
	events, err := s.cfg.Journal.Events(ctx, q)
	if err != nil {
		return nil, unavailable("read events", err)
	}
	return events, nil
}

// StartupLog reads the output of a life's startup script from the journal.
func (s *Store) StartupLog(ctx context.Context, uid string) (fleet.StartupLog, bool, error) {
	l, ok, err := s.cfg.Journal.StartupLog(ctx, uid)
	if err != nil {
		return fleet.StartupLog{}, false, unavailable("read startup log", err)
	}
	return l, ok, nil
}

// PurgeEvents deletes events that are older than before and the oldest beyond
// the newest keep, in small commits, and returns how many went. Zero values
// keep all. Only the maintenance loop calls it.
func (s *Store) PurgeEvents(ctx context.Context, before time.Time, keep uint64) (int, error) {
	total := 0
	for {
		if err := errors.Join(ctx.Err(), s.check()); err != nil {
			return total, err
		}
		n, err := s.cfg.Journal.PurgeEvents(ctx, s.grant.Term, EventCut{Before: before, Keep: keep, Limit: purgeStep})
		total += n
		if err != nil {
			return total, unavailable("purge events", err)
		}
		if n < purgeStep {
			return total, nil
		}
	}
}

// purgeStep is how many events one purge transaction deletes: few enough that
// an Update behind it hardly waits.
const purgeStep = 500

// Head returns the revision of the newest visible Update and the Seq of the
// newest event.
func (s *Store) Head() (revision, seq uint64) { return s.hub.head() }

// CommittedAt is when the newest visible Update happened, by the wall clock of
// its time: a clock that shows less now has been set back.
func (s *Store) CommittedAt() time.Time { return s.hub.committedAt() }

// Ready returns nil while the store can take Updates. After a failed commit it
// tries an empty one; else it costs nothing.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	if s.degraded.Load() == nil {
		return nil
	}
	_, err := s.writer.submit(ctx, &request{fn: func(*Tx) error { return nil }, force: true})
	return err
}

// Failed is closed when the store has ended for good, by Close or by losing
// its lease or its journal; Err tells why.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Life ends with the store, for calls that only an owner may make. Its cause is
// what Err returns.
func (s *Store) Life() context.Context { return s.life }

// Err is why the store has ended, nil while it has not.
func (s *Store) Err() error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	return nil
}

var errClosed = errors.New("the state store was closed")

// watch ends the store as soon as its term does, and what hangs on it: who
// waits for changes would wait for ever.
func (s *Store) watch() {
	select {
	case <-s.grant.Tenure.Lost():
		if s.Err() == nil { // else it is being closed
			s.cfg.Logger.Error("state store lost its lease", "error", s.check())
		}
	case <-s.failed:
	}
	<-s.failed
	s.hub.close()
}

// Close runs what is queued, stops the writer, ends subscriptions, gives the
// lease back and closes the journal. When ctx ends first it returns ctx's
// error and the rest is undone; call it again then.
func (s *Store) Close(ctx context.Context) error {
	if err := s.writer.stop(ctx); err != nil {
		return fmt.Errorf("close the state store: %w", err)
	}
	if err := s.fail(unavailable("closed", errClosed)); !errors.Is(err, errClosed) {
		s.cfg.Logger.Info("state store had ended before it was closed", "error", err)
	}
	s.hub.close()
	return errors.Join(s.grant.Tenure.Release(ctx), s.cfg.Journal.Close())
}

// check returns why the store may not act, if so. A lease that ran out ends it.
func (s *Store) check() error {
	if err := s.Err(); err != nil {
		return err
	}
	if err := s.grant.Tenure.Check(); err != nil {
		return s.fail(notLeader(err))
	}
	return nil
}

// fail ends the store for good, once, and returns the error that ended it.
func (s *Store) fail(err error) error {
	if s.failure.CompareAndSwap(nil, &err) {
		close(s.failed)
		s.die(err)
		return err
	}
	return s.Err()
}

// giveUp ends leadership because what is in memory may not be what is durable
// (semantics 18): only a new term, which loads the state again, can tell.
func (s *Store) giveUp(err error) error { return s.fail(notLeader(err)) }

func notLeader(cause error) error {
	return wrapped(fleet.ErrNotLeader, cause, "this server does not own the fleet any more")
}

func unavailable(operation string, cause error) error {
	return wrapped(fleet.ErrStoreUnavailable, cause, operation+": the state store cannot be used")
}

// wrapped hides cause from callers but for the details, such as the remedy,
// that a journal gave it.
func wrapped(sentinel, cause error, message string) error {
	e := fleet.Wrap(fleet.CodeUnavailable, fmt.Errorf("%w: %w", sentinel, cause), message)
	var inner *fleet.Error
	if errors.As(cause, &inner) {
		e.Details = inner.Details
	}
	return e
}
