// Package idempotency makes a repeated request safe: the first one with a key
// acts, a repeat gets its answer for a day, a repeat while it runs waits, and
// the same key with another request is refused. Status and resource id are
// kept (for a command its exit code), never output.
package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// Retention is how long an answer is kept.
const Retention = 24 * time.Hour

// maxKey bounds a key.
const maxKey = 200

// Store is the part of the state owner that a Keeper uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Unfinished says what a repeat does when the first request began, was
// recorded, and its outcome is not: the process died, or the host's answer was
// lost.
type Unfinished int

// Policies by verb.
const (
	// RunAgain: the verb may be repeated at will (destroy, drain, register).
	// Nothing is recorded before it has succeeded.
	RunAgain Unfinished = iota
	// Refuse: the verb must not run twice (exec). Its beginning is recorded
	// first, and a repeat of an unknown outcome is a conflict.
	Refuse
	// ByLife: the verb records itself in its own transaction with the life it
	// made (create). A repeat gets that life while it lives and runs again
	// once it is over.
	ByLife
)

// Call identifies a request.
type Call struct {
	Owner, Key   string // the principal and its key; an empty key keeps nothing
	BodyHash     string
	Method, Path string
	Unfinished   Unfinished
}

// Answer is what is kept of a request. Replayed is set on a kept one.
type Answer struct {
	Status     int
	ResourceID string
	ExitCode   *int
	Replayed   bool
}

// Keeper keeps answers in the state.
type Keeper struct {
	store Store

	mu      sync.Mutex
	running map[[2]string]chan struct{} // by owner and key; guarded by mu
}

// New makes a Keeper.
func New(store Store) *Keeper {
	return &Keeper{store: store, running: map[[2]string]chan struct{}{}}
}

// Do runs a request once for its key. run gets the record that a create passes
// on to its claim; it is nil without a key.
func (k *Keeper) Do(ctx context.Context, c Call, run func(context.Context, *state.Idempotency) (Answer, error)) (Answer, error) {
	if c.Key == "" {
		return run(ctx, nil)
	}
	if err := checkKey(c.Key); err != nil {
		return Answer{}, err
	}
	release, err := k.acquire(ctx, [2]string{c.Owner, c.Key})
	if err != nil {
		return Answer{}, err
	}
	defer release()
	kept, found, err := k.lookup(c)
	if err != nil || found {
		return kept, err
	}
	rec := state.Idempotency{Owner: c.Owner, Key: c.Key, BodyHash: c.BodyHash, Method: c.Method, Path: c.Path}
	if c.Unfinished == Refuse {
		if err := k.put(ctx, rec); err != nil {
			return Answer{}, err
		}
	}
	answer, err := run(ctx, &rec)
	return answer, k.finish(ctx, c, finished{rec: rec, answer: answer, err: err})
}

func checkKey(key string) error {
	ok := len(key) <= maxKey
	for _, b := range []byte(key) {
		ok = ok && b >= 0x20 && b < 0x7f
	}
	if ok {
		return nil
	}
	return fleet.Errorf(fleet.CodeInvalidArgument, "the Idempotency-Key of %d bytes is not allowed", len(key)).
		With(fleet.DetailLimit, fmt.Sprintf("1 to %d printable ASCII characters", maxKey)).
		With(fleet.DetailRemedy, "use a random UUID per request")
}

// acquire waits until no other request with the key runs in this process.
func (k *Keeper) acquire(ctx context.Context, id [2]string) (release func(), err error) {
	for {
		k.mu.Lock()
		running, busy := k.running[id]
		if !busy {
			mine := make(chan struct{})
			k.running[id] = mine
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.running, id)
				k.mu.Unlock()
				close(mine)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, fleet.Wrap(fleet.CodeConflict, ctx.Err(), "the first request with this Idempotency-Key still runs").
				With(fleet.DetailRemedy, "repeat it later")
		}
	}
}

// lookup finds the answer to a repeat.
func (k *Keeper) lookup(c Call) (answer Answer, found bool, err error) {
	err = k.store.View(func(tx *state.ReadTx) error {
		rec, ok := tx.Idempotency(c.Owner, c.Key)
		if !ok || time.Since(rec.CreatedAt) > Retention {
			return nil
		}
		if rec.BodyHash != c.BodyHash || rec.Method != c.Method || rec.Path != c.Path {
			return fleet.Errorf(fleet.CodeConflict, "this Idempotency-Key was used for another request, %s %s", rec.Method, rec.Path).
				With(fleet.DetailReason, ReasonReused).With(fleet.DetailRemedy, "use a new key for each new request")
		}
		if rec.Done {
			answer, found = Answer{Status: rec.Status, ResourceID: rec.ResourceID, ExitCode: rec.ExitCode, Replayed: true}, true
			return nil
		}
		switch c.Unfinished {
		case Refuse:
			return fleet.Errorf(fleet.CodeConflict, "the first request with this Idempotency-Key began at %s and its outcome is not known", rec.CreatedAt.UTC().Format(time.RFC3339)).
				With(fleet.DetailReason, ReasonUnknownOutcome).With(fleet.DetailRemedy, "look whether it took effect, then use a new key")
		case ByLife:
			if vm, alive := tx.VMs().GetUID(rec.ResourceID); alive && vm.State != fleet.VMStateDestroying {
				answer, found = Answer{Status: rec.Status, ResourceID: rec.ResourceID, Replayed: true}, true
			}
		}
		return nil
	})
	return answer, found, err
}

// Reasons in the details of a refused repeat. A reused key is a 422 on the
// wire, an unknown outcome a 409.
const (
	ReasonReused         = "idempotency_key_reused"
	ReasonUnknownOutcome = "outcome_unknown"
)

type finished struct {
	rec    state.Idempotency
	answer Answer
	err    error
}

// finish records the outcome. An error is not kept: the caller may repeat. But
// a command whose outcome is not known stays unfinished, so that it cannot run
// twice. The caller's leaving does not keep it from being recorded.
func (k *Keeper) finish(ctx context.Context, c Call, f finished) error {
	ctx = context.WithoutCancel(ctx)
	switch {
	case c.Unfinished == ByLife:
		return f.err
	case f.err == nil:
		f.rec.Status, f.rec.ResourceID, f.rec.ExitCode, f.rec.Done = f.answer.Status, f.answer.ResourceID, f.answer.ExitCode, true
		return k.put(ctx, f.rec)
	case c.Unfinished == Refuse && !outcomeUnknown(f.err):
		if _, err := k.store.Update(ctx, func(tx *state.Tx) error { return tx.DeleteIdempotency(c.Owner, c.Key) }); err != nil {
			return fmt.Errorf("%w (and its idempotency record stays: %w)", f.err, err)
		}
	}
	return f.err
}

func (k *Keeper) put(ctx context.Context, rec state.Idempotency) error {
	_, err := k.store.Update(ctx, func(tx *state.Tx) error {
		rec.CreatedAt = tx.Now()
		return tx.PutIdempotency(rec)
	})
	return err
}

// outcomeUnknown is whether an error leaves open that the command ran. A guest
// that does not answer may have begun it, whatever its host says.
func outcomeUnknown(err error) bool {
	code := fleet.CodeOf(err)
	return errors.Is(err, provider.ErrNoAnswer) || errors.Is(err, fleet.ErrGuestUnavailable) ||
		code == fleet.CodeInternal || code == fleet.CodeDeadlineExceeded
}
