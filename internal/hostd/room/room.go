// Package room is the host's own check of what it has left: it refuses what the
// control plane's records let through and the machine has no place for.
package room

import (
	"fmt"
	"strconv"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// Sound refuses sizes that no VM has.
func Sound(cpus, ramMB, storageGB int) error {
	for _, f := range [...]struct {
		name       string
		value, min int
	}{{"cpus", cpus, 1}, {"ram_mb", ramMB, 1}, {"storage_gb", storageGB, 0}} {
		if f.value < f.min || f.value > 1<<30 {
			return fleet.Errorf(fleet.CodeInvalidArgument, "%s is %d", f.name, f.value).
				With(fleet.DetailLimit, fmt.Sprintf("%d or more", f.min))
		}
	}
	return nil
}

// Of is what a VM takes of its host beside its process's own memory. Sizes that
// make no sense, of a record that cannot be trusted, count as nothing.
func Of(vm driver.VM) fleet.HostCapacity {
	return fleet.Demand(fleet.Spec{
		CPUs: max(vm.CPUs, 0), RamMB: max(vm.RamMB, 0), StorageGB: max(vm.StorageGB, 0), HugePages: vm.HugePages,
	}, fleet.HostFacts{})
}

// Resting is what a VM gives back while it is paused.
func Resting(vm driver.VM) fleet.HostCapacity {
	all := Of(vm)
	return fleet.HostCapacity{CPUs: all.CPUs, RamMB: all.RamMB, HugePages: all.HugePages}
}

// Check refuses a VM for which used leaves no room within total. CPUs are
// counted only if the operator set a number, and then as many times over as it
// allows; memory is never handed out twice, and each VM's process takes
// overheadMB besides. The error is unavailable around fleet.ErrNoCapacity.
func Check(total, used fleet.HostCapacity, vm driver.VM, l Limits) error {
	ask := Of(vm)
	cpus := fleet.Room(&fleet.Host{Capacity: total, Facts: fleet.HostFacts{CPUOvercommit: l.CPUOvercommit}}).CPUs
	for _, c := range [...]struct {
		name               string
		limit, used, asked int
		gated              bool
	}{
		{"vm_count", total.VMCount, used.VMCount, 1, true},
		{"ram_mb", total.RamMB, used.RamMB + used.VMCount*l.OverheadMB, ask.RamMB + l.OverheadMB, total.RamMB > 0},
		{"storage_gb", total.StorageGB, used.StorageGB, ask.StorageGB, total.StorageGB > 0},
		{"cpus", cpus, used.CPUs, ask.CPUs, l.CountCPUs},
		{"huge_pages", total.HugePages, used.HugePages, ask.HugePages, vm.HugePages},
	} {
		if c.gated && c.used+c.asked > c.limit {
			return fleet.Errorf(fleet.CodeUnavailable, "%w: %s of this host is used up", fleet.ErrNoCapacity, c.name).
				With(fleet.DetailScope, c.name).
				With(fleet.DetailLimit, strconv.Itoa(c.limit)).
				With(fleet.DetailUsage, fmt.Sprintf("%d used, %d asked for", c.used, c.asked)).
				With(fleet.DetailRemedy, "destroy environments, ask for less, or raise the host's capacity")
		}
	}
	return nil
}

// Limits is what a host counts by.
type Limits struct {
	OverheadMB    int // of each VM's process, beside its guest
	CountCPUs     bool
	CPUOvercommit float64
}
