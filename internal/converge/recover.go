package converge

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/recovery"
	"github.com/fusevm/fuse/internal/state"
)

// recoverRows decides about every row what needs no look at a host, in one
// transaction and before anything is served: creates that were cut short are
// claimed for destruction, tasks follow their environments, and work on
// snapshots that nobody finishes has failed.
func (l *Loop) recoverRows(ctx context.Context) error {
	claimed, repaired, snapshots := 0, 0, 0
	_, err := l.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		for _, vm := range collect(tx.VMs().All()) {
			v := recovery.Triage(recovery.Record{VM: vm}, fleet.Observation{})
			if v.Action != recovery.Destroy || vm.Revision > l.inherited {
				continue
			}
			claimed++
			if err := claim(tx, *vm, v.Reason); err != nil {
				return err
			}
		}
		for _, task := range collect(tx.Tasks().All()) {
			vm, _ := tx.VMs().GetUID(task.UID)
			v := recovery.TriageTask(*task, vm)
			if v.Status == "" {
				continue
			}
			repaired++
			if err := repair(tx, *task, v); err != nil {
				return err
			}
		}
		for _, snap := range collect(tx.Snapshots().All()) {
			v := recovery.TriageSnapshot(*snap)
			if v.State == "" && !v.Exports || snap.Revision > l.inherited {
				continue
			}
			snapshots++
			if err := repairSnapshot(tx, *snap, v); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	l.log.Info("state recovered", slog.Int("creates_interrupted", claimed), slog.Int("tasks_repaired", repaired),
		slog.Int("snapshots_repaired", snapshots))
	return nil
}

func repairSnapshot(tx *state.Tx, snap fleet.Snapshot, v recovery.SnapshotVerdict) error {
	snap.UpdatedAt = tx.Now()
	if v.Exports {
		snap.Exports = slices.Clone(snap.Exports)
		for i := range snap.Exports {
			if e := &snap.Exports[i]; e.Status == fleet.SnapshotExportPending {
				e.Status, e.LastError, e.UpdatedAt = fleet.SnapshotExportError, "the control plane ended before it was done", tx.Now()
			}
		}
	}
	if v.State != "" {
		// What was not written to its end is of no use, and an end that has begun is
		// gone on with.
		snap.Discard = snap.Discard || snap.State == fleet.SnapshotStateCreating || snap.State == fleet.SnapshotStateDeleting
		snap.State = v.State
		if snap.LastError = ""; v.State == fleet.SnapshotStateError {
			snap.LastError = v.Why
		}
		tx.Emit(fleet.Event{
			EntityType: fleet.EntitySnapshot, EntityID: snap.SnapshotID, UID: snap.UID, VMID: snap.VMID, Type: fleet.EventSnapshotInterrupted, Error: snap.LastError,
			Reason: &fleet.Reason{Actor: fleet.ActorRecovery, Rule: fleet.RuleSettled, Evidence: v.Why},
		})
	}
	return tx.PutSnapshot(snap)
}

func claim(tx *state.Tx, vm fleet.VM, reason fleet.Reason) error {
	vm.State, vm.End, vm.LastError = fleet.VMStateDestroying, &reason, reason.Evidence
	vm.Generation++
	if err := tx.PutVM(vm); err != nil {
		return err
	}
	tx.Emit(fleet.Event{
		EntityType: state.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMDestroying,
		State: vm.State, Error: vm.LastError, Reason: &reason,
	})
	return nil
}

func repair(tx *state.Tx, task fleet.Task, v recovery.TaskVerdict) error {
	task.RunStatus, task.LastError = v.Status, v.Why
	if err := tx.PutTask(task); err != nil {
		return err
	}
	typ := fleet.EventTaskRunning
	if v.Status == fleet.TaskRunFailed {
		typ = fleet.EventTaskFailed
	}
	tx.Emit(fleet.Event{
		EntityType: fleet.EntityTask, EntityID: task.TaskID, UID: task.UID, Type: typ, Error: v.Why,
		Reason: &fleet.Reason{Actor: fleet.ActorRecovery, Rule: fleet.RuleSettled, Evidence: v.Why},
	})
	return nil
}

// reattach says of each VM that an earlier process left running, when its host
// is first seen completely, that it runs on, and has it and the drains that
// were cut short taken back beside the loop.
func (l *Loop) reattach(ctx context.Context, rows []*fleet.VM, obs fleet.Observation) error {
	var kept, back []*fleet.VM
	for _, vm := range rows {
		if vm.Revision > l.inherited || vm.State != fleet.VMStateRunning && vm.State != fleet.VMStateDraining {
			continue
		}
		v := recovery.Triage(recovery.Record{VM: vm}, obs)
		switch {
		case v.Action == recovery.Reattach && vm.Paused != nil:
			kept = append(kept, vm) // nothing can be handed to a guest that stands still
			continue
		case v.Action == recovery.Reattach:
			kept, back = append(kept, vm), append(back, vm)
			continue
		case v.Action == recovery.Drain:
			back = append(back, vm)
			continue
		case vm.State == fleet.VMStateDraining:
			continue
		}
		l.log.Warn("environment not seen after a restart", slog.String("vm_id", vm.ID), slog.String("uid", vm.UID),
			slog.String("host_id", vm.HostID), slog.String("verdict", string(v.Action)), slog.String("why", v.Why))
	}
	if len(back) > 0 && l.cfg.Reattacher != nil {
		l.goes.Go(func() { l.cfg.Reattacher.Reattach(ctx, back) })
	}
	if len(kept) == 0 {
		return nil
	}
	_, err := l.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		for _, vm := range kept {
			tx.Emit(fleet.Event{
				EntityType: state.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMRecovered,
				Reason: &fleet.Reason{Actor: fleet.ActorRecovery, Rule: fleet.RuleSeen, Evidence: "look " + obs.ID},
			})
		}
		return nil
	})
	return err
}
