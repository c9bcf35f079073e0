// Package persist holds what services with long work share: commits that must
// not be given up half way, and an end that waits for the work under way.
package persist

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Store is the owner of state as this package needs it.
type Store interface {
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Pauses between tries grow from first to longest.
const (
	first   = 50 * time.Millisecond
	longest = 2 * time.Second
)

// Update is the store's for work that must not end half done: while the store
// cannot be written it waits and tries again, until ctx ends or leadership has.
func Update(ctx context.Context, store Store, fn func(*state.Tx) error) error {
	for wait := first; ; wait = min(2*wait, longest) {
		_, err := store.Update(ctx, fn)
		if !errors.Is(err, fleet.ErrStoreUnavailable) || errors.Is(err, fleet.ErrNotLeader) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// Finish waits for work until ctx ends, then stops what is left and waits for
// that. The error is ctx's, if anything was left.
func Finish(ctx context.Context, work *sync.WaitGroup, stop func()) error {
	idle := make(chan struct{})
	go func() {
		work.Wait()
		close(idle)
	}()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = ctx.Err()
	}
	stop()
	<-idle
	return err
}
