package evacuation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/ending"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const operator = "user:op"

func TestDecide(t *testing.T) {
	t0 := time.Unix(1_000_000, 0)
	d := &fleet.HostDrain{StartedAt: t0, Deadline: t0.Add(time.Hour), Grace: time.Minute}
	for name, tt := range map[string]struct {
		vm   fleet.VM
		at   time.Duration
		want action
		says string
	}{
		"being made":                    {vm: fleet.VM{State: fleet.VMStateProvisioning}, want: wait},
		"being made at the deadline":    {vm: fleet.VM{State: fleet.VMStateProvisioning}, at: time.Hour, want: end, says: "it was provisioning"},
		"running":                       {vm: fleet.VM{State: fleet.VMStateRunning}, want: leave},
		"running at the deadline":       {vm: fleet.VM{State: fleet.VMStateRunning}, at: time.Hour, want: end, says: "at the deadline"},
		"paused":                        {vm: fleet.VM{State: fleet.VMStateRunning, Paused: &fleet.Standstill{Activity: fleet.ActivityPaused}}, at: 59 * time.Second, want: wait},
		"paused, the grace is over":     {vm: fleet.VM{State: fleet.VMStateRunning, Paused: &fleet.Standstill{Activity: fleet.ActivityPaused}}, at: time.Minute, want: end, says: "it stood still there (paused)"},
		"draining":                      {vm: fleet.VM{State: fleet.VMStateDraining}, at: 59 * time.Minute, want: wait},
		"draining at the deadline":      {vm: fleet.VM{State: fleet.VMStateDraining}, at: time.Hour, want: end, says: "it was draining"},
		"drained, within the grace":     {vm: fleet.VM{State: fleet.VMStateDraining, DrainResult: "ok", UpdatedAt: t0}, at: 59 * time.Second, want: wait},
		"drained, the grace is over":    {vm: fleet.VM{State: fleet.VMStateDraining, DrainResult: "ok", UpdatedAt: t0}, at: time.Minute, want: end, says: "grace of 1m0s is over"},
		"drained badly":                 {vm: fleet.VM{State: fleet.VMStateDraining, DrainResult: "exit 1", UpdatedAt: t0}, at: time.Minute, want: end, says: "(exit 1)"},
		"ending":                        {vm: fleet.VM{State: fleet.VMStateDestroying}, at: 2 * time.Hour, want: wait},
		"drained, late in the deadline": {vm: fleet.VM{State: fleet.VMStateDraining, DrainResult: "ok", UpdatedAt: t0.Add(time.Hour - time.Second)}, at: time.Hour, want: end, says: "it was drained"},
	} {
		if got, why := decide(d, &tt.vm, t0.Add(tt.at)); got != tt.want || !strings.Contains(why, tt.says) || (why != "") != (got == end) {
			t.Errorf("%s: %v, %q", name, got, why)
		}
	}
}

// world is a host with environments, whose drains behave as each is told.
type world struct {
	t     *testing.T
	store *state.Store
	mover Mover

	mu     sync.Mutex
	drains map[string]func(context.Context) error // by id; nil: done at once
	ended  map[string]fleet.Reason
	at     map[string]time.Time
	calls  []string
	undone int    // destroys that the host does not confirm, from now on
	refuse bool   // refuses every drain
	claims func() // runs once, before the next claim
	tries  int    // that were refused
	most   int    // at a time
	now    int
}

func newWorld(t *testing.T) *world {
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
	w := &world{t: t, store: store, drains: map[string]func(context.Context) error{}, ended: map[string]fleet.Reason{}, at: map[string]time.Time{}}
	w.update(func(tx *state.Tx) error {
		big := fleet.HostCapacity{CPUs: 1000, RamMB: 1 << 20, StorageGB: 10000, VMCount: 1000}
		return errors.Join(tx.PutHost(fleet.Host{ID: "h1", State: fleet.HostActive, Capacity: big}), tx.PutHost(fleet.Host{ID: "h2", State: fleet.HostActive, Capacity: big}))
	})
	return w
}

func (w *world) update(fn func(*state.Tx) error) {
	w.t.Helper()
	if _, err := w.store.Update(context.Background(), fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) put(id, host string, states ...fleet.VMState) {
	w.t.Helper()
	for _, st := range append([]fleet.VMState{fleet.VMStateProvisioning}, states...) {
		w.update(func(tx *state.Tx) error {
			return tx.PutVM(fleet.VM{ID: id, UID: "u-" + id, TaskID: id, HostID: host, State: st, Generation: 1, Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 1}})
		})
	}
}

func (w *world) running(ids ...string) {
	for _, id := range ids {
		w.put(id, "h1", fleet.VMStateRunning)
	}
}

// DrainLifeWhile implements Lives, as lifecycle does: state first, outcome after.
func (w *world) DrainLifeWhile(ctx context.Context, id, uid, _ string, holds func(*state.ReadTx) bool) (*fleet.VM, error) {
	w.claiming()
	w.mu.Lock()
	if w.refuse {
		w.tries++
		w.mu.Unlock()
		return nil, errors.New("no")
	}
	w.calls = append(w.calls, "drain "+id)
	work := w.drains[id]
	w.now++
	w.most = max(w.most, w.now)
	w.mu.Unlock()
	defer func() { w.mu.Lock(); w.now--; w.mu.Unlock() }()
	set := func(change func(*fleet.VM)) error {
		_, err := w.store.Update(context.Background(), func(tx *state.Tx) error {
			vm, ok := tx.VMs().GetUID(uid)
			if !ok {
				return fleet.Errorf(fleet.CodeNotFound, "gone")
			}
			if vm.State == fleet.VMStateRunning && !holds(&tx.ReadTx) {
				return fleet.Errorf(fleet.CodeConflict, "not any more")
			}
			row := *vm
			change(&row)
			row.UpdatedAt = tx.Now()
			return tx.PutVM(row)
		})
		return err
	}
	if err := set(func(vm *fleet.VM) { vm.State = fleet.VMStateDraining }); err != nil {
		return nil, err
	}
	var failure error
	if work != nil {
		failure = work(ctx)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	result := "ok"
	if failure != nil {
		result = failure.Error()
	}
	return nil, errors.Join(failure, set(func(vm *fleet.VM) { vm.DrainResult = result }))
}

// claiming is right before a claim, after everything was decided.
func (w *world) claiming() {
	w.mu.Lock()
	first := w.claims
	w.claims = nil
	w.mu.Unlock()
	if first != nil {
		first()
	}
}

// DestroyLifeWhile implements Lives.
func (w *world) DestroyLifeWhile(_ context.Context, id, uid string, reason fleet.Reason, holds func(*state.ReadTx) bool) error {
	w.claiming()
	w.mu.Lock()
	w.calls = append(w.calls, "end "+id)
	unsure := w.undone > 0
	if unsure {
		w.undone--
	}
	w.mu.Unlock()
	left := false
	_, err := w.store.Update(context.Background(), func(tx *state.Tx) error {
		vm, ok := tx.VMs().GetUID(uid)
		if left = !ok || !holds(&tx.ReadTx); left {
			return nil
		}
		row := *vm
		if err := ending.Claim(tx, &row, reason, fleet.TaskRunFailed); err != nil || unsure {
			return err
		}
		return ending.Remove(tx, row)
	})
	if err == nil && left {
		return nil
	}
	if err == nil && unsure {
		return fleet.Errorf(fleet.CodeUnavailable, "the host has not confirmed it")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended[id], w.at[id] = reason, time.Now()
	return err
}

// seen is what was asked of a world so far.
type seen struct {
	ended map[string]fleet.Reason
	at    map[string]time.Time
	calls []string
	most  int
	tries int
}

func (w *world) look() seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return seen{maps.Clone(w.ended), maps.Clone(w.at), slices.Clone(w.calls), w.most, w.tries}
}

// start runs a service until the returned function is called.
func (w *world) start() (*Service, func()) {
	w.t.Helper()
	s, err := New(Config{Store: w.store, Lives: w, Mover: w.mover, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return s, sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) host(id string) (h fleet.Host) {
	w.t.Helper()
	if err := w.store.View(func(tx *state.ReadTx) error {
		row, _ := tx.Hosts().Get(id)
		h = *row
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return h
}

func (w *world) events(prefix string) (out []fleet.Event) {
	w.t.Helper()
	all, err := w.store.Events(context.Background(), state.EventQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(e fleet.Event) bool { return !strings.HasPrefix(e.Type, prefix) })
}

func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func for10s(ctx context.Context) error {
	select {
	case <-time.After(10 * time.Second):
	case <-ctx.Done():
	}
	return nil
}

func ever(ctx context.Context) error { <-ctx.Done(); return nil }

func TestADrainEmptiesAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.running("quick", "slow", "bad", "hangs")
		w.put("made", "h1")
		w.put("elsewhere", "h2", fleet.VMStateRunning)
		w.put("over", "h1", fleet.VMStateRunning, fleet.VMStateDestroying)
		w.drains["slow"], w.drains["hangs"] = for10s, ever
		w.drains["bad"] = func(context.Context) error { return errors.New("exit 3") }
		s, stop := w.start()
		defer stop()
		begun := time.Now()
		grace := 20 * time.Second
		if err := s.Start(t.Context(), Request{HostID: "h1", Actor: operator, Grace: &grace, Deadline: 5 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		if h := w.host("h1"); h.State != fleet.HostDraining || h.Drain == nil || h.Drain.Total != 6 {
			t.Fatalf("host %+v", h)
		}
		err := s.Start(t.Context(), Request{HostID: "h1", Actor: "user:other"})
		if fleet.CodeOf(err) != fleet.CodeConflict || !strings.Contains(err.Error(), operator) {
			t.Errorf("a second drain: %v", err)
		}
		elapse(4 * time.Minute)
		for id, after := range map[string]time.Duration{"quick": 20 * time.Second, "bad": 20 * time.Second, "slow": 30 * time.Second} {
			if took := w.look().at[id].Sub(begun); took < after || took > after+3*time.Second {
				t.Errorf("%s ended after %s, because of %v", id, took, w.look().ended[id])
			}
		}
		if _, early := w.look().ended["hangs"]; early || w.host("h1").State != fleet.HostDraining {
			t.Error("what hangs ended before the deadline")
		}
		elapse(time.Minute + 3*time.Second)
		for _, id := range []string{"hangs", "made"} {
			if why := w.look().ended[id]; why.Rule != fleet.RuleHostDrained || why.Actor != operator || !strings.Contains(why.Evidence, "at the deadline") {
				t.Errorf("%s ended because of %+v", id, why)
			}
		}
		if _, ok := w.look().ended["elsewhere"]; ok {
			t.Error("what is on another host ended")
		}
		// The host is empty once it confirms the end of the last.
		if w.host("h1").State != fleet.HostDraining {
			t.Error("drained although one is still there")
		}
		w.update(func(tx *state.Tx) error {
			vm, _ := tx.VMs().Get("over")
			return ending.Remove(tx, *vm)
		})
		elapse(2 * time.Second)
		if h := w.host("h1"); h.State != fleet.HostCordoned || h.Drain != nil {
			t.Errorf("in the end %+v", h)
		}
		var types []string
		var lefts []int
		for _, e := range w.events("host.") {
			types = append(types, e.Type)
			var p progressPayload
			if err := json.Unmarshal(e.Payload, &p); err == nil && e.Type == fleet.EventHostDrainProgress {
				lefts = append(lefts, p.Left)
			}
		}
		types = slices.Compact(types)
		if diff := cmp.Diff([]string{fleet.EventHostDrainStarted, fleet.EventHostDrainProgress, fleet.EventHostDrained}, types); diff != "" {
			t.Error(diff)
		}
		if !slices.IsSortedFunc(lefts, func(a, b int) int { return b - a }) || len(lefts) > 12 {
			t.Errorf("left %v", lefts)
		}
	})
}

func TestCancel(t *testing.T) {
	for _, was := range []fleet.HostState{fleet.HostActive, fleet.HostCordoned} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.update(func(tx *state.Tx) error {
				h, _ := tx.Hosts().Get("h1")
				row := *h
				row.State = was
				return tx.PutHost(row)
			})
			w.running("a", "b")
			w.drains["b"] = for10s
			s, stop := w.start()
			defer stop()
			if err := s.Cancel(t.Context(), "h1", operator); fleet.CodeOf(err) != fleet.CodeConflict {
				t.Errorf("cancel of nothing: %v", err)
			}
			if err := s.Start(t.Context(), Request{HostID: "h1", Actor: operator}); err != nil {
				t.Fatal(err)
			}
			elapse(5 * time.Second)
			if err := s.Cancel(t.Context(), "h1", operator); err != nil {
				t.Fatal(err)
			}
			elapse(2 * time.Hour)
			if h := w.host("h1"); h.State != was || h.Drain != nil {
				t.Errorf("host %+v", h)
			}
			if len(w.look().ended) != 0 {
				t.Errorf("ended %v", w.look().ended)
			}
			if got := w.events(fleet.EventHostDrainCancelled); len(got) != 1 {
				t.Errorf("%d events", len(got))
			}
			// And a new one can begin.
			if err := s.Start(t.Context(), Request{HostID: "h1", Actor: operator}); err != nil {
				t.Fatal(err)
			}
			elapse(time.Minute)
			if h := w.host("h1"); h.State != fleet.HostCordoned || len(w.look().ended) != 2 {
				t.Errorf("host %s, ended %v", h.State, w.look().ended)
			}
		})
	}
}

// A cancel that is answered between the decision and the claim is what counts:
// nothing is stopped or ended after it.
func TestCancelBeforeTheClaim(t *testing.T) {
	for name, deadline := range map[string]time.Duration{"a drain": time.Hour, "an end": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.running("a")
				cancelled := make(chan error, 1)
				s, stop := w.start()
				defer stop()
				cancel := func() { cancelled <- s.Cancel(context.Background(), "h1", operator) }
				if deadline < time.Minute {
					w.drains["a"] = for10s
				} else {
					w.claims = cancel
				}
				if err := s.Start(t.Context(), Request{HostID: "h1", Actor: operator, Deadline: deadline}); err != nil {
					t.Fatal(err)
				}
				if deadline < time.Minute {
					elapse(3 * time.Second)
					w.mu.Lock()
					w.claims = cancel
					w.mu.Unlock()
				}
				elapse(time.Hour)
				if err := <-cancelled; err != nil {
					t.Fatal(err)
				}
				if len(w.look().ended) != 0 {
					t.Errorf("ended after the cancel: %v", w.look().ended)
				}
				if deadline > time.Minute {
					if err := w.store.View(func(tx *state.ReadTx) error {
						if vm, _ := tx.VMs().Get("a"); vm.State != fleet.VMStateRunning {
							t.Errorf("it is %s after the cancel", vm.State)
						}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

// The process that takes over goes on, with the same deadline.
func TestAnotherProcessGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.running("a", "b")
		w.drains["b"] = ever
		s, stop := w.start()
		begun := time.Now()
		if err := s.Start(t.Context(), Request{HostID: "h1", Actor: operator, Deadline: 10 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		elapse(5 * time.Second)
		stop()
		if h := w.host("h1"); h.State != fleet.HostDraining || len(w.look().ended) != 0 {
			t.Fatalf("host %s, ended %v", h.State, w.look().ended)
		}
		elapse(time.Minute)
		_, stop = w.start()
		defer stop()
		elapse(2 * time.Second)
		if _, ok := w.look().ended["a"]; !ok {
			t.Error("the one that was drained is not ended")
		}
		elapse(9 * time.Minute)
		if took := w.look().at["b"].Sub(begun); took < 10*time.Minute || took > 10*time.Minute+3*time.Second {
			t.Errorf("b ended after %s", took)
		}
		if h := w.host("h1"); h.State != fleet.HostCordoned {
			t.Errorf("host %s", h.State)
		}
	})
}

// A host that does not confirm keeps its drain open, and is asked no more often
// than the loop does.
func TestAnEndThatIsNotConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.running("a")
		w.undone = 1
		s, stop := w.start()
		defer stop()
		none := time.Duration(0)
		if err := s.Start(t.Context(), Request{HostID: "h1", Actor: operator, Grace: &none}); err != nil {
			t.Fatal(err)
		}
		elapse(2 * time.Hour)
		if h := w.host("h1"); h.State != fleet.HostDraining || !slices.Equal(w.look().calls, []string{"drain a", "end a"}) {
			t.Errorf("host %s, calls %v", h.State, w.look().calls)
		}
	})
}

func TestAStandingFailureBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.running("a")
		w.refuse = true
		s, stop := w.start()
		defer stop()
		if err := s.Start(t.Context(), Request{HostID: "h1", Actor: operator, Deadline: time.Hour}); err != nil {
			t.Fatal(err)
		}
		elapse(59 * time.Minute)
		if n := w.look().tries; n < 5 || n > 70 {
			t.Errorf("%d tries in an hour", n)
		}
		elapse(2 * time.Minute)
		if w.host("h1").State != fleet.HostCordoned {
			t.Error("the deadline did not end it")
		}
	})
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range 40 {
			id := fmt.Sprintf("vm%02d", i)
			w.running(id)
			w.drains[id] = for10s
		}
		s, stop := w.start()
		defer stop()
		if err := s.Start(t.Context(), Request{HostID: "h1", Actor: operator}); err != nil {
			t.Fatal(err)
		}
		elapse(3 * time.Minute)
		if w.host("h1").State != fleet.HostCordoned || w.look().most > perHost {
			t.Errorf("host %s, %d at a time", w.host("h1").State, w.look().most)
		}
	})
}

// moving moves what it is told to, and fails for others.
type moving struct {
	w    *world
	fail map[string]bool
	not  map[string]bool
}

func (m moving) Move(_ context.Context, vm fleet.VM, _ fleet.Reason) (bool, error) {
	switch {
	case m.fail[vm.ID]:
		return false, errors.New("no room")
	case m.not[vm.ID]:
		return false, nil
	}
	m.w.update(func(tx *state.Tx) error {
		vm.HostID = "h2"
		vm.Generation++
		return tx.PutVM(vm)
	})
	return true, nil
}

func TestWhatCanBeMovedIsMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.running("moves", "fails", "cannot")
		w.mover = moving{w, map[string]bool{"fails": true}, map[string]bool{"cannot": true}}
		s, stop := w.start()
		defer stop()
		if err := s.Start(t.Context(), Request{HostID: "h1", Actor: operator}); err != nil {
			t.Fatal(err)
		}
		elapse(time.Minute)
		if _, ended := w.look().ended["moves"]; ended || len(w.look().ended) != 2 || w.host("h1").State != fleet.HostCordoned {
			t.Errorf("ended %v, host %s", w.look().ended, w.host("h1").State)
		}
		if err := w.store.View(func(tx *state.ReadTx) error {
			if vm, ok := tx.VMs().Get("moves"); !ok || vm.HostID != "h2" || vm.State != fleet.VMStateRunning {
				t.Errorf("it is %+v", vm)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRequests(t *testing.T) {
	w := newWorld(t)
	s, err := New(Config{Store: w.store, Lives: w, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	long, negative := 8*24*time.Hour, -time.Second
	for name, tt := range map[string]struct {
		req  Request
		code fleet.Code
	}{
		"no host":           {Request{HostID: "none"}, fleet.CodeNotFound},
		"a short deadline":  {Request{HostID: "h1", Deadline: time.Millisecond}, fleet.CodeInvalidArgument},
		"a long deadline":   {Request{HostID: "h1", Deadline: long}, fleet.CodeInvalidArgument},
		"a long grace":      {Request{HostID: "h1", Grace: &long}, fleet.CodeInvalidArgument},
		"a grace below 0":   {Request{HostID: "h1", Grace: &negative}, fleet.CodeInvalidArgument},
		"a negative limit":  {Request{HostID: "h1", Deadline: -time.Hour}, fleet.CodeInvalidArgument},
		"an empty host now": {Request{HostID: "h1"}, ""},
	} {
		if err := s.Start(t.Context(), tt.req); fleet.CodeOf(err) != tt.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Cancel(t.Context(), "none", operator); !errors.Is(err, fleet.ErrHostNotFound) {
		t.Error(err)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a service of nothing")
	}
}
