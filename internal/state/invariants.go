package state

import (
	"fmt"
	"maps"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
)

// finish checks what spans rows, in time proportional to what the Update
// changed, and numbers its events from seq+1.
func (t *Tx) finish(seq uint64) error {
	number(t, seq)
	t.attribute()
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
	was := restated(before, after)
	if hasDevices(was) || hasDevices(after.Allocated) {
		// Two holders of one device count as one name in a running total, so
		// the few environments with devices are counted again.
		return checkDevices(t, was, after)
	}
	return checkCapacity(was, after)
}

// restated is what a host held at the beginning of the Update, by what its VMs'
// processes need now: that a probe found them larger refuses nothing, it only
// leaves less for the next.
func restated(before, after *fleet.Host) fleet.HostCapacity {
	if before == nil {
		return fleet.HostCapacity{}
	}
	was := before.Allocated
	was.RamMB += was.VMCount * (after.Facts.OverheadMB - before.Facts.OverheadMB)
	return was
}

// hasDevices reports whether somebody holds a GPU of the host. The counts tell,
// not the names: a name that two held for a moment may be gone from the total.
func hasDevices(c fleet.HostCapacity) bool {
	return c.GPUs != 0 || len(c.MIGProfiles) > 0 || len(c.GPUDeviceUUIDs) > 0 || len(c.MIGInstanceUUIDs) > 0
}

// checkCapacity refuses a total that rose above the host's capacity. One that
// did not rise may be above it: a host can be registered again as smaller.
func checkCapacity(was fleet.HostCapacity, h *fleet.Host) error {
	for _, d := range []struct {
		name             string
		was, now, limit_ int
	}{
		{"vm_count", was.VMCount, h.Allocated.VMCount, h.Capacity.VMCount},
		{"cpus", was.CPUs, h.Allocated.CPUs, h.Capacity.CPUs},
		{"ram_mb", was.RamMB, h.Allocated.RamMB, h.Capacity.RamMB},
		{"storage_gb", was.StorageGB, h.Allocated.StorageGB, h.Capacity.StorageGB},
		{"gpus", was.GPUs, h.Allocated.GPUs, h.Capacity.GPUs},
	} {
		if d.now > d.was && d.now > d.limit_ {
			return capacityError(h, d.name, d.now, d.limit_)
		}
	}
	for _, profile := range slices.Sorted(maps.Keys(h.Allocated.MIGProfiles)) {
		if now, limit := h.Allocated.MIGProfiles[profile], h.Capacity.MIGProfiles[profile]; now > was.MIGProfiles[profile] && now > limit {
			return capacityError(h, "mig_profiles."+profile, now, limit)
		}
	}
	return nil
}

func capacityError(h *fleet.Host, what string, now, limit int) error {
	return fleet.Errorf(fleet.CodeUnavailable, "host %s would hold %d of %d %s: %w", h.ID, now, limit, what, fleet.ErrNoCapacity).
		With(fleet.DetailScope, "host "+h.ID+" "+what).
		With(fleet.DetailLimit, fmt.Sprint(limit)).
		With(fleet.DetailUsage, fmt.Sprint(now)).
		With(fleet.DetailRemedy, "destroy an environment, ask for less, or register a host with more "+what)
}

// checkDevices counts a host's total again from its environments, refuses a
// device held twice, and stores the exact total.
func checkDevices(t *Tx, was fleet.HostCapacity, h *fleet.Host) error {
	total := fleet.HostCapacity{}
	holder := map[string]string{}
	for vm := range t.VMs().ByHost(h.ID) {
		d := fleet.Demand(vm.Spec, h.Facts)
		for _, uuid := range slices.Concat(d.GPUDeviceUUIDs, d.MIGInstanceUUIDs) {
			if other, held := holder[uuid]; held {
				return fleet.Errorf(fleet.CodeUnavailable, "host %s: device %s is held by environment %s and cannot go to %s: %w", h.ID, uuid, other, vm.ID, fleet.ErrNoCapacity).
					With(fleet.DetailScope, "host "+h.ID+" device "+uuid).
					With(fleet.DetailLimit, "1").With(fleet.DetailUsage, "2").
					With(fleet.DetailRemedy, "destroy "+other+" first or pick another device")
			}
			holder[uuid] = vm.ID
		}
		total = total.Plus(d)
	}
	exact := *h
	exact.Allocated = total
	if err := t.write(undo{rowID{TableHosts, hostKey(h)}, h, &exact, false}); err != nil {
		return err
	}
	return checkCapacity(was, &exact)
}
