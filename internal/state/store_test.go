package state_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var host = fleet.Host{ID: "h1", Capacity: fleet.HostCapacity{CPUs: 8, RamMB: 8192, StorageGB: 100, VMCount: 8}}

// vm returns an environment on host h1 in its first state.
func vm(name string) fleet.VM {
	return fleet.VM{
		ID: "fuse-" + name, UID: "uid-" + name, TaskID: name, HostID: "h1",
		State: fleet.VMStateProvisioning, Spec: fleet.Spec{CPUs: 1, RamMB: 512, StorageGB: 4},
	}
}

func put(vms ...fleet.VM) func(*state.Tx) error {
	return func(tx *state.Tx) error {
		if _, ok := tx.Hosts().Get("h1"); !ok {
			if err := tx.PutHost(host); err != nil {
				return err
			}
		}
		for _, v := range vms {
			tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: v.ID, UID: v.UID, Type: "t", State: v.State})
			if err := tx.PutVM(v); err != nil {
				return err
			}
		}
		return nil
	}
}

func update(t *testing.T, s *state.Store, fn func(*state.Tx) error) state.Commit {
	t.Helper()
	c, err := s.Update(context.Background(), fn)
	if err != nil {
		t.Errorf("update: %v", err) // not Fatal: it is called beside the test too
	}
	return c
}

// ids lists the environments that readers see.
func ids(t *testing.T, s *state.Store) (ids []string) {
	t.Helper()
	err := s.View(func(tx *state.ReadTx) error {
		for v := range tx.VMs().All() {
			ids = append(ids, v.ID)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestUpdateIsVisibleWhenItReturns(t *testing.T) {
	s := storetest.Open(t)
	c := update(t, s, put(vm("a")))
	if len(c.Events) != 1 || c.Events[0].Seq != 1 || c.Revision != 1 || c.At.IsZero() || !c.Events[0].At.Equal(c.At) {
		t.Errorf("commit %+v", c)
	}
	err := s.View(func(tx *state.ReadTx) error {
		got, ok := tx.VMs().Get("fuse-a")
		if !ok || got.Revision != 1 || tx.Revision() != 1 || tx.VMs().Len() != 1 || !got.CreatedAt.Equal(c.At) || !got.UpdatedAt.Equal(c.At) {
			t.Errorf("got %+v %v at %d", got, ok, tx.Revision())
		}
		h, _ := tx.Hosts().Get("h1")
		want := fleet.HostCapacity{CPUs: 1, RamMB: 512, StorageGB: 4, VMCount: 1}
		if diff := gocmp.Diff(want, h.Allocated); diff != "" {
			t.Errorf("allocated:\n%s", diff)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if revision, seq := s.Head(); revision != 1 || seq != 1 {
		t.Errorf("head %d %d", revision, seq)
	}
}

func TestAnUpdateThatChangesNothingTakesNoRevision(t *testing.T) {
	s := storetest.Open(t)
	update(t, s, put(vm("a")))
	c := update(t, s, func(tx *state.Tx) error { return tx.DeleteLife("none") })
	if revision, _ := s.Head(); c.Revision != 1 || revision != 1 {
		t.Errorf("revision %d, head %d", c.Revision, revision)
	}
}

// gated is a journal whose commits wait for permission.
type gated struct {
	*memory.Journal
	asked, allow chan struct{}
}

func newGated() *gated {
	return &gated{memory.New(memory.Options{}), make(chan struct{}), make(chan struct{})}
}

func (g *gated) Commit(ctx context.Context, term int64, b state.Batch) error {
	g.asked <- struct{}{}
	<-g.allow
	return g.Journal.Commit(ctx, term, b)
}

// pass lets n commits through.
func (g *gated) pass(n int) {
	for range n {
		<-g.asked
		g.allow <- struct{}{}
	}
}

func TestNothingShowsBeforeItIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		s := storetest.OpenOn(t, g)
		sub := s.Watch(t.Context())
		defer sub.Close()
		returned := make(chan error, 1)
		go func() {
			_, err := s.Update(t.Context(), put(vm("a")))
			returned <- err
		}()
		<-g.asked
		synctest.Wait()
		if got := ids(t, s); len(got) != 0 {
			t.Errorf("readers see %v before it is durable", got)
		}
		events, err := s.Events(t.Context(), state.EventQuery{})
		if err != nil || len(events) != 0 {
			t.Errorf("events %v, %v before they are durable", events, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if set, err := sub.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a subscriber got %+v, %v before it is durable", set, err)
		}
		select {
		case err := <-returned:
			t.Errorf("Update returned %v before it is durable", err)
		default:
		}
		g.allow <- struct{}{}
		if err := <-returned; err != nil {
			t.Error(err)
		}
		if set, err := sub.Next(t.Context()); err != nil || set.Revision != 1 || !slices.Equal(set.VMs, []string{"fuse-a"}) || !slices.Equal(set.Hosts, []string{"h1"}) {
			t.Errorf("change set %+v, %v", set, err)
		}
	})
}

func TestQueuedUpdatesShareACommitAndFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		s := storetest.OpenOn(t, g)
		var wg sync.WaitGroup
		errs := make([]error, 6)
		revisions := make([]uint64, 6)
		run := func(i int, fn func(*state.Tx) error) {
			wg.Go(func() {
				c, err := s.Update(t.Context(), fn)
				errs[i], revisions[i] = err, c.Revision
			})
			synctest.Wait()
		}
		run(0, put(vm("a")))
		<-g.asked // the first is at the journal, the rest must queue
		stop := errors.New("no")
		run(1, put(vm("b")))
		run(2, func(tx *state.Tx) error { return errors.Join(put(vm("c"))(tx), stop) })
		run(3, func(tx *state.Tx) error { put(vm("d"))(tx); panic("oops") })
		run(4, func(tx *state.Tx) error {
			if _, ok := tx.VMs().Get("fuse-b"); !ok {
				t.Error("a closure does not see the one before it")
			}
			other := vm("e")
			other.TaskID = "b"
			return put(other)(tx)
		})
		run(5, put(vm("f")))
		g.allow <- struct{}{}
		g.pass(1) // one commit for all the others
		wg.Wait()
		if errs[0] != nil || errs[1] != nil || errs[5] != nil {
			t.Errorf("good updates fail: %v", errs)
		}
		if !errors.Is(errs[2], stop) || fleet.CodeOf(errs[3]) != fleet.CodeInternal || !errors.Is(errs[4], fleet.ErrTaskAlreadyAssigned) {
			t.Errorf("bad updates: %v", errs)
		}
		if revisions[0] != 1 || revisions[1] != 2 || revisions[5] != 3 {
			t.Errorf("revisions %v", revisions)
		}
		if got := ids(t, s); !slices.Equal(got, []string{"fuse-a", "fuse-b", "fuse-f"}) {
			t.Errorf("rows %v", got)
		}
		events, err := s.Events(t.Context(), state.EventQuery{})
		if err != nil || len(events) != 3 || events[2].Seq != 3 {
			t.Errorf("events %+v, %v", events, err)
		}
	})
}

func TestContextCountsOnlyWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		s := storetest.OpenOn(t, g)
		begun, cancelBegun := context.WithCancel(t.Context())
		queued, cancelQueued := context.WithCancel(t.Context())
		results := [2]chan error{make(chan error, 1), make(chan error, 1)}
		go func() {
			_, err := s.Update(begun, put(vm("a")))
			results[0] <- err
		}()
		<-g.asked
		go func() {
			_, err := s.Update(queued, func(*state.Tx) error { t.Error("a cancelled closure runs"); return nil })
			results[1] <- err
		}()
		synctest.Wait()
		cancelBegun()
		cancelQueued()
		if err := <-results[1]; !errors.Is(err, context.Canceled) {
			t.Errorf("a queued update: %v", err)
		}
		g.allow <- struct{}{}
		if err := <-results[0]; err != nil {
			t.Errorf("an update that had begun: %v", err)
		}
		if _, err := s.Update(queued, put(vm("b"))); !errors.Is(err, context.Canceled) {
			t.Errorf("with an ended context: %v", err)
		}
	})
}

func TestTheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		s, err := state.Open(t.Context(), state.Config{Journal: g, Lease: g, QueueLimit: 2, MaxBatch: 1})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} { // one at the journal, two queued
			wg.Go(func() { update(t, s, put(vm(name))) })
		}
		<-g.asked
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.Update(ctx, put(vm("d"))); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("beyond the queue: %v", err)
		}
		g.allow <- struct{}{}
		g.pass(2)
		wg.Wait()
		if got := ids(t, s); len(got) != 3 {
			t.Errorf("rows %v", got)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseRunsWhatIsQueuedAndRefusesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		s, err := state.Open(t.Context(), state.Config{Journal: g, Lease: g, MaxBatch: 1})
		if err != nil {
			t.Fatal(err)
		}
		sub := s.Watch(t.Context())
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			wg.Go(func() { update(t, s, put(vm(name))) })
		}
		<-g.asked
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close while a commit hangs: %v", err)
		}
		g.allow <- struct{}{}
		g.pass(2)
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("close: %v", err)
		}
		wg.Wait()
		for range 3 {
			if _, err := sub.Next(t.Context()); err != nil {
				t.Errorf("a queued change set: %v", err)
			}
		}
		if _, err := sub.Next(t.Context()); !errors.Is(err, state.ErrSubscriptionClosed) {
			t.Errorf("after the last: %v", err)
		}
		if _, err := s.Update(t.Context(), put(vm("d"))); !errors.Is(err, fleet.ErrStoreUnavailable) {
			t.Errorf("after Close: %v", err)
		}
		if got := ids(t, s); len(got) != 3 {
			t.Errorf("rows after Close: %v", got)
		}
		<-s.Failed()
	})
}

func TestAFailedCommitFailsItsBatchAndLeavesNoTrace(t *testing.T) {
	y := &storetest.Faulty{Backend: memory.New(memory.Options{})}
	s := storetest.OpenOn(t, y)
	update(t, s, put(vm("a")))
	y.Fail(storetest.Refused)
	if _, err := s.Update(t.Context(), put(vm("b"))); !errors.Is(err, fleet.ErrStoreUnavailable) || fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Fatalf("update: %v", err)
	}
	if _, _, _, _, err := s.Fence(); err != nil {
		t.Errorf("a store with a full disk still owns the fleet: %v", err)
	}
	if revision, seq := s.Head(); revision != 1 || seq != 1 {
		t.Errorf("head %d %d", revision, seq)
	}
	y.Fail(storetest.Refused)
	if err := s.Ready(t.Context()); !errors.Is(err, fleet.ErrStoreUnavailable) {
		t.Errorf("ready while commits fail: %v", err)
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("ready once they work again: %v", err)
	}
	c := update(t, s, put(vm("c")))
	if got := ids(t, s); !slices.Equal(got, []string{"fuse-a", "fuse-c"}) || c.Revision != 2 || c.Events[0].Seq != 2 {
		t.Errorf("rows %v, commit %+v", got, c)
	}
}

func TestALostAnswerIsLookedUp(t *testing.T) {
	y := &storetest.Faulty{Backend: memory.New(memory.Options{})}
	s := storetest.OpenOn(t, y)
	y.Fail(storetest.Lost)
	update(t, s, put(vm("a")))
	y.Fail(storetest.Dropped)
	if _, err := s.Update(t.Context(), put(vm("b"))); !errors.Is(err, fleet.ErrStoreUnavailable) {
		t.Errorf("a commit that did not happen: %v", err)
	}
	update(t, s, put(vm("c")))
	if got := ids(t, s); !slices.Equal(got, []string{"fuse-a", "fuse-c"}) {
		t.Errorf("rows %v", got)
	}
}

func TestAnOutcomeThatCannotBeReadEndsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := &storetest.Faulty{Backend: memory.New(memory.Options{})}
		s := storetest.OpenOn(t, y)
		y.Fail(storetest.LostBlind)
		if _, err := s.Update(t.Context(), put(vm("a"))); !errors.Is(err, fleet.ErrStoreUnavailable) {
			t.Errorf("update: %v", err)
		}
		<-s.Failed()
		if got := ids(t, s); len(got) != 0 {
			t.Errorf("readers see %v", got)
		}
		// Leadership is given up: nobody goes on until the state is loaded again.
		if _, err := s.Update(t.Context(), put(vm("b"))); !errors.Is(err, fleet.ErrStoreUnavailable) || !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("update of an ended store: %v", err)
		}
		if _, _, _, _, err := s.Fence(); !errors.Is(err, fleet.ErrStoreUnavailable) {
			t.Errorf("fence of an ended store: %v", err)
		}
		if err := s.Ready(t.Context()); !errors.Is(err, fleet.ErrStoreUnavailable) {
			t.Errorf("ready of an ended store: %v", err)
		}
	})
}

func TestASecondOwnerEndsTheFirst(t *testing.T) {
	j := memory.New(memory.Options{})
	first := storetest.OpenOn(t, j)
	update(t, first, put(vm("a")))
	second := storetest.OpenOn(t, j.Reopen())
	if _, err := first.Update(t.Context(), put(vm("b"))); !errors.Is(err, fleet.ErrNotLeader) {
		t.Errorf("update of the first: %v", err)
	}
	if _, _, _, _, err := first.Fence(); !errors.Is(err, fleet.ErrNotLeader) {
		t.Errorf("fence of the first: %v", err)
	}
	if fleetID, term, token, fingerprint, err := second.Fence(); err != nil || fleetID != first.FleetID() || term != second.Term() || term <= first.Term() || token == "" || fingerprint == "" {
		t.Errorf("fence of the second: %s %d %q %q %v", fleetID, term, token, fingerprint, err)
	}
	update(t, second, put(vm("c")))
	if got := ids(t, second); !slices.Equal(got, []string{"fuse-a", "fuse-c"}) {
		t.Errorf("rows %v", got)
	}
}

// sleepy is a lease that its holder does not notice to be gone.
type sleepy struct{ *memory.Journal }

func (s sleepy) Acquire(ctx context.Context, c state.Candidate) (state.Grant, error) {
	g, err := s.Journal.Acquire(ctx, c)
	g.Tenure = unaware{}
	return g, err
}

type unaware struct{}

func (unaware) Check() error                  { return nil }
func (unaware) Lost() <-chan struct{}         { return nil }
func (unaware) Release(context.Context) error { return nil }

func TestAStaleTermEndsTheStoreAtItsNextCommit(t *testing.T) {
	j := memory.New(memory.Options{})
	first := storetest.OpenOn(t, sleepy{j})
	storetest.OpenOn(t, j.Reopen())
	if _, err := first.Update(t.Context(), put(vm("a"))); !errors.Is(err, fleet.ErrNotLeader) || !errors.Is(err, fleet.ErrStaleTerm) {
		t.Errorf("update: %v", err)
	}
	if err := first.Ready(t.Context()); !errors.Is(err, fleet.ErrNotLeader) {
		t.Errorf("ready: %v", err)
	}
	if got := ids(t, first); len(got) != 0 {
		t.Errorf("rows %v", got)
	}
}

func TestATransactionCannotBeKept(t *testing.T) {
	s := storetest.Open(t)
	var kept *state.Tx
	update(t, s, func(tx *state.Tx) error { kept = tx; return nil })
	defer func() {
		if p := fmt.Sprint(recover()); !strings.Contains(p, "after its closure") {
			t.Errorf("recovered %q", p)
		}
	}()
	kept.VMs().Get("x")
	t.Error("a kept transaction can be read")
}

func TestReadersKeepTheirSnapshot(t *testing.T) {
	s := storetest.Open(t)
	update(t, s, put(vm("a"), vm("b"), vm("c")))
	err := s.View(func(tx *state.ReadTx) error {
		next := tx.VMs().All()
		var seen []string
		for v := range next {
			seen = append(seen, v.ID)
			update(t, s, func(tx *state.Tx) error {
				other := *v
				other.State = fleet.VMStateRunning
				return tx.PutVM(other)
			})
			if v.State != fleet.VMStateProvisioning {
				t.Errorf("%s changed under its reader", v.ID)
			}
		}
		if len(seen) != 3 || tx.Revision() != 1 {
			t.Errorf("saw %v at %d", seen, tx.Revision())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestConcurrentUpdatesAreAllThere(t *testing.T) {
	s := storetest.Open(t)
	update(t, s, func(tx *state.Tx) error {
		h := host
		h.Capacity = fleet.HostCapacity{CPUs: 1000, RamMB: 1 << 30, StorageGB: 1 << 30, VMCount: 64}
		return tx.PutHost(h)
	})
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted, refused := 0, 0
	for w := range 16 {
		wg.Go(func() {
			for i := range 20 {
				_, err := s.Update(t.Context(), put(vm(fmt.Sprintf("%d-%d", w, i))))
				mu.Lock()
				switch {
				case err == nil:
					admitted++
				case errors.Is(err, fleet.ErrNoCapacity):
					refused++
				default:
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if admitted != 64 || refused != 16*20-64 || len(ids(t, s)) != 64 {
		t.Errorf("%d admitted, %d refused, %d rows: want exactly the capacity of 64", admitted, refused, len(ids(t, s)))
	}
}
