package state

import (
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state/capacity"
)

// finish checks what spans rows, in time proportional to what the Update
// changed, and numbers its events from seq+1.
func (t *Tx) finish(seq uint64) error {
	number(t, seq)
	attribute(t)
	for before, after := range touched[fleet.VM](t, TableVMs) {
		if err := checkVM(t, before, after); err != nil {
			return err
		}
	}
	for before, after := range touched[fleet.Host](t, TableHosts) {
		if err := checkHost(t, before, after); err != nil {
			return err
		}
	}
	return nil
}

func number(t *Tx, seq uint64) {
	for i := range t.events {
		seq++
		t.events[i].Seq = seq
	}
	for _, w := range t.writes {
		life, ok := w.after.(*fleet.Life)
		if !ok || life.EndedSeq != 0 {
			continue
		}
		for _, e := range slices.Backward(t.events) {
			if e.UID == life.UID && fleet.IsTerminalState(e.State) {
				life.EndedSeq = e.Seq // nobody else has seen the row yet
				break
			}
		}
	}
}

func checkVM(t *Tx, before, after *fleet.VM) error {
	if after == nil {
		return nil // DeleteVM has checked it
	}
	from := fleet.VMState("")
	if before != nil && !t.ended[before.ID] {
		if before.UID != after.UID {
			return fleet.Errorf(fleet.CodeConflict, "environment %s: the row holds life %s, not %s", after.ID, before.UID, after.UID)
		}
		if after.Generation < before.Generation {
			return fleet.Errorf(fleet.CodeConflict, "environment %s: its generation is %d and cannot become %d", after.ID, before.Generation, after.Generation)
		}
		from = before.State
	}
	if !fleet.CanTransition(from, after.State) {
		return transitionError(before, after.State)
	}
	if after.HostID != "" {
		if _, ok := t.Hosts().Get(after.HostID); !ok {
			return fleet.Errorf(fleet.CodeConflict, "environment %s: host %s: %w", after.ID, after.HostID, fleet.ErrHostNotFound)
		}
	}
	return checkUnique(t, after)
}

func checkUnique(t *Tx, vm *fleet.VM) error {
	for other := range t.VMs().group(byTask, vm.TaskID) {
		if other.ID != vm.ID {
			return fleet.Errorf(fleet.CodeConflict, "task %s is held by environment %s: %w", vm.TaskID, other.ID, fleet.ErrTaskAlreadyAssigned).
				With("vm_id", other.ID)
		}
	}
	for other := range t.VMs().group(byUID, vm.UID) {
		if other.ID != vm.ID {
			return fleet.Errorf(fleet.CodeConflict, "environment %s: life %s belongs to environment %s", vm.ID, vm.UID, other.ID)
		}
	}
	return nil
}

func transitionError(before *fleet.VM, to fleet.VMState) error {
	id, from := "", fleet.VMState("")
	if before != nil {
		id, from = before.ID, before.State
	}
	return fleet.Errorf(fleet.CodeConflict, "environment %s cannot go from %s to %s", id, nonEmpty(from), nonEmpty(to))
}

func nonEmpty(s fleet.VMState) string {
	if s == "" {
		return "no row"
	}
	return string(s)
}

func checkHost(t *Tx, before, after *fleet.Host) error {
	if before == nil && after == nil {
		return nil // it came and went, and checkVM finds whoever names it
	}
	if after == nil {
		for vm := range t.VMs().ByHost(before.ID) {
			return fleet.Errorf(fleet.CodeConflict, "host %s: environment %s is on it: %w", before.ID, vm.ID, fleet.ErrHostHasVMs).
				With(fleet.DetailRemedy, "destroy or move its environments first")
		}
		return nil
	}
	was := capacity.Restated(before, after)
	if capacity.HasDevices(was) || capacity.HasDevices(after.Allocated) {
		// Two holders of one device count as one name in a running total, so
		// the few environments with devices are counted again.
		return checkDevices(t, was, after)
	}
	return capacity.Check(was, after)
}

// checkDevices counts a host's total again from its environments, refuses a
// device held twice, and stores the exact total.
func checkDevices(t *Tx, was fleet.HostCapacity, h *fleet.Host) (err error) {
	exact := *h
	if exact.Allocated, err = capacity.Count(t.VMs().ByHost(h.ID), h); err != nil {
		return err
	}
	if err := t.write(undo{rowID{TableHosts, hostKey(h)}, h, &exact, false}); err != nil {
		return err
	}
	return capacity.Check(was, &exact)
}
