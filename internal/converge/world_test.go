package converge_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is a fleet: the real state owner on a memory journal, and hosts that
// do what they are told, slowly if they are told so. It runs in a synctest
// bubble, so its time is virtual.
type world struct {
	t       *testing.T
	journal *memory.Journal
	store   *state.Store
	start   time.Time

	mu    sync.Mutex
	hosts map[string]*host
	// looks and destroys are when each happened, since the start.
	looks    map[string][]time.Duration
	destroys map[string][]time.Duration // by uid, at a host
	looking  int
	most     int // looks at a time
	sums     []reconcile.Summary
	back     []string // uids that were taken back
	// wall moves the loop's wall clock.
	wall time.Duration
	loop *converge.Loop // the newest
}

// host is what one machine does. Zero values: it answers at once.
type host struct {
	vms   map[string]fleet.ObservedVM
	exits []fleet.ExitRecord
	// listAt and answerAt are when, after a look began, the list is made and
	// the answer comes.
	listAt, answerAt time.Duration
	partial          bool
	down             bool // refuses at once
	hangs            bool // never answers anything
	destroyTakes     time.Duration
	refusesDestroy   bool
}

func newWorld(t *testing.T, hosts ...string) *world {
	w := &world{
		t: t, journal: memory.New(memory.Options{FleetID: "F"}), start: time.Now(),
		hosts: map[string]*host{}, looks: map[string][]time.Duration{}, destroys: map[string][]time.Duration{},
	}
	w.store = storetest.OpenOn(t, w.journal)
	for _, id := range hosts {
		w.hosts[id] = &host{vms: map[string]fleet.ObservedVM{}}
		w.update(func(tx *state.Tx) error {
			return tx.PutHost(fleet.Host{
				ID: id, State: fleet.HostActive,
				Capacity: fleet.HostCapacity{CPUs: 1 << 20, RamMB: 1 << 30, StorageGB: 1 << 20, VMCount: 1 << 20},
			})
		})
	}
	return w
}

func (w *world) update(fn func(*state.Tx) error) {
	w.t.Helper()
	if _, err := w.store.Update(context.Background(), fn); err != nil {
		w.t.Error(err)
	}
}

// on changes a host while nobody looks.
func (w *world) on(id string, change func(*host)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w.hosts[id])
}

// boot puts a VM on a host, behind the control plane's back.
func (w *world) boot(hostID, vmID, uid string) {
	w.on(hostID, func(h *host) { h.vms[uid] = fleet.ObservedVM{ID: vmID, UID: uid, Generation: 1, Running: true} })
}

// has says whether the host runs the VM.
func (w *world) has(hostID, uid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.hosts[hostID].vms[uid]
	return ok
}

// row reads a row by uid; nil if there is none.
func (w *world) row(uid string) (row *fleet.VM) {
	if err := w.store.View(func(tx *state.ReadTx) error {
		row, _ = tx.VMs().GetUID(uid)
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	return row
}

// track writes a row as it is, through the states that lead to it.
func (w *world) track(vm fleet.VM) {
	w.t.Helper()
	if vm.ID == "" {
		vm.ID = "fuse-" + vm.UID
	}
	if vm.TaskID == "" {
		vm.TaskID = vm.UID
	}
	if vm.Generation == 0 {
		vm.Generation = 1
	}
	final := vm.State
	path := map[fleet.VMState][]fleet.VMState{
		fleet.VMStateProvisioning: {fleet.VMStateProvisioning},
		fleet.VMStateRunning:      {fleet.VMStateProvisioning, fleet.VMStateRunning},
		fleet.VMStateDraining:     {fleet.VMStateProvisioning, fleet.VMStateRunning, fleet.VMStateDraining},
		fleet.VMStateDestroying:   {fleet.VMStateProvisioning, fleet.VMStateDestroying},
	}[final]
	for _, s := range path {
		w.update(func(tx *state.Tx) error {
			vm.State = s
			if s == fleet.VMStateDestroying && vm.End == nil {
				vm.End = &fleet.Reason{Actor: fleet.ActorMaster, Rule: fleet.RuleManualDestroy}
			}
			status := map[bool]fleet.TaskRunStatus{true: fleet.TaskRunAssigned, false: fleet.TaskRunRunning}[s == fleet.VMStateProvisioning]
			if err := tx.PutTask(fleet.Task{TaskID: vm.TaskID, VMID: vm.ID, UID: vm.UID, RunStatus: status}); err != nil {
				return err
			}
			return tx.PutVM(vm)
		})
	}
}

// running tracks a VM and puts it on its host.
func (w *world) running(hostID, uid string) {
	w.track(fleet.VM{UID: uid, HostID: hostID, State: fleet.VMStateRunning})
	w.boot(hostID, "fuse-"+uid, uid)
}

// create makes a VM as lifecycle does: the claim is durable before the host is
// called, and the VM is running only after the host has answered.
func (w *world) create(hostID, id, uid string, bootTakes time.Duration) {
	vm := fleet.VM{ID: id, UID: uid, TaskID: uid, HostID: hostID, Generation: 1, State: fleet.VMStateProvisioning}
	w.update(func(tx *state.Tx) error { return tx.PutVM(vm) })
	pass(bootTakes / 2)
	w.boot(hostID, id, uid)
	pass(bootTakes - bootTakes/2)
	w.update(func(tx *state.Tx) error {
		if row, ok := tx.VMs().GetUID(uid); !ok || row.State != fleet.VMStateProvisioning {
			return nil // a destroy won
		}
		vm.State = fleet.VMStateRunning
		return tx.PutVM(vm)
	})
}

// Look is a converge.Looker.
func (w *world) Look(ctx context.Context, row fleet.Host) fleet.Observation {
	look := fleet.Look{HostID: row.ID, At: time.Now()}
	w.mu.Lock()
	h := *w.hosts[row.ID]
	w.looks[row.ID] = append(w.looks[row.ID], time.Since(w.start))
	look.ID = fmt.Sprintf("%s.%d", row.ID, len(w.looks[row.ID]))
	w.looking++
	w.most = max(w.most, w.looking)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.looking--
		w.mu.Unlock()
	}()
	if h.down {
		return fleet.NotSeen(look, "connection refused")
	}
	if h.hangs {
		<-ctx.Done()
		return fleet.NotSeen(look, ctx.Err().Error())
	}
	if !passOr(ctx, h.listAt) {
		return fleet.NotSeen(look, ctx.Err().Error())
	}
	w.mu.Lock()
	vms, exits := slices.Collect(maps.Values(w.hosts[row.ID].vms)), slices.Clone(w.hosts[row.ID].exits)
	w.mu.Unlock()
	if !passOr(ctx, h.answerAt-h.listAt) {
		return fleet.NotSeen(look, ctx.Err().Error())
	}
	if h.partial {
		return fleet.SeenPartial(look, "adopting")
	}
	return fleet.SeenComplete(look, vms, exits, 0)
}

// Reattach is a converge.Reattacher.
func (w *world) Reattach(_ context.Context, vms []*fleet.VM) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, vm := range vms {
		w.back = append(w.back, vm.UID)
	}
}

func (w *world) takenBack() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(slices.Values(w.back))
}

var errRefused = errors.New("the host cannot destroy it")

// DestroyOrphan is a converge.OrphanKiller.
func (w *world) DestroyOrphan(ctx context.Context, hostID, id, uid string) error {
	if row := w.row(uid); row != nil && row.State != fleet.VMStateDestroying {
		w.t.Errorf("%s is destroyed and its row is %s", uid, row.State)
	}
	w.mu.Lock()
	h := *w.hosts[hostID]
	w.destroys[uid] = append(w.destroys[uid], time.Since(w.start))
	w.mu.Unlock()
	if h.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if h.down || !passOr(ctx, h.destroyTakes) {
		return errors.New("host unavailable")
	}
	if h.refusesDestroy {
		return errRefused
	}
	w.on(hostID, func(h *host) {
		if vm, ok := h.vms[uid]; ok && vm.ID != id {
			w.t.Errorf("asked to destroy %q, it is %q", id, vm.ID)
		}
		delete(h.vms, uid)
	})
	return nil
}

// DestroyLife is a converge.Destroyer: intent, act, settle, as lifecycle does.
func (w *world) DestroyLife(ctx context.Context, id, uid string, reason fleet.Reason) error {
	var vm fleet.VM
	w.mu.Lock()
	for hostID, h := range w.hosts {
		if reason.Rule == fleet.RuleMissingFromProvider && h.vms[uid].Running {
			w.t.Errorf("%s counts as missing and runs on %s: %s", uid, hostID, reason)
		}
	}
	w.mu.Unlock()
	if _, err := w.store.Update(ctx, func(tx *state.Tx) error {
		row, ok := tx.VMs().GetUID(uid)
		if !ok {
			return fleet.Errorf(fleet.CodeNotFound, "%w", fleet.ErrVMNotFound)
		}
		if vm = *row; vm.ID != id {
			w.t.Errorf("asked to destroy %q, it is %q", id, vm.ID)
		}
		if vm.State == fleet.VMStateDestroying {
			return nil
		}
		vm.State, vm.End = fleet.VMStateDestroying, &reason
		vm.Generation++
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: id, UID: uid, Type: fleet.EventVMDestroying, State: vm.State, Reason: &reason})
		return tx.PutVM(vm)
	}); err != nil {
		return err
	}
	if vm.HostID != "" {
		if err := w.DestroyOrphan(ctx, vm.HostID, id, uid); err != nil {
			return err
		}
	}
	_, err := w.store.Update(ctx, func(tx *state.Tx) error {
		if _, ok := tx.VMs().GetUID(uid); !ok {
			return nil
		}
		if task, ok := tx.Tasks().Get(vm.TaskID); ok && !task.RunStatus.Done() {
			failed := *task
			failed.RunStatus = fleet.TaskRunFailed
			if err := tx.PutTask(failed); err != nil {
				return err
			}
		}
		if err := tx.PutLife(fleet.Life{UID: uid, VMID: id, TaskID: vm.TaskID, State: fleet.VMStateDestroyed, Reason: *vm.End}); err != nil {
			return err
		}
		return tx.DeleteVM(id)
	})
	return err
}

// life reads how a life ended; nil if it has not.
func (w *world) life(uid string) (life *fleet.Life) {
	if err := w.store.View(func(tx *state.ReadTx) error {
		life, _ = tx.Lives().GetUID(uid)
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	return life
}

func (w *world) task(id string) (task fleet.Task) {
	if err := w.store.View(func(tx *state.ReadTx) error {
		if row, ok := tx.Tasks().Get(id); ok {
			task = *row
		}
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	return task
}

// events lists the events of a type, as "entity uid".
func (w *world) events(typ string) (found []string) {
	all, err := w.store.Events(context.Background(), state.EventQuery{})
	if err != nil {
		w.t.Error(err)
	}
	for _, e := range all {
		if e.Type == typ {
			found = append(found, e.EntityID+" "+e.UID)
		}
	}
	return found
}

func (w *world) lookTimes(hostID string) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.looks[hostID])
}

func (w *world) destroyTimes(uid string) []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.destroys[uid])
}

func (w *world) summaries() []reconcile.Summary {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sums)
}

// running is a loop that is at work.
type started struct {
	*converge.Loop
	end func() error
}

// run starts a loop on the world; end stops it and returns what Run returned.
func (w *world) run(edits ...func(*converge.Config)) started {
	w.t.Helper()
	cfg := converge.Config{
		Store: w.store, Looker: w, Destroyer: w, OrphanKiller: w, Reattacher: w,
		Logger: slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics: func(s reconcile.Summary) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.sums = append(w.sums, s)
		},
	}
	for _, edit := range edits {
		edit(&cfg)
	}
	loop, err := converge.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.loop = loop
	loop.SetWall(func() time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		return time.Now().Add(w.wall)
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(ctx) }()
	return started{loop, sync.OnceValue(func() error {
		cancel()
		return <-ended
	})}
}

// scenario runs a test in a bubble with a world and a loop that ends with it.
func scenario(t *testing.T, hosts []string, prepare, test func(*world), edits ...func(*converge.Config)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, hosts...)
		if prepare != nil {
			prepare(w)
		}
		loop := w.run(edits...)
		test(w)
		if err := loop.end(); err != nil {
			t.Errorf("the loop ended with %v", err)
		}
	})
}

// pass lets virtual time pass.
func pass(d time.Duration) { passOr(context.Background(), d) }

func passOr(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// until lets time pass until a moment after the world began, and everything
// that was due by then settle.
func (w *world) until(d time.Duration) {
	pass(d - time.Since(w.start))
	synctest.Wait()
}
