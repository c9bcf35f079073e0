package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// world is what a store should hold, in the plainest form: it recomputes every
// rule from scratch.
type world struct {
	vms    map[string]fleet.VM
	hosts  map[string]fleet.Host
	events int
}

func (w world) clone() world {
	return world{maps.Clone(w.vms), maps.Clone(w.hosts), w.events}
}

// op is one step of a closure: on a store, and on a world.
type op struct {
	what  string
	store func(*state.Tx) error
	world func(*world, *draft) bool // false: the step fails
}

// draft is the world's memory of one closure.
type draft struct{ ended map[string]bool }

var errStep = errors.New("the closure gives up")

// drawOps draws the steps of one closure.
func drawOps(t *rapid.T) []op {
	gens := []func(*rapid.T) op{drawPutVM, drawPutVM, drawPutVM, drawDeleteVM, drawPutHost, drawDeleteHost, drawEmit, drawGiveUp}
	var ops []op
	for range rapid.IntRange(0, 4).Draw(t, "steps") {
		ops = append(ops, rapid.SampledFrom(gens).Draw(t, "kind")(t))
	}
	return ops
}

func drawPutVM(t *rapid.T) op {
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "vm")
	vm := fleet.VM{
		ID:     id,
		UID:    id + rapid.SampledFrom([]string{"1", "1", "1", "2"}).Draw(t, "life"),
		TaskID: rapid.SampledFrom([]string{"t" + id, "t" + id, "t" + id, "shared"}).Draw(t, "task"),
		HostID: rapid.SampledFrom([]string{"", "h1", "h1", "h2"}).Draw(t, "host"),
		State: rapid.SampledFrom([]fleet.VMState{
			fleet.VMStateProvisioning, fleet.VMStateProvisioning, fleet.VMStateRunning, fleet.VMStateDraining, fleet.VMStateDestroying,
		}).Draw(t, "state"),
		Spec: fleet.Spec{CPUs: rapid.IntRange(1, 3).Draw(t, "cpus"), RamMB: 100, StorageGB: 1},
	}
	if gpu := rapid.SampledFrom([]string{"", "", "g1", "g2"}).Draw(t, "gpu"); gpu != "" {
		vm.Spec.GPUs, vm.Spec.GPUUUIDs = 1, []string{gpu}
	}
	return op{
		fmt.Sprintf("put %s uid %s task %s host %q %s cpus %d gpus %v", id, vm.UID, vm.TaskID, vm.HostID, vm.State, vm.Spec.CPUs, vm.Spec.GPUUUIDs),
		func(tx *state.Tx) error { return tx.PutVM(vm) },
		func(w *world, _ *draft) bool { w.vms[id] = vm; return true },
	}
}

func drawDeleteVM(t *rapid.T) op {
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "vm")
	return op{
		"delete " + id,
		func(tx *state.Tx) error { return tx.DeleteVM(id) },
		func(w *world, d *draft) bool {
			vm, ok := w.vms[id]
			if !ok || vm.State == fleet.VMStateRunning || vm.State == fleet.VMStateDraining {
				return false
			}
			delete(w.vms, id)
			d.ended[id] = true
			return true
		},
	}
}

func drawPutHost(t *rapid.T) op {
	h := fleet.Host{
		ID:    rapid.SampledFrom([]string{"h1", "h2"}).Draw(t, "host"),
		Facts: fleet.HostFacts{OverheadMB: rapid.IntRange(0, 2).Draw(t, "overhead")},
		Capacity: fleet.HostCapacity{
			CPUs: rapid.IntRange(2, 8).Draw(t, "cpus"), RamMB: rapid.IntRange(150, 500).Draw(t, "ram"),
			StorageGB: 4, VMCount: rapid.IntRange(1, 4).Draw(t, "vms"), GPUs: rapid.IntRange(0, 2).Draw(t, "gpus"),
		},
	}
	return op{
		fmt.Sprintf("put host %s overhead %d %+v", h.ID, h.Facts.OverheadMB, h.Capacity),
		func(tx *state.Tx) error { return tx.PutHost(h) },
		func(w *world, _ *draft) bool { w.hosts[h.ID] = h; return true },
	}
}

func drawDeleteHost(t *rapid.T) op {
	id := rapid.SampledFrom([]string{"h1", "h2"}).Draw(t, "host")
	return op{
		"delete host " + id,
		func(tx *state.Tx) error { return tx.DeleteHost(id) },
		func(w *world, _ *draft) bool {
			_, ok := w.hosts[id]
			delete(w.hosts, id)
			return ok
		},
	}
}

func drawEmit(*rapid.T) op {
	return op{
		"emit",
		func(tx *state.Tx) error { tx.Emit(fleet.Event{EntityType: "x", EntityID: "y"}); return nil },
		func(w *world, _ *draft) bool { w.events++; return true },
	}
}

func drawGiveUp(t *rapid.T) op {
	if rapid.Bool().Draw(t, "panics") {
		return op{"panic", func(*state.Tx) error { panic("in a closure") }, func(*world, *draft) bool { return false }}
	}
	return op{"give up", func(*state.Tx) error { return errStep }, func(*world, *draft) bool { return false }}
}

// apply returns the world after ops, or false if the store must refuse them.
func (w world) apply(ops []op) (world, bool) {
	next, d := w.clone(), &draft{ended: map[string]bool{}}
	for _, o := range ops {
		if !o.world(&next, d) {
			return w, false
		}
	}
	return next, next.legalAfter(w, d)
}

func (w world) legalAfter(before world, d *draft) bool {
	tasks, uids := map[string]bool{}, map[string]bool{}
	for _, vm := range w.vms {
		_, known := w.hosts[vm.HostID]
		if tasks[vm.TaskID] || uids[vm.UID] || vm.HostID != "" && !known {
			return false
		}
		tasks[vm.TaskID], uids[vm.UID] = true, true
		old, had := before.vms[vm.ID]
		if had && !d.ended[vm.ID] {
			if old.UID != vm.UID || !fleet.CanTransition(old.State, vm.State) {
				return false
			}
		} else if vm.State != fleet.VMStateProvisioning {
			return false
		}
	}
	for id, h := range w.hosts {
		if !w.fits(before, id, h) {
			return false
		}
	}
	return true
}

// fits checks one host: no device twice, and nothing above the capacity that
// is more than before. What VMs need beside their memory counts as it is now.
func (w world) fits(before world, id string, h fleet.Host) bool {
	now, devices := w.sum(id, h.Facts)
	was, _ := before.sum(id, h.Facts)
	if len(slices.Compact(slices.Sorted(slices.Values(devices)))) < len(devices) {
		return false
	}
	for _, d := range [][3]int{
		{was.CPUs, now.CPUs, h.Capacity.CPUs},
		{was.RamMB, now.RamMB, h.Capacity.RamMB},
		{was.StorageGB, now.StorageGB, h.Capacity.StorageGB},
		{was.VMCount, now.VMCount, h.Capacity.VMCount},
		{was.GPUs, now.GPUs, h.Capacity.GPUs},
	} {
		if d[1] > d[0] && d[1] > d[2] {
			return false
		}
	}
	return true
}

func (w world) sum(host string, facts fleet.HostFacts) (fleet.HostCapacity, []string) {
	total, devices := fleet.HostCapacity{}, []string(nil)
	for _, id := range slices.Sorted(maps.Keys(w.vms)) {
		if vm := w.vms[id]; vm.HostID == host {
			total = total.Plus(fleet.Demand(vm.Spec, facts))
			devices = append(devices, vm.Spec.GPUUUIDs...)
		}
	}
	return total, devices
}
