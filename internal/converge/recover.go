package converge

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/recovery"
	"github.com/fusevm/fuse/internal/state"
)

// recoverRows decides about every row what needs no look at a host, in one
// transaction and before anything is served: creates that were cut short are
// claimed for destruction, and tasks follow their environments.
func (l *Loop) recoverRows(ctx context.Context) error {
	claimed, repaired := 0, 0
	_, err := l.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		claimed, repaired = 0, 0
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
		return nil
	})
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	l.log.Info("state recovered", slog.Int("creates_interrupted", claimed), slog.Int("tasks_repaired", repaired))
	return nil
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
// is first seen completely, that it runs on.
func (l *Loop) reattach(ctx context.Context, rows []*fleet.VM, obs fleet.Observation) error {
	var kept []*fleet.VM
	for _, vm := range rows {
		if vm.Revision > l.inherited || vm.State != fleet.VMStateRunning {
			continue
		}
		v := recovery.Triage(recovery.Record{VM: vm}, obs)
		if v.Action == recovery.Reattach {
			kept = append(kept, vm)
			continue
		}
		l.log.Warn("environment not seen after a restart", slog.String("vm_id", vm.ID), slog.String("uid", vm.UID),
			slog.String("host_id", vm.HostID), slog.String("verdict", string(v.Action)), slog.String("why", v.Why))
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
