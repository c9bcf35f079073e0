package memory_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) func() storetest.Backend {
		j := memory.New(memory.Options{})
		return func() storetest.Backend { return j.Reopen() }
	})
}

func TestAcquireEndsTheTermBefore(t *testing.T) {
	j := memory.New(memory.Options{FleetID: "f"})
	first, err := j.Acquire(t.Context(), state.Candidate{Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Reopen().Acquire(t.Context(), state.Candidate{Name: "second"}); err != nil {
		t.Fatal(err)
	}
	if err := first.Tenure.Check(); !errors.Is(err, fleet.ErrNotLeader) {
		t.Errorf("the first term: %v", err)
	}
}

// A journal whose term is over does not say that its batch is not there: the next
// owner's may have pushed it out.
func TestALookupAfterTheNextTerm(t *testing.T) {
	first := memory.New(memory.Options{})
	g, err := first.Acquire(t.Context(), state.Candidate{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Commit(t.Context(), g.Term, state.Batch{ID: "batch", Revision: 1}); err != nil {
		t.Fatal(err)
	}
	second := first.Reopen()
	if g, err = second.Acquire(t.Context(), state.Candidate{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	if known, err := first.Committed(t.Context(), "batch"); !known || err != nil {
		t.Errorf("just after: %v, %v", known, err)
	}
	for i := range 64 {
		if err := second.Commit(t.Context(), g.Term, state.Batch{ID: fmt.Sprint(i), Revision: uint64(i + 2)}); err != nil {
			t.Fatal(err)
		}
	}
	if known, err := first.Committed(t.Context(), "batch"); known || !errors.Is(err, fleet.ErrStaleTerm) {
		t.Errorf("64 commits later: %v, %v", known, err)
	}
}
