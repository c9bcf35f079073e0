package state_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
)

// severed is a journal whose connection breaks after the next commit has
// reached it.
type severed struct {
	storetest.Backend
	away atomic.Bool
}

var errAway = errors.New("the connection is gone")

func (s *severed) Commit(ctx context.Context, term int64, b state.Batch) error {
	if err := s.Backend.Commit(ctx, term, b); err != nil || !s.away.Load() {
		return err
	}
	return errAway
}

func (s *severed) Committed(ctx context.Context, batchID string) (bool, error) {
	if s.away.Load() {
		return false, errAway
	}
	return s.Backend.Committed(ctx, batchID)
}

// While the outcome of a commit cannot be looked up, who is in it waits, who
// comes later is told at once, and it all goes on when the journal is back. The
// term, which is renewed, outlasts it.
func TestAnOutageWithAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &severed{Backend: memory.New(memory.Options{Lease: 15 * time.Second})}
		s := storetest.OpenOn(t, j)
		put := func(id string) error {
			_, err := s.Update(t.Context(), func(tx *state.Tx) error { return tx.PutHost(fleet.Host{ID: id}) })
			return err
		}
		j.away.Store(true)
		first := make(chan error, 1)
		go func() { first <- put("first") }()
		<-time.After(time.Minute)
		select {
		case err := <-first:
			t.Fatalf("the first update ended: %v", err)
		default:
		}
		start := time.Now()
		if err := put("later"); !errors.Is(err, fleet.ErrStoreUnavailable) || time.Since(start) > 0 {
			t.Errorf("a later update: %v after %v", err, time.Since(start))
		}
		if err := s.Ready(t.Context()); !errors.Is(err, fleet.ErrStoreUnavailable) {
			t.Errorf("ready: %v", err)
		}
		if revision, _ := s.Head(); revision != 0 {
			t.Errorf("revision %d shows what may not be durable", revision)
		}
		j.away.Store(false)
		if err := <-first; err != nil {
			t.Errorf("the first update, which was durable: %v", err)
		}
		if err := errors.Join(put("second"), s.Ready(t.Context())); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		if revision, _ := s.Head(); revision != 2 {
			t.Errorf("revision %d, want 2", revision)
		}
	})
}
