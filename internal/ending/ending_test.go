package ending_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/ending"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// A host that is lost ends everything on it in one step, whatever it was doing,
// and nothing anywhere else.
func TestLost(t *testing.T) {
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	own := fleet.Reason{Actor: "user:a", Rule: fleet.RuleManualDestroy}
	states := map[string]fleet.VMState{
		"a": fleet.VMStateProvisioning, "b": fleet.VMStateRunning, "c": fleet.VMStateDraining, "d": fleet.VMStateDestroying, "other": fleet.VMStateRunning,
	}
	update := func(fn func(*state.Tx) error) {
		t.Helper()
		if _, err := store.Update(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	update(func(tx *state.Tx) error {
		for _, id := range []string{"h1", "h2"} {
			if err := tx.PutHost(fleet.Host{ID: id, State: fleet.HostActive, Capacity: fleet.HostCapacity{CPUs: 8, RamMB: 8192, StorageGB: 80, VMCount: 8}}); err != nil {
				return err
			}
		}
		for id := range states {
			vm := fleet.VM{ID: id, UID: "u" + id, TaskID: id, HostID: "h1", Generation: 1, State: fleet.VMStateProvisioning, Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 1}}
			if id == "other" {
				vm.HostID = "h2"
			}
			if err := tx.PutVM(vm); err != nil {
				return err
			}
			if err := tx.PutTask(fleet.Task{TaskID: id, VMID: id, UID: vm.UID, RunStatus: fleet.TaskRunAssigned}); err != nil {
				return err
			}
		}
		return nil
	})
	for _, step := range []fleet.VMState{fleet.VMStateRunning, fleet.VMStateDraining, fleet.VMStateDestroying} {
		update(func(tx *state.Tx) error {
			for id, st := range states {
				vm, _ := tx.VMs().Get(id)
				row := *vm
				switch {
				case step == fleet.VMStateRunning && st != fleet.VMStateProvisioning, step == fleet.VMStateDraining && st == step:
					row.State = step
					if err := tx.PutVM(row); err != nil {
						return err
					}
				case step == fleet.VMStateDestroying && st == step:
					if err := ending.Claim(tx, &row, own, fleet.TaskRunFailed); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	why := fleet.Reason{Actor: "user:a", Rule: fleet.RuleHostLost, Evidence: "host h1 was forgotten"}
	var lost []string
	update(func(tx *state.Tx) error {
		vms, err := ending.Lost(tx, "h1", why)
		for _, vm := range vms {
			lost = append(lost, vm.ID)
		}
		return err
	})
	if diff := cmp.Diff([]string{"a", "b", "c", "d"}, lost); diff != "" {
		t.Error(diff)
	}
	if err := store.View(func(tx *state.ReadTx) error {
		if tx.VMs().Len() != 1 {
			t.Errorf("%d rows are left", tx.VMs().Len())
		}
		h, _ := tx.Hosts().Get("h1")
		if h.Allocated.CPUs != 0 || h.Allocated.VMCount != 0 {
			t.Errorf("allocated %+v", h.Allocated)
		}
		for id := range states {
			life, ended := tx.Lives().Latest(id)
			task, _ := tx.Tasks().Get(id)
			switch {
			case id == "other":
				if ended || task.RunStatus.Done() {
					t.Error("what is on another host ended as well")
				}
			case !ended || task.RunStatus != fleet.TaskRunFailed:
				t.Errorf("%s: ended %t, task %s", id, ended, task.RunStatus)
			case id == "d":
				if life.Reason != own {
					t.Errorf("its own end became %v", life.Reason)
				}
			case life.Reason != why || life.State != fleet.VMStateFailed:
				t.Errorf("%s ended as %s because of %v", id, life.State, life.Reason)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
