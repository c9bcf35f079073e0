package state_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
)

func emit(n int) func(*state.Tx) error {
	return func(tx *state.Tx) error {
		for i := range n {
			tx.Emit(fleet.Event{EntityType: "x", EntityID: fmt.Sprint(i)})
		}
		return nil
	}
}

func TestASubscriberThatFallsBehindIsTold(t *testing.T) {
	j := memory.New(memory.Options{})
	s, err := state.Open(t.Context(), state.Config{Journal: j, Lease: j, WatchBuffer: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	slow, quick := s.Watch(t.Context()), s.Watch(t.Context())
	defer slow.Close()
	defer quick.Close()
	for i := range 5 {
		update(t, s, emit(1))
		if set, err := quick.Next(t.Context()); err != nil || set.Revision != uint64(i+1) {
			t.Fatalf("the quick one: %+v, %v", set, err)
		}
	}
	for range 2 {
		if set, err := slow.Next(t.Context()); !errors.Is(err, state.ErrLagged) {
			t.Errorf("the slow one: %+v, %v", set, err)
		}
	}
}

func TestASubscriptionEndsWithItsContextOrClose(t *testing.T) {
	s := storetest.Open(t)
	ctx, cancel := context.WithCancel(t.Context())
	one, two := s.Watch(ctx), s.WatchVM(t.Context(), "fuse-a")
	cancel()
	if _, err := one.Next(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	two.Close()
	two.Close()
	if _, err := two.Next(t.Context()); !errors.Is(err, state.ErrSubscriptionClosed) {
		t.Errorf("after Close: %v", err)
	}
	update(t, s, put(vm("a"))) // nobody is left to be told
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Watch(t.Context()).Next(t.Context()); !errors.Is(err, state.ErrSubscriptionClosed) {
		t.Errorf("on a closed store: %v", err)
	}
}

func TestNextWaitsAndObeysItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t)
		sub := s.Watch(t.Context())
		defer sub.Close()
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error)
		go func() {
			_, err := sub.Next(ctx)
			got <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("next: %v", err)
		}
		go func() {
			_, err := sub.Next(t.Context())
			got <- err
		}()
		synctest.Wait()
		update(t, s, emit(1))
		if err := <-got; err != nil {
			t.Errorf("a waiting next: %v", err)
		}
	})
}

func TestWatchVMTellsOfOneEnvironment(t *testing.T) {
	s := storetest.Open(t)
	sub := s.WatchVM(t.Context(), "fuse-b")
	defer sub.Close()
	update(t, s, put(vm("a")))
	update(t, s, put(vm("b")))
	update(t, s, emit(1))
	update(t, s, func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: "fuse-b", Type: "without a row"})
		return nil
	})
	update(t, s, func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: "host", EntityID: "fuse-b"})
		return nil
	})
	update(t, s, func(tx *state.Tx) error { return tx.DeleteVM("fuse-b") })
	var revisions []uint64
	for range 3 {
		set, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, set.Revision)
	}
	if !slices.Equal(revisions, []uint64{2, 4, 6}) {
		t.Errorf("revisions %v", revisions)
	}
}

// Whatever commits happen around ViewAndWatch, the snapshot and the feed
// together are the whole story, with nothing twice.
func TestViewAndWatchLeavesNoGap(t *testing.T) {
	s := storetest.Open(t)
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				update(t, s, emit(1))
			}
		})
	}
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for range 20 {
				var seen uint64
				sub, err := s.ViewAndWatch(t.Context(), func(tx *state.ReadTx) error { seen = tx.Revision(); return nil })
				if err != nil {
					t.Error(err)
					return
				}
				for seen < 400 && err == nil {
					var set state.ChangeSet
					if set, err = sub.Next(t.Context()); err == nil && set.Revision != seen+1 {
						t.Errorf("revision %d follows %d", set.Revision, seen)
						seen = 400
					}
					seen++
				}
				sub.Close()
				if err != nil && !errors.Is(err, state.ErrLagged) {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	readers.Wait()
}

func TestViewAndWatchPassesAnErrorOn(t *testing.T) {
	s := storetest.Open(t)
	stop := errors.New("no")
	if _, err := s.ViewAndWatchVM(t.Context(), "x", func(*state.ReadTx) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestThousandsOfSubscribersGetEverything(t *testing.T) {
	const subscribers, commits = 3000, 20
	s := storetest.Open(t)
	var wg sync.WaitGroup
	for i := range subscribers {
		sub := s.Watch(t.Context())
		if i%2 == 0 {
			sub.Close()
			sub = s.WatchVM(t.Context(), "fuse-a")
		}
		wg.Go(func() {
			defer sub.Close()
			for n := range commits {
				if set, err := sub.Next(t.Context()); err != nil || set.Revision != uint64(n+1) {
					t.Errorf("subscriber %d: %d, %v", i, set.Revision, err)
					return
				}
			}
		})
	}
	for range commits {
		update(t, s, put(vm("a")))
	}
	wg.Wait()
}

// Events from memory and from the journal are the same events.
func TestEventsComeFromMemoryOrTheJournal(t *testing.T) {
	j := memory.New(memory.Options{})
	s, err := state.Open(t.Context(), state.Config{Journal: j, Lease: j, MaxEventsInMemory: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	var all []fleet.Event
	for i := range 50 {
		v := vm(fmt.Sprint(i % 3))
		all = append(all, update(t, s, func(tx *state.Tx) error {
			e := fleet.Event{EntityType: state.EntityVM, EntityID: v.ID, UID: v.UID, Type: "t"}
			if i%2 == 0 {
				e.State = fleet.VMStateRunning
			}
			tx.Emit(e)
			return nil
		}).Events...)
	}
	for after := range 52 {
		for _, q := range []state.EventQuery{{}, {Limit: 5}, {VMID: "fuse-1"}, {UID: "uid-2", StatesOnly: true}, {UpTo: 40}} {
			q.After = uint64(after)
			var want []fleet.Event
			for i := range all {
				if q.Match(&all[i]) && len(want) < q.Normal().Limit {
					want = append(want, all[i])
				}
			}
			got, err := s.Events(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("%+v:\n%s", q, diff)
			}
		}
	}
}

// A journal knows a batch before readers may: its events must not leak.
func TestEventsOfTheJournalWaitUntilTheyAreVisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := &late{Journal: memory.New(memory.Options{}), durable: make(chan struct{}), answer: make(chan struct{})}
		s, err := state.Open(t.Context(), state.Config{Journal: late, Lease: late, MaxEventsInMemory: 1})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			update(t, s, emit(3))
		}()
		<-late.durable
		if events, err := s.Events(t.Context(), state.EventQuery{}); err != nil || len(events) != 0 {
			t.Errorf("events %v, %v before they are visible", events, err)
		}
		late.answer <- struct{}{}
		<-done
		if events, err := s.Events(t.Context(), state.EventQuery{}); err != nil || len(events) != 3 {
			t.Errorf("events %v, %v", events, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// late answers a commit some time after it became durable.
type late struct {
	*memory.Journal
	durable, answer chan struct{}
}

func (l *late) Commit(ctx context.Context, term int64, b state.Batch) error {
	err := l.Journal.Commit(ctx, term, b)
	l.durable <- struct{}{}
	<-l.answer
	return err
}
