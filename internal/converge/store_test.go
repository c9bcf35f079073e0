package converge_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
)

// Once another process leads, this one destroys nothing more and says so.
func TestLosingLeadershipEndsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		loop := w.run()
		w.until(10 * s)
		successor := storetest.OpenOn(t, w.journal)
		w.boot("h1", "fuse-x", "X") // an orphan in the eyes of the loser
		w.until(time.Minute)
		if err := loop.end(); !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("ended with %v", err)
		}
		if !w.has("h1", "X") || w.destroyTimes("X") != nil {
			t.Error("it destroyed something after it had lost the lead")
		}
		sum, _ := last(w)
		if len(w.summaries()) != 2 || !strings.Contains(sum.Aborted, "does not own the fleet") {
			t.Errorf("%d cycles, the last %+v", len(w.summaries()), sum)
		}
		if err := successor.Ready(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// A step that waits for its turn while the lead is lost is not begun.
func TestLosingLeadershipStopsWaitingSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		w.hosts["h1"].destroyTakes = 5 * s
		for i := range 3 {
			w.boot("h1", fmt.Sprint("fuse-", i), fmt.Sprint("X", i))
		}
		loop := w.run(func(cfg *converge.Config) { cfg.StepsPerHost = 1 })
		w.until(s)
		storetest.OpenOn(t, w.journal)
		w.until(time.Minute)
		if err := loop.end(); !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("ended with %v", err)
		}
		begun := 0
		for i := range 3 {
			begun += len(w.destroyTimes(fmt.Sprint("X", i)))
		}
		if begun != 1 {
			t.Errorf("%d destroys were begun, one of them before the loss", begun)
		}
	})
}

// frail is a journal that can be broken for a while.
type frail struct {
	*memory.Journal
	broken atomic.Bool
}

func (f *frail) Commit(ctx context.Context, term int64, b state.Batch) error {
	if f.broken.Load() {
		return fmt.Errorf("disk full: %w", state.ErrNotCommitted)
	}
	return f.Journal.Commit(ctx, term, b)
}

// While the store cannot be written nothing is decided and nothing destroyed;
// every cycle says so. When it is back, so is the loop.
func TestAnUnusableStoreStopsActing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		f := &frail{Journal: w.journal}
		w.store = storetest.OpenOn(t, f)
		loop := w.run()
		w.until(10 * s)
		f.broken.Store(true)
		if _, err := w.store.Update(context.Background(), func(tx *state.Tx) error {
			tx.Emit(fleet.Event{EntityType: "auth", Type: fleet.EventAuthFailed})
			return nil
		}); err == nil {
			t.Error("the journal is not broken")
		}
		w.boot("h1", "fuse-x", "X")
		w.until(100 * s)
		if !w.has("h1", "X") {
			t.Error("something was destroyed without a store")
		}
		sums := w.summaries()
		if len(sums) != 4 {
			t.Errorf("%d cycles in 100 s", len(sums))
		}
		for _, sum := range sums[1:] {
			if !strings.Contains(sum.Aborted, "state store cannot be used") {
				t.Errorf("%+v", sum)
			}
		}
		f.broken.Store(false)
		w.until(125 * s)
		if w.has("h1", "X") {
			t.Error("the orphan is still there")
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestRecoveryThatCannotBeWrittenEndsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		f := &frail{Journal: w.journal}
		w.track(fleet.VM{UID: "P", HostID: "h1", State: fleet.VMStateProvisioning})
		w.store = storetest.OpenOn(t, f)
		f.broken.Store(true)
		loop := w.run()
		synctest.Wait()
		if err := loop.Ready(); fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("readiness: %v", err)
		}
		if err := loop.end(); !errors.Is(err, fleet.ErrStoreUnavailable) {
			t.Errorf("ended with %v", err)
		}
		if w.lookTimes("h1") != nil {
			t.Error("hosts were looked at before recovery")
		}
		f.broken.Store(false)
	})
}

// old writes a life and an idempotency record that ended now.
func (w *world) old(uid string) {
	w.update(func(tx *state.Tx) error {
		if err := tx.PutLife(fleet.Life{UID: uid, VMID: "fuse-" + uid, TaskID: uid, State: fleet.VMStateDestroyed}); err != nil {
			return err
		}
		if err := tx.PutStartupLog(fleet.StartupLog{UID: uid, Output: []byte("hello")}); err != nil {
			return err
		}
		if err := tx.PutTask(fleet.Task{TaskID: uid, UID: uid, RunStatus: fleet.TaskRunCompleted}); err != nil {
			return err
		}
		return tx.PutIdempotency(state.Idempotency{Owner: "master", Key: uid, Done: true})
	})
}

// left says which records of a life there are.
func (w *world) left(uid string) (records []string) {
	if err := w.store.View(func(tx *state.ReadTx) error {
		if _, ok := tx.Lives().GetUID(uid); ok {
			records = append(records, "life")
		}
		if _, ok := tx.Tasks().Get(uid); ok {
			records = append(records, "task")
		}
		if _, ok := tx.Idempotency("master", uid); ok {
			records = append(records, "answer")
		}
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	if _, ok, err := w.store.StartupLog(context.Background(), uid); err != nil || ok {
		records = append(records, "log")
	}
	return records
}

func TestOldRecordsAreForgottenAfterADay(t *testing.T) {
	scenario(t, nil, func(w *world) {
		for i := range 700 { // more than one transaction may forget
			w.old(fmt.Sprintf("old%04d", i))
		}
		w.old("reused")
		pass(time.Hour)
		w.old("new")
		// The task of an old life that a later life has again.
		w.update(func(tx *state.Tx) error {
			return tx.PutTask(fleet.Task{TaskID: "reused", UID: "later", RunStatus: fleet.TaskRunCompleted})
		})
	}, func(w *world) {
		w.until(24*time.Hour - s)
		if diff := cmp.Diff([]string{"life", "task", "answer", "log"}, w.left("old0000")); diff != "" {
			t.Errorf("within the day:\n%s", diff)
		}
		w.until(24*time.Hour + 31*s)
		purged := 0
		for _, sum := range w.summaries() {
			purged += sum.Purged
		}
		if purged != 2*701 {
			t.Errorf("%d records forgotten", purged)
		}
		for uid, want := range map[string][]string{
			"old0000": nil, "old0699": nil, "reused": {"task"}, "new": {"life", "task", "answer", "log"},
		} {
			if diff := cmp.Diff(want, w.left(uid)); diff != "" {
				t.Errorf("of %s is left:\n%s", uid, diff)
			}
		}
	})
}

// A wall clock that jumps ahead makes nothing old.
func TestAJumpOfTheClockForgetsNothing(t *testing.T) {
	scenario(t, nil, func(w *world) { w.old("A") }, func(w *world) {
		w.until(100 * s)
		w.mu.Lock()
		w.wall = 48 * time.Hour
		w.mu.Unlock()
		w.until(125 * s)
		if diff := cmp.Diff([]string{"life", "task", "answer", "log"}, w.left("A")); diff != "" {
			t.Error(diff)
		}
		sum, _ := last(w)
		const jumped = ": the wall clock moved by 48h0m30s while 30s passed"
		if diff := cmp.Diff([]string{"stuck" + jumped, "idle" + jumped, "purge" + jumped}, sum.Skipped); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOldEventsAreForgottenAsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		emit := func(id string) {
			w.update(func(tx *state.Tx) error {
				tx.Emit(fleet.Event{EntityType: "auth", EntityID: id, Type: fleet.EventAuthFailed})
				return nil
			})
		}
		emit("old")
		pass(time.Minute)
		loop := w.run(func(cfg *converge.Config) { cfg.EventRetention, cfg.Events = time.Hour, w.store })
		w.until(59 * time.Minute)
		emit("new")
		w.until(62 * time.Minute)
		left, err := w.journal.Events(context.Background(), state.EventQuery{})
		if err != nil || len(left) != 1 || left[0].EntityID != "new" {
			t.Errorf("left %+v (%v)", left, err)
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
	})
}

// However many events there are, those of the last day stay; of older ones only
// as many as were asked for.
func TestTooManyEventsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		emit := func(n int) {
			w.update(func(tx *state.Tx) error {
				for range n {
					tx.Emit(fleet.Event{EntityType: "auth", EntityID: "x", Type: fleet.EventAuthFailed})
				}
				return nil
			})
		}
		for range 5 {
			emit(10)
			pass(time.Second)
		}
		loop := w.run(func(cfg *converge.Config) { cfg.EventKeep, cfg.Events = 20, w.store })
		count := func() int {
			left, err := w.journal.Events(context.Background(), state.EventQuery{})
			if err != nil {
				t.Fatal(err)
			}
			return len(left)
		}
		w.until(23 * time.Hour)
		before := count()
		w.until(25 * time.Hour)
		if before < 50 || count() >= before || count() < 20 {
			t.Errorf("%d events within the day, %d after it", before, count())
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
	})
}
