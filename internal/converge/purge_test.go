package converge

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// Dead letters go by the time they were last seen, and the longest unseen go
// when there are too many.
func TestDeadLettersAreForgotten(t *testing.T) {
	for name, tt := range map[string]struct {
		retention time.Duration
		keep      int
		left      int
	}{
		"for ever, all":    {left: 10},
		"by age":           {retention: 3*time.Hour + time.Minute, left: 4},
		"by number":        {keep: 2, left: 2},
		"age counts more":  {retention: time.Hour + time.Minute, keep: 8, left: 2},
		"number more":      {retention: 100 * time.Hour, keep: 8, left: 8},
		"nothing too many": {retention: 100 * time.Hour, keep: 10, left: 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { deadLettersCase(t, tt.retention, tt.keep, tt.left) })
		})
	}
}

func deadLettersCase(t *testing.T, retention time.Duration, keep, left int) {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	update := func(fn func(*state.Tx) error) {
		t.Helper()
		if _, err := store.Update(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 { // the first is nine hours old at the end, the last new
		update(func(tx *state.Tx) error {
			return tx.UpsertDeadLetter(fleet.DeadLetter{Kind: fleet.DeadLetterStuckTask, EntityID: fmt.Sprint(i), Reason: "r"})
		})
		if i < 9 {
			<-time.NewTimer(time.Hour).C
		}
	}
	cfg := &Config{DeadLetterRetention: retention, DeadLetterKeep: keep}
	update(func(tx *state.Tx) error {
		oldest, kept := cfg.keepDeadLetters(&tx.ReadTx, tx.Now())
		if kept == 0 {
			if left != 10 {
				t.Errorf("all are kept, the oldest of %s", oldest)
			}
			return nil
		}
		_, err := forgetDeadLetters(tx, tx.Now().Add(-kept))
		return err
	})
	n := 0
	if err := store.View(func(tx *state.ReadTx) error {
		for d := range tx.DeadLetters().All() {
			n++
			if d.EntityID < fmt.Sprint(10-left) {
				t.Errorf("%s stays", d.EntityID)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n != left {
		t.Errorf("%d stay, want %d", n, left)
	}
}

// stubborn is a host that never confirms an end.
type stubborn struct{ asked int }

func (s *stubborn) DestroyLife(context.Context, string, string, fleet.Reason) error {
	s.asked++
	return fleet.Errorf(fleet.CodeUnavailable, "busy")
}

// A destroy that does not end becomes a dead letter, one, and is tried on.
func TestDestroyThatDoesNotEndIsADeadLetter(t *testing.T) {
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	host := &stubborn{}
	d := &doer{cfg: &Config{Store: store, Destroyer: host}, log: slog.New(slog.DiscardHandler)}
	row := &fleet.VM{ID: "fuse-t", UID: "u1", TaskID: "t", State: fleet.VMStateDestroying}
	letters := func() (list []fleet.DeadLetter) {
		_ = store.View(func(tx *state.ReadTx) error {
			for l := range tx.DeadLetters().All() {
				list = append(list, *l)
			}
			return nil
		})
		return list
	}
	for try := 1; try <= destroyFailed+2; try++ {
		step := reconcile.Step{Kind: reconcile.KindRetry, VMID: row.ID, UID: row.UID, Count: try, Evidence: fmt.Sprintf("try %d", try)}
		if err := d.goOn(t.Context(), step, row); fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("try %d: %v", try, err)
		}
		want := 0
		if try >= destroyFailed {
			want = 1
		}
		if n := len(letters()); n != want {
			t.Errorf("%d dead letters after try %d", n, try)
		}
	}
	l := letters()[0]
	if l.Kind != fleet.DeadLetterDestroyFailed || l.EntityID != "fuse-t" || l.TaskID != "t" || l.RetryCount != destroyFailed+2 || l.Reason != "try 7" || host.asked != destroyFailed+2 {
		t.Errorf("got %+v, asked %d times", l, host.asked)
	}
}
