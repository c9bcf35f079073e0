package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/fusevm/fuse/internal/state"
)

// Fault is what happens to one commit.
type Fault int

// Faults.
const (
	NoFault   Fault = iota
	Refused         // nothing is written, and the journal says so
	Lost            // it is written, the answer is lost
	Dropped         // nothing is written, the answer is lost
	LostBlind       // Lost, and looking it up fails too
	DropBlind       // Dropped, and looking it up fails too
)

// Blind reports whether nobody can tell the outcome.
func (f Fault) Blind() bool { return f == LostBlind || f == DropBlind }

// Faulty is a backend whose next commits fail as told.
type Faulty struct {
	Backend

	mu    sync.Mutex
	next  Fault
	blind bool
}

var errInjected = errors.New("injected fault")

// Fail makes the next commit meet f.
func (y *Faulty) Fail(f Fault) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.next = f
}

func (y *Faulty) take() Fault {
	y.mu.Lock()
	defer y.mu.Unlock()
	f := y.next
	y.next, y.blind = NoFault, f.Blind()
	return f
}

// Commit commits, or not, as told.
func (y *Faulty) Commit(ctx context.Context, term int64, b state.Batch) error {
	switch y.take() {
	case Refused:
		return fmt.Errorf("%w: %w", state.ErrNotCommitted, errInjected)
	case Dropped, DropBlind:
		return errInjected
	case Lost, LostBlind:
		return errors.Join(y.Backend.Commit(ctx, term, b), errInjected)
	default:
		return y.Backend.Commit(ctx, term, b)
	}
}

// Committed looks up, or fails as told.
func (y *Faulty) Committed(ctx context.Context, batchID string) (bool, error) {
	y.mu.Lock()
	blind := y.blind
	y.mu.Unlock()
	if blind {
		return false, errInjected
	}
	return y.Backend.Committed(ctx, batchID)
}
