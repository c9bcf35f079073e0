package deadletters

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func setup(t *testing.T) (*Service, *state.Store) {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return New(store, slog.New(slog.DiscardHandler)), store
}

func put(t *testing.T, store *state.Store, kind fleet.DeadLetterKind, entities ...string) {
	t.Helper()
	if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
		for _, e := range entities {
			if err := tx.UpsertDeadLetter(fleet.DeadLetter{Kind: kind, EntityID: e, Reason: "because"}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func ids(t *testing.T, s *Service, kind string, limit int) (out []string) {
	t.Helper()
	for after, more := "", true; more; {
		var page []fleet.DeadLetter
		var err error
		if page, more, err = s.List(kind, after, limit); err != nil {
			t.Fatal(err)
		}
		for i := range page {
			after = ID(&page[i])
			out = append(out, after)
		}
	}
	return out
}

func TestListAndGet(t *testing.T) {
	s, store := setup(t)
	put(t, store, fleet.DeadLetterStuckTask, "c", "a:b", "b")
	put(t, store, fleet.DeadLetterOrphanDestroy, "x", "y")
	want := []string{"orphan_destroy:x", "orphan_destroy:y", "stuck_task:a:b", "stuck_task:b", "stuck_task:c"}
	for _, limit := range []int{1, 2, 100} {
		if diff := cmp.Diff(want, ids(t, s, "", limit)); diff != "" {
			t.Errorf("pages of %d: %s", limit, diff)
		}
	}
	if diff := cmp.Diff(want[2:], ids(t, s, "stuck_task", 2)); diff != "" {
		t.Error(diff)
	}
	put(t, store, fleet.DeadLetterStuckTask, "a:b") // again
	if d, err := s.Get("stuck_task:a:b"); err != nil || d.RetryCount != 1 || d.Reason != "because" {
		t.Errorf("got %+v, %v", d, err)
	}
	if n := len(ids(t, s, "", 100)); n != 5 {
		t.Errorf("a repeat made %d of 5", n)
	}
}

func TestRefusals(t *testing.T) {
	s, _ := setup(t)
	for id, code := range map[string]fleet.Code{
		"stuck_task:none": fleet.CodeNotFound, "stuck_task": fleet.CodeInvalidArgument, "stuck_task:": fleet.CodeInvalidArgument,
		"made_up:x": fleet.CodeInvalidArgument, "": fleet.CodeInvalidArgument,
	} {
		if _, err := s.Get(id); fleet.CodeOf(err) != code {
			t.Errorf("get %q: %v", id, err)
		}
		if err := s.Purge(t.Context(), id, "user:a"); fleet.CodeOf(err) != code {
			t.Errorf("purge %q: %v", id, err)
		}
	}
	if _, _, err := s.List("made_up", "", 1); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("list: %v", err)
	}
	for _, f := range []Filter{{}, {Kind: "made_up"}} {
		if _, err := s.PurgeAll(t.Context(), f, "user:a"); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("purge %+v: %v", f, err)
		}
	}
}

func TestPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t)
		var many []string
		for i := range 2*chunk + 7 {
			many = append(many, fmt.Sprintf("vm-%04d", i))
		}
		put(t, store, fleet.DeadLetterIdleTimeout, many...)
		put(t, store, fleet.DeadLetterOrphanDestroy, "old", "kept")
		<-time.NewTimer(time.Hour).C
		put(t, store, fleet.DeadLetterOrphanDestroy, "kept", "new") // seen again
		if err := s.Purge(t.Context(), "orphan_destroy:new", "user:a"); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			f    Filter
			n    int
			left int
		}{
			{Filter{Kind: "orphan_destroy", OlderThan: 2 * time.Hour}, 0, len(many) + 2},
			{Filter{Kind: "orphan_destroy", OlderThan: time.Minute}, 1, len(many) + 1},
			{Filter{Kind: "idle_timeout"}, len(many), 1},
			{Filter{OlderThan: time.Minute}, 0, 1},
			{Filter{All: true}, 1, 0},
		} {
			if n, err := s.PurgeAll(t.Context(), tt.f, "user:a"); n != tt.n || err != nil {
				t.Errorf("%+v: %d, %v", tt.f, n, err)
			}
			if left := len(ids(t, s, "", 200)); left != tt.left {
				t.Errorf("%+v leaves %d, want %d", tt.f, left, tt.left)
			}
		}
	})
}
