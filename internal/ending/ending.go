package ending

import (
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Claim claims a row for destruction: the intent, its reason and the end of
// its task, in one transaction. The caller has raised the generation.
func Claim(tx *state.Tx, row *fleet.VM, reason fleet.Reason, task fleet.TaskRunStatus) error {
	row.State, row.End, row.UpdatedAt = fleet.VMStateDestroying, &reason, tx.Now()
	if err := tx.PutVM(*row); err != nil {
		return err
	}
	ev := VMEvent(row, fleet.EventVMDestroying, reason)
	ev.Error = row.LastError
	tx.Emit(ev)
	if err := putDeadLetter(tx, row, reason); err != nil {
		return err
	}
	return EndTask(tx, row, reason, task)
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

// EndTask ends the task of a life, unless it has ended already.
func EndTask(tx *state.Tx, row *fleet.VM, why fleet.Reason, status fleet.TaskRunStatus) error {
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
	ev := TaskEvent(ended, typ, why)
	ev.Error = ended.LastError
	tx.Emit(ev)
	return nil
}

// Remove ends a life: the row goes, what is kept of it stays, and the terminal
// event says why. Capacity returns with the row.
func Remove(tx *state.Tx, row fleet.VM) error {
	reason := fleet.Reason{Actor: fleet.ActorLifecycle, Rule: fleet.RuleManualDestroy}
	if row.End != nil {
		reason = *row.End
	}
	ended := fleet.VMStateDestroyed
	switch reason.Rule {
	case fleet.RuleProvisionFailed, fleet.RuleCreateInterrupted, fleet.RuleHostLost:
		ended = fleet.VMStateFailed
	}
	if err := EndTask(tx, &row, reason, fleet.TaskRunFailed); err != nil {
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
	ev := VMEvent(&row, fleet.EventVMRemoved, reason)
	ev.State, ev.Error = ended, row.LastError
	tx.Emit(ev)
	return nil
}

// Lost ends every life on a host that will not come back, without asking it: an
// operator has said so. One that was to end anyway keeps its own reason. It
// returns the lives, by VM id.
func Lost(tx *state.Tx, hostID string, reason fleet.Reason) (lost []*fleet.VM, err error) {
	for vm := range tx.VMs().ByHost(hostID) {
		lost = append(lost, vm)
	}
	for _, vm := range lost {
		row := *vm
		if row.State != fleet.VMStateDestroying {
			row.Generation++
			if err := Claim(tx, &row, reason, fleet.TaskRunFailed); err != nil {
				return nil, err
			}
		}
		if err := Remove(tx, row); err != nil {
			return nil, err
		}
	}
	return lost, nil
}

// VMEvent is an event of a VM that tells its state.
func VMEvent(vm *fleet.VM, typ string, why fleet.Reason) fleet.Event {
	return fleet.Event{EntityType: fleet.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: typ, State: vm.State, URL: vm.URL, Reason: &why}
}

// TaskEvent is an event of a task.
func TaskEvent(t fleet.Task, typ string, why fleet.Reason) fleet.Event {
	return fleet.Event{EntityType: fleet.EntityTask, EntityID: t.TaskID, UID: t.UID, Type: typ, Reason: &why}
}
