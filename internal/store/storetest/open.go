package storetest

import (
	"context"
	"log/slog"
	"testing"

	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// Open returns a store on a fresh memory journal that is closed at the end of
// the test.
func Open(t testing.TB) *state.Store {
	t.Helper()
	return OpenOn(t, memory.New(memory.Options{}))
}

// OpenOn returns a store on j that is closed at the end of the test.
func OpenOn(t testing.TB, j interface {
	state.Journal
	state.Lease
}) *state.Store {
	t.Helper()
	s, err := state.Open(context.Background(), state.Config{
		Journal: j, Lease: j, Candidate: state.Candidate{Name: t.Name()}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return s
}
