// Package lease keeps a term of ownership alive: it renews it in the
// background, knows by its own clock when it may have ended, and says so before
// anybody else can have begun the next one. The stores share it; where the
// lease lies and by which clock it expires is theirs.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Config says what a Keeper keeps.
type Config struct {
	Timing

	// Asked is when the grant was asked for: Now, taken before the store was.
	// The lease cannot end earlier than Period after it.
	Asked Instant
	// Lasting is a lease that nobody can take away, such as a lock that ends with
	// the process. It has no deadline, and Extend only looks whether it holds.
	Lasting bool
	// Extend makes the lease last Period from now on, if it is still this one.
	// fleet.ErrNotLeader and fleet.ErrStaleTerm end the term; after any other
	// error it is called again.
	Extend func(context.Context) error
	// GiveUp lets another process begin the next term at once. Nil: nothing to do.
	GiveUp func(context.Context) error
	Logger *slog.Logger
}

// watch is how late the end of a term is noticed at most when nobody calls
// Check.
const watch = 500 * time.Millisecond

// minCall is the least time that one extension gets.
const minCall = 500 * time.Millisecond

// Keeper is the living side of a term, a state.Tenure. Its methods are safe for
// concurrent use.
type Keeper struct {
	cfg  Config
	lost chan struct{}
	stop context.CancelFunc
	done chan struct{} // the goroutine has ended

	mu      sync.Mutex // guards what follows; never held over I/O
	renewed Instant    // when the last extension that worked was asked for
	why     error      // the term has ended, with this

	once     sync.Once // guards released, which is written once
	released error
}

// Keep begins to keep a term.
func Keep(cfg Config) *Keeper {
	cfg.Timing = cfg.Normal()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	k := &Keeper{cfg: cfg, lost: make(chan struct{}), stop: stop, done: make(chan struct{}), renewed: cfg.Asked}
	go k.run(ctx)
	return k
}

var (
	errExpired  = errors.New("the lease could not be renewed in time")
	errReleased = errors.New("the lease was given up")
)

// Check returns fleet.ErrNotLeader once the term may have ended. It does no I/O.
func (k *Keeper) Check() error {
	k.mu.Lock()
	why := k.why
	expired := why == nil && !k.cfg.Lasting && k.renewed.Elapsed() >= k.cfg.Period-k.cfg.Margin
	k.mu.Unlock()
	if expired {
		return k.End(errExpired)
	}
	return why
}

// Left is for how long the term lasts unless it is renewed, zero once it has
// ended; lasting says that it ends only when it is given up.
func (k *Keeper) Left() (left time.Duration, lasting bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.why != nil {
		return 0, false
	}
	return max(k.cfg.Period-k.cfg.Margin-k.renewed.Elapsed(), 0), k.cfg.Lasting
}

// Lost is closed when the term has ended, however it did.
func (k *Keeper) Lost() <-chan struct{} { return k.lost }

// End ends the term because of cause, unless it has ended before, and returns
// why it has.
func (k *Keeper) End(cause error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.why != nil {
		return k.why
	}
	k.why = cause
	if !errors.Is(cause, fleet.ErrNotLeader) {
		k.why = fmt.Errorf("%w: %w", fleet.ErrNotLeader, cause)
	}
	close(k.lost)
	k.stop()
	return k.why
}

// Release ends the term and tells the store, unless it was lost before. It is
// idempotent: later calls return what the first did.
func (k *Keeper) Release(ctx context.Context) error {
	k.once.Do(func() {
		held := errors.Is(k.End(errReleased), errReleased)
		select {
		case <-k.done: // an extension that comes after would undo the release
		case <-ctx.Done():
			k.released = ctx.Err()
			return
		}
		if held && k.cfg.GiveUp != nil {
			k.released = k.cfg.GiveUp(ctx)
		}
	})
	return k.released
}

// run renews until the term ends. It never waits for the store alone, so that
// the deadline is noticed while a call hangs.
func (k *Keeper) run(ctx context.Context) {
	defer close(k.done)
	ticker := time.NewTicker(min(watch, k.cfg.Renew/4))
	defer ticker.Stop()
	var call sync.WaitGroup
	defer call.Wait()
	answers := make(chan error, 1)
	asked, asking, failing := k.cfg.Asked, false, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case err := <-answers:
			asking = false
			failing = k.answered(ctx, asked, err, failing)
		}
		if k.Check() != nil || asking {
			continue
		}
		if wait := k.cfg.Renew; k.sinceRenewed() >= wait && (!failing || asked.Elapsed() >= wait/4) {
			asked, asking = Now(), true
			call.Go(func() { answers <- k.extend(ctx) })
		}
	}
}

func (k *Keeper) sinceRenewed() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.renewed.Elapsed()
}

func (k *Keeper) extend(ctx context.Context) error {
	// One that hangs must leave time for another: its connection may be dead. But
	// a busy database needs a moment for a new connection, too.
	ctx, cancel := context.WithTimeout(ctx, max(k.cfg.Renew/2, minCall))
	defer cancel()
	return k.cfg.Extend(ctx)
}

// answered takes in how an extension that was asked for then has ended, and
// reports whether it has failed.
func (k *Keeper) answered(ctx context.Context, asked Instant, err error, before bool) (failing bool) {
	switch {
	case err == nil:
		k.mu.Lock()
		k.renewed = asked
		k.mu.Unlock()
		if before {
			k.cfg.Logger.Info("lease renewed again")
		}
		return false
	case ctx.Err() != nil:
	case errors.Is(err, fleet.ErrNotLeader), errors.Is(err, fleet.ErrStaleTerm):
		k.cfg.Logger.Error("lease lost", slog.Any("error", k.End(err)))
	case !before:
		k.cfg.Logger.Warn("lease could not be renewed, trying again", slog.Any("error", err))
	}
	return true
}
