package lifecycle

import (
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// putDestroying claims a row for destruction: the intent, its reason and the
// end of its task, in one transaction. The caller has raised the generation.
func putDestroying(tx *state.Tx, row *fleet.VM, reason fleet.Reason, task fleet.TaskRunStatus) error {
	row.State, row.End, row.UpdatedAt = fleet.VMStateDestroying, &reason, tx.Now()
	if err := tx.PutVM(*row); err != nil {
		return err
	}
	ev := vmEvent(row, fleet.EventVMDestroying, reason)
	ev.Error = row.LastError
	tx.Emit(ev)
	if err := putDeadLetter(tx, row, reason); err != nil {
		return err
	}
	return failTask(tx, row, reason, task)
}

// putDeadLetter records the ends that people look for afterwards: of tasks
// that were stuck and environments that nobody used.
func putDeadLetter(tx *state.Tx, row *fleet.VM, reason fleet.Reason) error {
	kind, ok := fleet.DeadLetterOf(reason.Rule)
	if !ok {
		return nil
	}
	return tx.UpsertDeadLetter(fleet.DeadLetter{Kind: kind, EntityID: row.ID, TaskID: row.TaskID, Reason: reason.Evidence, RetryCount: 1})
}

// failTask ends the task of a life, unless it has ended already.
func failTask(tx *state.Tx, row *fleet.VM, why fleet.Reason, status fleet.TaskRunStatus) error {
	task, ok := tx.Tasks().Get(row.TaskID)
	if !ok || task.UID != row.UID || task.RunStatus.Done() {
		return nil
	}
	ended := *task
	ended.RunStatus, ended.UpdatedAt = status, tx.Now()
	typ := fleet.EventTaskCompleted
	if status == fleet.TaskRunFailed {
		typ, ended.LastError = fleet.EventTaskFailed, why.String()
	}
	if err := tx.PutTask(ended); err != nil {
		return err
	}
	ev := taskEvent(ended, typ, why)
	ev.Error = ended.LastError
	tx.Emit(ev)
	return nil
}

// removeRow ends a life: the row goes, what is kept of it stays, and the
// terminal event says why. Capacity returns with the row.
func removeRow(tx *state.Tx, row fleet.VM) error {
	reason := fleet.Reason{Actor: fleet.ActorLifecycle, Rule: fleet.RuleManualDestroy}
	if row.End != nil {
		reason = *row.End
	}
	ended := fleet.VMStateDestroyed
	if reason.Rule == fleet.RuleProvisionFailed || reason.Rule == fleet.RuleCreateInterrupted {
		ended = fleet.VMStateFailed
	}
	if err := failTask(tx, &row, reason, fleet.TaskRunFailed); err != nil {
		return err
	}
	if err := tx.DeleteVM(row.ID); err != nil {
		return err
	}
	life := fleet.Life{
		UID: row.UID, VMID: row.ID, TaskID: row.TaskID, HostID: row.HostID, Owner: row.Owner,
		State: ended, Reason: reason, Error: row.LastError, Spec: row.Spec, CreatedAt: row.CreatedAt, EndedAt: tx.Now(),
	}
	if err := tx.PutLife(life); err != nil {
		return err
	}
	ev := vmEvent(&row, fleet.EventVMRemoved, reason)
	ev.State, ev.Error = ended, row.LastError
	tx.Emit(ev)
	return nil
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound).With(fleet.DetailScope, id)
}

func notRunning(vm *fleet.VM, verb string) error {
	return fleet.Errorf(fleet.CodeConflict, "cannot %s environment %s while it is %s: %w", verb, vm.ID, vm.State, fleet.ErrVMNotRunning).
		With(fleet.DetailScope, vm.ID).With(fleet.DetailUsage, fmt.Sprintf("state %s", vm.State))
}
