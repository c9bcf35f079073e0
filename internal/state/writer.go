package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-memdb"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/uid"
)

// lookups is how often a commit of unknown outcome is looked up at once; what is
// asked of the store waits that long.
const lookups = 3

// What takes longer than this is told: every other Update waits behind it.
const (
	slowClosure = 100 * time.Millisecond
	slowCommit  = time.Second
)

// request is one queued Update.
type request struct {
	fn    func(*Tx) error
	force bool // commit also when fn changed nothing
	state atomic.Int32
	done  chan struct{}

	// Written by the writer before done is closed.
	commit Commit
	err    error
	// leans is set when the result rests on changes that become durable only
	// with the batch.
	leans bool
}

// States of a request: whoever moves it on from waiting owns it.
const (
	waiting int32 = iota
	begun
	abandoned
)

// writer is the one goroutine that changes the state.
type writer struct {
	s        *Store
	queue    chan *request
	stopping chan struct{}
	stopOnce sync.Once
	ended    chan struct{}
}

func startWriter(s *Store) *writer {
	w := &writer{
		s:        s,
		queue:    make(chan *request, s.cfg.QueueLimit),
		stopping: make(chan struct{}),
		ended:    make(chan struct{}),
	}
	go w.run()
	return w
}

// submit queues r and waits for its end. While r is queued, the end of ctx
// takes it back.
func (w *writer) submit(ctx context.Context, r *request) (Commit, error) {
	r.done = make(chan struct{})
	if err := w.s.check(); err != nil {
		return Commit{}, err
	}
	if err := ctx.Err(); err != nil {
		return Commit{}, fmt.Errorf("update: %w", err)
	}
	select {
	case w.queue <- r:
	case <-ctx.Done():
		return Commit{}, fmt.Errorf("update: waiting for the queue: %w", ctx.Err())
	case <-w.stopping:
		return Commit{}, w.closing()
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.state.CompareAndSwap(waiting, abandoned) {
			return Commit{}, fmt.Errorf("update: waiting for its turn: %w", ctx.Err())
		}
		<-r.done
	case <-w.ended:
		// A request that slipped into the queue after its last look.
		if r.state.CompareAndSwap(waiting, abandoned) {
			return Commit{}, w.closing()
		}
		<-r.done
	}
	return r.commit, r.err
}

func (w *writer) closing() error {
	if err := w.s.Err(); err != nil {
		return err
	}
	return fleet.Wrap(fleet.CodeUnavailable, fleet.ErrStoreUnavailable, "the state store is closing")
}

// stop lets the writer finish what is queued.
func (w *writer) stop(ctx context.Context) error {
	w.stopOnce.Do(func() { close(w.stopping) })
	select {
	case <-w.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *writer) run() {
	defer close(w.ended)
	for {
		select {
		case r := <-w.queue:
			w.batch(r)
		case <-w.stopping:
			select {
			case r := <-w.queue:
				w.batch(r)
			default:
				return
			}
		}
	}
}

// batch runs first and whatever else waits, commits it all, and lets every
// caller go. A closure that failed waits too: what it saw of the batch counts
// only once that is durable.
func (w *writer) batch(first *request) {
	runtime.Gosched() // callers that were let go just now queue up meanwhile
	b := w.begin()
	for r := first; r != nil; r = w.more(b) {
		if r.state.CompareAndSwap(waiting, begun) {
			b.run(r)
		}
	}
	err := w.settle(b)
	for _, r := range b.requests {
		if err != nil && r.leans {
			r.commit, r.err = Commit{}, err
		}
		close(r.done)
	}
}

func (w *writer) more(b *batch) *request {
	if len(b.requests) >= w.s.cfg.MaxBatch || b.broken != nil {
		return nil
	}
	select {
	case r := <-w.queue:
		return r
	default:
		return nil
	}
}

// batch is the work of one commit.
type batch struct {
	log      *slog.Logger
	txn      *memdb.Txn
	head     head // as of the last closure that worked
	start    head
	requests []*request
	changes  []ChangeSet
	writes   []Write
	at       map[rowID]int // position in writes
	events   []fleet.Event
	forced   bool
	broken   error // memdb could not undo a closure: nothing of this may live
}

func (w *writer) begin() *batch {
	txn := w.s.db.Txn(true)
	start := newReadTx(txn).head
	return &batch{log: w.s.cfg.Logger, txn: txn, head: start, start: start, at: map[rowID]int{}}
}

// run executes one closure and keeps or undoes what it did.
func (b *batch) run(r *request) {
	b.requests = append(b.requests, r)
	defer func() { r.leans = r.force || b.broken != nil || len(b.changes) > 0 }()
	start := time.Now()
	tx := &Tx{ReadTx: ReadTx{txn: b.txn, head: b.head}, now: start.UTC().Truncate(time.Microsecond)}
	r.err = contain(b.log, func() error {
		if err := r.fn(tx); err != nil {
			return err
		}
		return tx.finish(b.head.seq)
	})
	if took := time.Since(start); took > slowClosure {
		b.log.Warn("state closure was slow", "took", took, "writes", len(tx.writes))
	}
	if r.err != nil {
		b.broken = tx.rollback()
		tx.txn = nil
		return
	}
	tx.txn = nil
	b.forced = b.forced || r.force
	r.commit = Commit{Revision: b.head.revision, At: tx.now}
	if len(tx.writes) == 0 && len(tx.events) == 0 {
		return
	}
	b.keep(tx)
	r.commit.Revision, r.commit.Events = b.head.revision, tx.events
}

// contain turns a panic of fn into an error, so that one bad closure does not
// end the only writer.
func contain(log *slog.Logger, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("state closure panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fleet.Wrap(fleet.CodeInternal, fmt.Errorf("panic: %v", p), "internal error in a change of state")
		}
	}()
	return fn()
}

func (b *batch) keep(tx *Tx) {
	set := ChangeSet{Revision: b.head.revision + 1, At: tx.now, Events: tx.events}
	for _, w := range tx.writes {
		set.note(w.table, w.key)
		if !w.durable {
			continue
		}
		if i, ok := b.at[w.rowID]; ok {
			b.writes[i].Row = w.after
			continue
		}
		b.at[w.rowID] = len(b.writes)
		b.writes = append(b.writes, Write{Table: w.table, Key: w.key, Row: w.after})
	}
	b.changes = append(b.changes, set)
	b.events = append(b.events, tx.events...)
	b.head = head{
		revision: set.Revision,
		seq:      b.head.seq + uint64(len(tx.events)),
		at:       tx.now,
		counts:   tx.head.counts,
	}
}

// settle makes a batch durable, then visible, then known. Its error is every
// caller's.
func (w *writer) settle(b *batch) error {
	defer b.txn.Abort() // nothing after Commit
	if b.broken != nil {
		return w.s.giveUp(unavailable("undo a change", b.broken))
	}
	if len(b.changes) == 0 && !b.forced {
		return w.s.Err()
	}
	if err := b.txn.Insert(tableHead, &b.head); err != nil {
		return w.s.giveUp(unavailable("commit", err))
	}
	if err := w.commit(b); err != nil {
		return err
	}
	w.s.hub.publish(b.head, b.changes, b.txn.Commit)
	return nil
}

func (w *writer) commit(b *batch) error {
	if err := w.s.check(); err != nil {
		return err
	}
	// No caller can cancel a commit under way; the end of the term can, for who
	// has lost it must not wait for a database that does not answer.
	ctx := w.s.life
	record := Batch{
		ID: uid.New(), Revision: b.head.revision, Seq: b.head.seq, At: b.head.at,
		Writes: b.writes, Events: b.events,
	}
	start := time.Now()
	err := w.s.cfg.Journal.Commit(ctx, w.s.grant.Term, record)
	if took := time.Since(start); took > slowCommit {
		w.s.cfg.Logger.Warn("state commit was slow", "took", took, "updates", len(b.requests))
	}
	if err != nil && !certain(err) {
		err = w.lookUp(ctx, record.ID, err)
	}
	switch {
	case err == nil:
		w.s.degraded.Store(nil)
		return nil
	case errors.Is(err, fleet.ErrStaleTerm):
		err = w.s.fail(notLeader(err))
	case errors.Is(err, ErrNotCommitted):
		err = unavailable("commit", err)
		w.s.degraded.Store(&err)
	default:
		err = w.s.giveUp(unavailable("commit of unknown outcome", err))
	}
	w.s.cfg.Logger.Error("state commit did not happen", "error", err, "revision", record.Revision)
	return err
}

func certain(err error) bool {
	return errors.Is(err, ErrNotCommitted) || errors.Is(err, fleet.ErrStaleTerm)
}

// lookUp finds out whether a batch whose commit gave cause is durable
// (semantics 18). It returns nil if so, ErrNotCommitted if not, and another
// error if that cannot be read: then the store must end. A term that ends by
// itself bounds the tries; where none does, few are made.
func (w *writer) lookUp(ctx context.Context, batchID string, cause error) error {
	w.s.cfg.Logger.Warn("outcome of a state commit is unknown, looking it up", "error", cause)
	tries := w.s.cfg.LookupTries
	if _, lasting := w.s.LeaseLeft(); tries == 0 && lasting {
		tries = lookups
	}
	var err error
	for try := 0; try < tries || tries == 0; try++ {
		if try > 0 && !w.pause(try, cause) {
			return errors.Join(cause, w.s.Err())
		}
		var durable bool
		if durable, err = w.s.cfg.Journal.Committed(ctx, batchID); err == nil {
			if durable {
				return nil
			}
			return fmt.Errorf("%w: %w", ErrNotCommitted, cause)
		}
		if errors.Is(err, fleet.ErrStaleTerm) {
			break
		}
	}
	return errors.Join(cause, err)
}

// pause waits before the next try of a lookup and returns false when the store
// has ended. After the first few nobody is kept waiting: what is asked of the
// store meanwhile is refused.
func (w *writer) pause(try int, cause error) bool {
	queue := w.queue
	if try < lookups {
		queue = nil
	}
	err := unavailable("wait for the state store", cause)
	if queue != nil {
		w.s.degraded.Store(&err)
	}
	timer := time.NewTimer(w.s.cfg.LookupPause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return w.s.check() == nil
		case <-w.s.failed:
			return false
		case r := <-queue:
			if r.state.CompareAndSwap(waiting, begun) {
				r.err = err
				close(r.done)
			}
		}
	}
}
