// Package capacity says what a host may hold: pure checks of totals that the
// state's owner makes at the end of a change.
package capacity

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
)

// Restated is what a host held at the beginning of the Update, by what its VMs'
// processes need now: that a probe found them larger refuses nothing, it only
// leaves less for the next.
func Restated(before, after *fleet.Host) fleet.HostCapacity {
	if before == nil {
		return fleet.HostCapacity{}
	}
	was := before.Allocated
	was.RamMB += was.VMCount * (after.Facts.OverheadMB - before.Facts.OverheadMB)
	return was
}

// HasDevices reports whether somebody holds a GPU of the host. The counts tell,
// not the names: a name that two held for a moment may be gone from the total.
func HasDevices(c fleet.HostCapacity) bool {
	return c.GPUs != 0 || len(c.MIGProfiles) > 0 || len(c.GPUDeviceUUIDs) > 0 || len(c.MIGInstanceUUIDs) > 0
}

// Check refuses a total that rose above the host's capacity. One that
// did not rise may be above it: a host can be registered again as smaller.
func Check(was fleet.HostCapacity, h *fleet.Host) error {
	room := fleet.Room(h)
	for _, d := range []struct {
		name             string
		was, now, limit_ int
	}{
		{"vm_count", was.VMCount, h.Allocated.VMCount, room.VMCount},
		{"cpus", was.CPUs, h.Allocated.CPUs, room.CPUs},
		{"ram_mb", was.RamMB, h.Allocated.RamMB, room.RamMB},
		{"storage_gb", was.StorageGB, h.Allocated.StorageGB, room.StorageGB},
		{"huge_pages", was.HugePages, h.Allocated.HugePages, room.HugePages},
		{"gpus", was.GPUs, h.Allocated.GPUs, room.GPUs},
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

// Count adds up what environments hold of a host, and refuses a device that
// two of them hold.
func Count(vms iter.Seq[*fleet.VM], h *fleet.Host) (total fleet.HostCapacity, err error) {
	holder := map[string]string{}
	for vm := range vms {
		d := vm.Demand(h.Facts)
		for _, uuid := range slices.Concat(d.GPUDeviceUUIDs, d.MIGInstanceUUIDs) {
			if other, held := holder[uuid]; held {
				return total, fleet.Errorf(fleet.CodeUnavailable, "host %s: device %s is held by environment %s and cannot go to %s: %w", h.ID, uuid, other, vm.ID, fleet.ErrNoCapacity).
					With(fleet.DetailScope, "host "+h.ID+" device "+uuid).
					With(fleet.DetailLimit, "1").With(fleet.DetailUsage, "2").
					With(fleet.DetailRemedy, "destroy "+other+" first or pick another device")
			}
			holder[uuid] = vm.ID
		}
		total = total.Plus(d)
	}
	return total, nil
}
