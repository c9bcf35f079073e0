package converge_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/recovery"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
)

// Recovery ends without a look at any host, so that serving may begin while
// they have not answered, and never before it has ended.
func TestRecoveryEndsBeforeTheLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		w.track(fleet.VM{UID: "P", HostID: "h1", State: fleet.VMStateProvisioning})
		w.hosts["h1"].hangs = true
		loop := w.run()
		if err := loop.WaitRecovered(t.Context()); err != nil {
			t.Fatal(err)
		}
		if row := w.row("P"); row.State != fleet.VMStateDestroying || time.Since(w.start) != 0 {
			t.Errorf("after %v the row is %s", time.Since(w.start), row.State)
		}
		if loop.Ready() == nil {
			t.Error("ready before the first look has ended")
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
	})
}

// Where recovery cannot be written nothing is served.
func TestWithoutRecoveryNothingIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		if err := w.store.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		loop := w.run()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := loop.WaitRecovered(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waited for recovery: %v", err)
		}
		if err := loop.end(); !errors.Is(err, fleet.ErrStoreUnavailable) {
			t.Errorf("the loop ended with %v", err)
		}
	})
}

// What a process finds that takes over: creates that were cut short are taken
// back, destroys go on, what runs is kept, and a host that does not answer is
// left alone until it does.
func TestTakingOver(t *testing.T) {
	scenario(t, []string{"h1", "h2"}, func(w *world) {
		w.running("h1", "R")
		w.running("h2", "Q")
		w.track(fleet.VM{UID: "P", HostID: "h1", State: fleet.VMStateProvisioning})
		w.boot("h1", "fuse-P", "P") // the boot had gone through
		w.track(fleet.VM{UID: "P2", HostID: "h2", State: fleet.VMStateProvisioning})
		w.boot("h2", "fuse-P2", "P2")
		w.track(fleet.VM{UID: "D", HostID: "h1", State: fleet.VMStateDestroying})
		w.boot("h1", "fuse-D", "D")
		w.track(fleet.VM{UID: "G", HostID: "h1", State: fleet.VMStateDraining})
		w.boot("h1", "fuse-G", "G")
		w.update(func(tx *state.Tx) error {
			return tx.PutTask(fleet.Task{TaskID: "lost", UID: "nobody", RunStatus: fleet.TaskRunRunning})
		})
		w.hosts["h2"].down = true
	}, func(w *world) {
		w.until(s)
		if got := w.takenBack(); !slices.Equal(got, []string{"G", "R"}) {
			t.Errorf("taken back from the host that answers: %v", got)
		}
		for uid, want := range map[string]fleet.VMState{"R": "running", "Q": "running", "G": "draining", "P2": "destroying"} {
			if row := w.row(uid); row == nil || row.State != want {
				t.Errorf("%s: want %s, got %+v", uid, want, row)
			}
		}
		if w.has("h1", "P") || w.has("h1", "D") || w.row("P") != nil || w.row("D") != nil {
			t.Error("what ends is not gone after the first cycle")
		}
		want := fleet.Reason{Actor: fleet.ActorRecovery, Rule: fleet.RuleCreateInterrupted}
		for _, got := range []*fleet.Reason{&w.life("P").Reason, w.row("P2").End} {
			if got.Actor != want.Actor || got.Rule != want.Rule || got.Evidence == "" {
				t.Errorf("ended as %+v", got)
			}
		}
		for task, want := range map[string]fleet.TaskRunStatus{
			"P": fleet.TaskRunFailed, "P2": fleet.TaskRunFailed, "D": fleet.TaskRunFailed,
			"lost": fleet.TaskRunFailed, "R": fleet.TaskRunRunning, "G": fleet.TaskRunRunning,
		} {
			if got := w.task(task).RunStatus; got != want {
				t.Errorf("task %s is %s, want %s", task, got, want)
			}
		}
		if diff := cmp.Diff([]string{"fuse-R R"}, w.events(fleet.EventVMRecovered)); diff != "" {
			t.Errorf("recovered:\n%s", diff)
		}
		if sum, _ := last(w); sum.Unverified != 1 || !slices.Equal(sum.HostsUnseen, []string{"h2"}) {
			t.Errorf("%+v", sum)
		}
		// The other host comes back: its VM is told of then, and the create that
		// was cut short is taken back there too.
		w.until(100 * s)
		w.on("h2", func(h *host) { h.down = false })
		w.create("h2", "fuse-new", "N", s)
		w.until(200 * s)
		if diff := cmp.Diff([]string{"fuse-R R", "fuse-Q Q"}, w.events(fleet.EventVMRecovered)); diff != "" {
			t.Errorf("recovered, each once, and nothing that is new:\n%s", diff)
		}
		if got := w.takenBack(); !slices.Equal(got, []string{"G", "Q", "R"}) {
			t.Errorf("taken back from both hosts, each once: %v", got)
		}
		if w.has("h2", "P2") || w.row("P2") != nil || w.row("Q") == nil {
			t.Error("the host that came back was not put in order")
		}
		if sum, _ := last(w); sum.Unverified != 0 || sum.TrackedVMs != sum.ProviderVMs {
			t.Errorf("%+v", sum)
		}
	})
}

// A VM that ended while nobody led counts at the second complete look, or at
// once with its host's record: never for want of an answer.
func TestWhatEndedWhileNobodyLed(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) {
		w.track(fleet.VM{UID: "A", HostID: "h1", State: fleet.VMStateRunning})
		w.track(fleet.VM{UID: "B", HostID: "h1", State: fleet.VMStateRunning})
		w.hosts["h1"].exits = []fleet.ExitRecord{{UID: "B", Cause: "host_rebooted"}}
	}, func(w *world) {
		w.until(s)
		if w.row("A") == nil || w.row("B") != nil {
			t.Errorf("after one look: A %v, B %v", w.row("A"), w.row("B"))
		}
		w.until(31 * s)
		if w.row("A") != nil {
			t.Error("A is still there after two looks")
		}
	})
}

// The table of recovery and the first plan after it say the same of a running
// row.
func TestRecoveryAndReconcileAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vm := &fleet.VM{
			ID: "a", UID: "A", HostID: "h1", State: fleet.VMStateRunning,
			Revision: rapid.Uint64Range(1, 3).Draw(t, "row at"),
		}
		look := fleet.Look{HostID: rapid.SampledFrom([]string{"h1", "h1", "h2"}).Draw(t, "host"), ID: "l", Revision: 2}
		var vms []fleet.ObservedVM
		var exits []fleet.ExitRecord
		switch rapid.IntRange(0, 3).Draw(t, "listed") {
		case 0:
			vms = []fleet.ObservedVM{{ID: "a", UID: "A", Running: true}}
		case 1:
			vms = []fleet.ObservedVM{{ID: "a", UID: "A"}}
		case 2:
			vms = []fleet.ObservedVM{{ID: "a", UID: "A", Exit: &fleet.ExitRecord{UID: "A"}}}
		}
		if rapid.Bool().Draw(t, "recorded") {
			exits = []fleet.ExitRecord{{UID: "A"}}
		}
		obs := []fleet.Observation{
			fleet.NotSeen(look, "down"), fleet.SeenPartial(look, "adopting"), fleet.SeenComplete(look, vms, exits, 0),
		}[rapid.IntRange(0, 2).Draw(t, "quality")]

		r := reconcile.Plan(reconcile.Input{
			VMs: []*fleet.VM{vm}, Observations: map[string]fleet.Observation{"h1": obs}, Heard: map[string]uint64{"h1": 9}, Revision: 9,
		})
		got := recovery.Keep
		switch {
		case len(r.Steps) > 0:
			got = recovery.Demote
		case r.Summary.MissingSuspected > 0:
			got = recovery.Suspect
		}
		want := recovery.Triage(recovery.Record{VM: vm}, obs).Action
		if want == recovery.Reattach {
			want = recovery.Keep
		}
		if got != want {
			t.Errorf("recovery says %s, reconcile %s", want, got)
		}
	})
}

// A create that begins in this process before its recovery has run is its own
// and is not taken back.
func TestNewCreatesAreNotInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		loop := w.run(func(cfg *converge.Config) {
			cfg.Store = &late{cfg.Store, func() { go w.create("h1", "fuse-n", "N", 5*s) }}
		})
		w.until(20 * s)
		if row := w.row("N"); row == nil || row.State != fleet.VMStateRunning || w.events(fleet.EventVMRecovered) != nil {
			t.Errorf("row %+v, recovered %v", row, w.events(fleet.EventVMRecovered))
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
	})
}

// late is a store in which something happens before the first write.
type late struct {
	converge.Store
	before func()
}

func (l *late) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	if l.before != nil {
		l.before()
		l.before = nil
		synctest.Wait()
	}
	return l.Store.Update(ctx, fn)
}

// Taking over twice in a row changes nothing more.
func TestTakingOverAgainChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		w.running("h1", "R")
		w.track(fleet.VM{UID: "P", HostID: "h1", State: fleet.VMStateProvisioning})
		for range 3 {
			loop := w.run()
			pass(s)
			if err := loop.end(); err != nil {
				t.Error(err)
			}
		}
		if w.row("R") == nil || len(w.events(fleet.EventVMDestroying)) != 1 || len(w.events(fleet.EventTaskFailed)) != 1 {
			t.Errorf("row %v, events %v %v", w.row("R"), w.events(fleet.EventVMDestroying), w.events(fleet.EventTaskFailed))
		}
		if took := time.Since(w.start); took != 3*s {
			t.Errorf("it took %v", took)
		}
	})
}

// Work on snapshots that an earlier process left has an end, told with its why.
func TestSnapshotsThatWereCutShort(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) {
		for id, state0 := range map[string]fleet.SnapshotState{
			"C": fleet.SnapshotStateCreating, "D": fleet.SnapshotStateDeleting, "S": fleet.SnapshotStateRestoring, "R": fleet.SnapshotStateReady,
		} {
			w.update(func(tx *state.Tx) error {
				return tx.PutSnapshot(fleet.Snapshot{
					SnapshotID: id, State: state0, Exports: []fleet.SnapshotExport{{Destination: "d", Status: fleet.SnapshotExportPending}},
				})
			})
		}
	}, func(w *world) {
		w.until(s)
		want := map[string]fleet.SnapshotState{
			"C": fleet.SnapshotStateError, "D": fleet.SnapshotStateError, "S": fleet.SnapshotStateReady, "R": fleet.SnapshotStateReady,
		}
		if err := w.store.View(func(tx *state.ReadTx) error {
			for snap := range tx.Snapshots().All() {
				failed := snap.State == fleet.SnapshotStateError
				if snap.State != want[snap.SnapshotID] || failed != (snap.LastError != "") || snap.Exports[0].Status != fleet.SnapshotExportError {
					t.Errorf("%+v", snap)
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		told := w.events(fleet.EventSnapshotInterrupted)
		slices.Sort(told)
		if diff := cmp.Diff([]string{"C ", "D ", "S "}, told); diff != "" {
			t.Errorf("told:\n%s", diff)
		}
	})
}

// What a host has handed out, devices by name, is summed from its VMs when a
// process takes over; a stored sum is never trusted.
func TestAllocationsComeFromTheRows(t *testing.T) {
	journal := memory.New(memory.Options{})
	before := storetest.OpenOn(t, journal)
	vm := func(id string, spec fleet.Spec) fleet.VM {
		return fleet.VM{ID: id, UID: id, TaskID: id, Generation: 1, HostID: "h", State: fleet.VMStateProvisioning, Spec: spec}
	}
	whole := fleet.Spec{CPUs: 1, RamMB: 10, StorageGB: 2, GPUs: 1, GPUUUIDs: []string{"gpu-1"}}
	part := fleet.Spec{CPUs: 2, RamMB: 20, StorageGB: 3, GPUs: 1, GPUProfile: "1g.10gb", MIGInstanceUUIDs: []string{"mig-7"}}
	if _, err := before.Update(t.Context(), func(tx *state.Tx) error {
		return errors.Join(tx.PutHost(fleet.Host{
			ID: "h", State: fleet.HostActive,
			Capacity:  fleet.HostCapacity{CPUs: 9, RamMB: 99, StorageGB: 99, VMCount: 9, GPUs: 2, MIGProfiles: map[string]int{"1g.10gb": 2}},
			Allocated: fleet.HostCapacity{CPUs: 77},
		}), tx.PutVM(vm("a", whole)), tx.PutVM(vm("b", part)))
	}); err != nil {
		t.Fatal(err)
	}
	after := storetest.OpenOn(t, journal)
	want := fleet.HostCapacity{
		CPUs: 3, RamMB: 30, StorageGB: 5, VMCount: 2, GPUs: 1, GPUDeviceUUIDs: []string{"gpu-1"},
		MIGProfiles: map[string]int{"1g.10gb": 1}, MIGInstanceUUIDs: []string{"mig-7"},
	}
	if err := after.View(func(tx *state.ReadTx) error {
		h, _ := tx.Hosts().Get("h")
		if diff := cmp.Diff(want, h.Allocated); diff != "" {
			t.Errorf("allocated (-want +got):\n%s", diff)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for id, spec := range map[string]fleet.Spec{
		"c": whole, "d": {CPUs: 1, RamMB: 1, GPUs: 1, GPUProfile: "1g.10gb", MIGInstanceUUIDs: []string{"mig-7"}},
	} {
		if _, err := after.Update(t.Context(), func(tx *state.Tx) error { return tx.PutVM(vm(id, spec)) }); err == nil {
			t.Errorf("%s was given a device that another holds", id)
		}
	}
}
