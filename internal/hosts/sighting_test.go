package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

func pass(d time.Duration) { <-time.NewTimer(d).C }

// Three looks missed, or 90 s of silence that a look has noticed, whichever
// comes first.
func TestUnreachableRule(t *testing.T) {
	for name, tt := range map[string]struct {
		every  time.Duration // between looks
		misses int           // looks that miss until the host counts as unreachable
		never  bool          // not seen before
	}{
		"three looks of a fast loop":             {every: 5 * time.Second, misses: 3},
		"three looks of the usual loop":          {every: 30 * time.Second, misses: 3},
		"90 s in a slow loop":                    {every: time.Minute, misses: 2},
		"90 s in a very slow one":                {every: 2 * time.Minute, misses: 1},
		"never seen, from the first missed look": {every: 30 * time.Second, misses: 3, never: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := setup(t)
				h := f.register(t, nil)
				if tt.never {
					f.svc.mu.Lock()
					delete(f.svc.sightings, h.ID)
					f.svc.mu.Unlock()
				} else {
					f.svc.Look(t.Context(), h)
				}
				f.agent.setErr(errAway)
				for i := 1; i <= tt.misses; i++ {
					if len(f.svc.Unreachable()) != 0 || f.svc.Sighting(h.ID).Unreachable {
						t.Fatalf("unreachable before miss %d", i)
					}
					pass(tt.every)
					f.svc.Look(t.Context(), h)
				}
				if f.svc.Unreachable()[h.ID] != "the host did not answer" || !f.svc.Sighting(h.ID).Unreachable {
					t.Errorf("after %d misses: %v, %+v", tt.misses, f.svc.Unreachable(), f.svc.Sighting(h.ID))
				}
			})
		})
	}
}

// Placement, the API and the log go by the one rule also between two looks.
func TestSilenceBetweenLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		h := f.register(t, nil)
		stop := f.run(t)
		defer stop()
		f.agent.setErr(errAway)
		pass(30 * time.Second)
		f.svc.Look(t.Context(), h)
		pass(61 * time.Second) // and nobody looks again
		if !f.svc.Sighting(h.ID).Unreachable || len(f.svc.Unreachable()) != 1 {
			t.Errorf("got %+v", f.svc.Sighting(h.ID))
		}
		pass(beat)
		synctest.Wait()
		if got := f.events(t); got[len(got)-1] != fleet.EventHostUnreachable {
			t.Errorf("events %v", got)
		}
	})
}

func TestEventsOfReachability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		h := f.register(t, nil)
		stop := f.run(t)
		defer stop()
		f.svc.Look(t.Context(), h)
		seen := time.Now().UTC()
		f.agent.setErr(errAway)
		for range 5 { // more misses are no more news
			pass(25 * time.Second)
			f.svc.Look(t.Context(), h)
		}
		synctest.Wait()
		f.agent.setErr(nil)
		pass(25 * time.Second)
		f.svc.Look(t.Context(), h)
		f.svc.Look(t.Context(), h)
		synctest.Wait()
		if diff := cmp.Diff([]string{fleet.EventHostRegistered, fleet.EventHostUnreachable, fleet.EventHostReachable, fleet.EventHostReturned}, f.events(t)); diff != "" {
			t.Fatal(diff)
		}
		events, err := f.store.Events(t.Context(), state.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		down, up := events[1], events[2]
		since := seen.Add(25 * time.Second)
		if r := down.Reason; r == nil || r.Actor != fleet.ActorReconcile || r.Evidence != "3 looks missed since "+since.Format(time.RFC3339)+
			", last seen "+seen.Format(time.RFC3339)+"; the last: the host did not answer" {
			t.Errorf("unreachable because of %+v", r)
		}
		var p sightingPayload
		if err := json.Unmarshal(down.Payload, &p); err != nil || p.Misses != 3 || !p.Since.Equal(since) || p.LastSeen == nil || !p.LastSeen.Equal(seen) {
			t.Errorf("payload %s, %v", down.Payload, err)
		}
		if r := up.Reason; r == nil || r.Evidence != "it answered after 5 looks missed in 2m5s" {
			t.Errorf("reachable because of %+v", r)
		}
	})
}

// One lost look is no event, in either direction.
func TestOneMissIsNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		h := f.register(t, nil)
		stop := f.run(t)
		defer stop()
		for range 4 {
			f.agent.setErr(errAway)
			pass(30 * time.Second)
			f.svc.Look(t.Context(), h)
			f.agent.setErr(nil)
			pass(30 * time.Second)
			f.svc.Look(t.Context(), h)
		}
		synctest.Wait()
		if got := f.events(t); len(got) != 1 {
			t.Errorf("events %v", got)
		}
	})
}

// A store that takes nothing holds up no look, and loses no event.
func TestEventsWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		h := f.register(t, nil)
		away := &awayStore{Store: f.svc.cfg.Store}
		f.svc.cfg.Store = away
		stop := f.run(t)
		defer stop()
		away.set(errors.New("disk full"))
		f.agent.setErr(errAway)
		began := time.Now()
		for range 3 {
			f.svc.Look(t.Context(), h)
		}
		if time.Since(began) != 0 {
			t.Error("the looks waited")
		}
		pass(3 * beat)
		if got := f.events(t); len(got) != 1 {
			t.Fatalf("events %v", got)
		}
		away.set(nil)
		pass(beat)
		synctest.Wait()
		if got := f.events(t); len(got) != 2 || got[1] != fleet.EventHostUnreachable {
			t.Errorf("events %v", got)
		}
	})
}

// What waits is bounded; the newest count.
func TestNoticesAreBounded(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.svc.mu.Lock()
	for range maxNotices + 10 {
		f.svc.tell(unreachable(h.ID, Sighting{Reason: "old"}))
	}
	f.svc.tell(unreachable(h.ID, Sighting{Reason: "new"}))
	f.svc.mu.Unlock()
	if n := len(f.svc.notices); n != maxNotices {
		t.Errorf("%d wait", n)
	}
	if err := f.svc.publish(t.Context()); err != nil || len(f.svc.notices) != 0 {
		t.Errorf("%v, %d left", err, len(f.svc.notices))
	}
	if _, seq := f.store.Head(); seq != maxNotices+1 {
		t.Errorf("%d events", seq)
	}
}

// An event of a host that was removed meanwhile says nothing to anybody.
func TestNoticeOfARemovedHost(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.svc.mu.Lock()
	f.svc.tell(unreachable(h.ID, Sighting{}))
	f.svc.mu.Unlock()
	if err := errors.Join(f.svc.Remove(t.Context(), h.ID, "user:a"), f.svc.publish(t.Context())); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(f.events(t), " "); strings.Contains(got, fleet.EventHostUnreachable) {
		t.Errorf("events %s", got)
	}
}

// A running VM that an earlier process left is unverified until its host has
// been seen completely.
func TestUnverified(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.update(t, func(tx *state.Tx) error { return putVM(tx, "fuse-t", "u1") })
	f.update(t, func(tx *state.Tx) error {
		vm, _ := tx.VMs().Get("fuse-t")
		row := *vm
		row.State = fleet.VMStateRunning
		return tx.PutVM(row)
	})
	row := func() (vm *fleet.VM) {
		_ = f.store.View(func(tx *state.ReadTx) error {
			vm, _ = tx.VMs().Get("fuse-t")
			return nil
		})
		return vm
	}
	if f.svc.Sighting(h.ID).Unverified(row()) {
		t.Error("what this process made is unverified")
	}
	again, err := New(f.svc.cfg) // as the next leader starts
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}()
	if !again.Sighting(h.ID).Unverified(row()) {
		t.Error("what an earlier process left is verified")
	}
	f.agent.listing.Complete = false
	again.Look(t.Context(), h)
	if !again.Sighting(h.ID).Unverified(row()) {
		t.Error("a partial look verifies")
	}
	f.agent.listing.Complete = true
	again.Look(t.Context(), h)
	f.agent.setErr(errAway)
	again.Look(t.Context(), h)
	if again.Sighting(h.ID).Unverified(row()) || !again.Sighting(h.ID).Complete {
		t.Error("a complete look does not verify")
	}
}

// run starts the service's own work and returns what ends it.
func (f *fixture) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.svc.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// awayStore fails to write while it is told to.
type awayStore struct {
	Store
	mu  sync.Mutex
	err error
}

func (s *awayStore) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *awayStore) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err != nil {
		return state.Commit{}, err
	}
	return s.Store.Update(ctx, fn)
}
