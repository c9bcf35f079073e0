package storetest

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// Open returns a store on a fresh memory journal that is closed at the end of
// the test.
func Open(t testing.TB, change ...func(*state.Config)) *state.Store {
	t.Helper()
	return OpenOn(t, memory.New(memory.Options{}), change...)
}

// OpenSealed is Open with a sealer for what such a store keeps sealed.
func OpenSealed(t testing.TB, change ...func(*state.Config)) (*state.Store, *secrets.Sealer) {
	t.Helper()
	key, err := secrets.ParseKey(strings.Repeat("5a", 32))
	if err != nil {
		t.Fatal(err)
	}
	return Open(t, change...), secrets.NewSealer(key)
}

// OpenOn returns a store on j that is closed at the end of the test.
func OpenOn(t testing.TB, j interface {
	state.Journal
	state.Lease
}, change ...func(*state.Config)) *state.Store {
	t.Helper()
	c := state.Config{Journal: j, Lease: j, Candidate: state.Candidate{Name: t.Name()}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, f := range change {
		f(&c)
	}
	s, err := state.Open(context.Background(), c)
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
