package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// fixture is a service over a real state owner in memory and one host.
type fixture struct {
	cfg   Config
	svc   *Service
	host  *host
	store *state.Store
}

// setup builds the fixture inside a synctest bubble and ends it with the test.
func setup(t *testing.T, change func(*Config)) *fixture {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{host: newHost(), store: store}
	cfg := Config{
		Store: store, Providers: providers{f.host}, Sealer: plainSealer{}, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	f.cfg = cfg
	if f.svc, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	f.update(t, func(tx *state.Tx) error {
		return tx.PutHost(fleet.Host{
			ID: "local", State: fleet.HostActive, Backend: fleet.BackendSim,
			Capacity: fleet.HostCapacity{CPUs: 100, RamMB: 100 << 10, StorageGB: 1000, VMCount: 100, Arch: fleet.ArchAMD64},
		})
	})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := f.svc.Close(ctx); err != nil {
			t.Error("close:", err)
		}
		if err := store.Close(ctx); err != nil {
			t.Error("close store:", err)
		}
		if f.host.wrong != "" {
			t.Error("the host saw", f.host.wrong)
		}
	})
	return f
}

func (f *fixture) update(t *testing.T, fn func(*state.Tx) error) {
	t.Helper()
	if _, err := f.store.Update(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) view(fn func(*state.ReadTx)) {
	if err := f.store.View(func(tx *state.ReadTx) error { fn(tx); return nil }); err != nil {
		panic(err)
	}
}

// find returns the row, or nil.
func (f *fixture) find(id string) (vm *fleet.VM) {
	f.view(func(tx *state.ReadTx) { vm, _ = tx.VMs().Get(id) })
	return vm
}

func (f *fixture) vm(t *testing.T, id string) *fleet.VM {
	t.Helper()
	vm := f.find(id)
	if vm == nil {
		t.Fatalf("no row %s", id)
	}
	return vm
}

func (f *fixture) life(t *testing.T, id string) *fleet.Life {
	t.Helper()
	var life *fleet.Life
	f.view(func(tx *state.ReadTx) { life, _ = tx.Lives().Latest(id) })
	if life == nil {
		t.Fatalf("no life of %s", id)
	}
	return life
}

func (f *fixture) task(id string) (task *fleet.Task, ok bool) {
	f.view(func(tx *state.ReadTx) { task, ok = tx.Tasks().Get(id) })
	return task, ok
}

func (f *fixture) record(owner, key string) (rec *state.Idempotency, ok bool) {
	f.view(func(tx *state.ReadTx) { rec, ok = tx.Idempotency(owner, key) })
	return rec, ok
}

func (f *fixture) wantTask(t *testing.T, id string, want fleet.TaskRunStatus) {
	t.Helper()
	task, ok := f.task(id)
	if !ok || task.RunStatus != want {
		t.Errorf("task %s: %+v, want %s", id, task, want)
	}
}

// wantNothingLeft is the inventory after a failure or a destroy.
func (f *fixture) wantNothingLeft(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if has := f.host.has(); len(has) > 0 {
		t.Errorf("the host still has %v", has)
	}
	f.view(func(tx *state.ReadTx) {
		if n := tx.VMs().Len(); n > 0 {
			t.Errorf("%d rows are left", n)
		}
		h, _ := tx.Hosts().Get("local")
		if diff := cmp.Diff(fleet.HostCapacity{}, h.Allocated); diff != "" {
			t.Error("allocated:", diff)
		}
	})
	if n := f.svc.inFlight(); n != 0 {
		t.Errorf("%d creates are in flight", n)
	}
}

func (f *fixture) events(t *testing.T, uid string) []fleet.Event {
	t.Helper()
	events, err := f.store.Events(t.Context(), state.EventQuery{UID: uid})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func (f *fixture) wantEvents(t *testing.T, uid string, want ...string) {
	t.Helper()
	var got []string
	for _, e := range f.events(t, uid) {
		got = append(got, e.Type)
		if e.Reason == nil || e.Reason.Actor == "" || e.Reason.Rule == "" || e.VMID == "" || e.Owner == "" {
			t.Errorf("event %s does not say whose doing it is, or what it concerns: %+v", e.Type, e)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("events:", diff)
	}
}

// wantTerminal is that the last state event of a life ends its stream, and
// that no event before it does.
func (f *fixture) wantTerminal(t *testing.T, uid string, want fleet.VMState) {
	t.Helper()
	events := slices.DeleteFunc(f.events(t, uid), func(e fleet.Event) bool { return e.State == "" })
	for i, e := range events {
		if last := i == len(events)-1; fleet.IsTerminalState(e.State) != last || last && (e.State != want || e.Reason == nil) {
			t.Errorf("event %d of %d: %+v", i+1, len(events), e)
		}
	}
	if len(events) == 0 {
		t.Error("no state events")
	}
}

// settle waits for all work of the service. Nothing can be started after it.
func (f *fixture) settle(t *testing.T) {
	t.Helper()
	if err := f.svc.Close(t.Context()); err != nil {
		t.Error("close:", err)
	}
}

// restart puts a new service over the same state and host.
func (f *fixture) restart(t *testing.T) {
	t.Helper()
	var err error
	if f.svc, err = New(f.cfg); err != nil {
		t.Fatal(err)
	}
}

// fail makes one step of every create go wrong in the given way.
func (f *fixture) fail(t *testing.T, name string, way func(run func() error) error) {
	t.Helper()
	i := slices.IndexFunc(f.svc.creator.steps, func(s step) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("no step %s", name)
	}
	run := f.svc.creator.steps[i].run
	f.svc.creator.steps[i].run = func(ctx context.Context, b *build) error { return way(func() error { return run(ctx, b) }) }
}

// again makes the steps whole and creates the task once more.
func (f *fixture) again(t *testing.T) {
	t.Helper()
	f.svc.creator.steps = (&recipe{f.svc.core}).steps()
	if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"}); err != nil {
		t.Error("again:", err)
	}
}

// outage is a store that cannot be written for a while.
type outage struct {
	Store
	mu      sync.Mutex
	down    bool
	forGood bool // leadership has ended with it
}

func (o *outage) set(down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down = down
}

func (o *outage) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	o.mu.Lock()
	down, forGood := o.down, o.forGood
	o.mu.Unlock()
	if down && forGood {
		return state.Commit{}, fleet.Wrap(fleet.CodeUnavailable, errors.Join(fleet.ErrStoreUnavailable, fleet.ErrNotLeader), "leadership was given up")
	}
	if down {
		return state.Commit{}, fleet.Wrap(fleet.CodeUnavailable, fleet.ErrStoreUnavailable, "the state cannot be written")
	}
	return o.Store.Update(ctx, fn)
}

// inFlight says how many creates are claimed and not finished.
func (s *Service) inFlight() int {
	s.core.mu.Lock()
	defer s.core.mu.Unlock()
	return s.creator.unfinished
}

func manual(actor string) fleet.Reason {
	return fleet.Reason{Actor: actor, Rule: fleet.RuleManualDestroy}
}

func wantConflict(t *testing.T, err error, is error, names ...string) {
	t.Helper()
	if fleet.CodeOf(err) != fleet.CodeConflict || is != nil && !errors.Is(err, is) {
		t.Errorf("got %v, want a conflict", err)
		return
	}
	for _, n := range names {
		if !strings.Contains(err.Error(), n) {
			t.Errorf("%v does not name %s", err, n)
		}
	}
}

// bubble runs a test in virtual time.
func bubble(t *testing.T, run func(t *testing.T)) { t.Helper(); synctest.Test(t, run) }
