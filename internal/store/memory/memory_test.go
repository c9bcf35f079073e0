package memory_test

import (
	"errors"
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
