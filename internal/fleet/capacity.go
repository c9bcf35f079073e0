package fleet

import (
	"maps"
	"slices"
)

// HugePageMB is the size of a huge page.
const HugePageMB = 2

// Room is what of a host may be handed out: its capacity, with the CPUs as many
// times over as its operator allows. Nothing else is overcommitted.
func Room(h *Host) HostCapacity {
	c := h.Capacity
	c.CPUs = h.Facts.HandedOut(c.CPUs)
	return c
}

// MaxCPUOvercommit is beyond what any guest could work with.
const MaxCPUOvercommit = 64

// HandedOut is how many CPUs a host hands out that has so many. A factor below 1
// or none at all is 1, whatever an agent says.
func (f *HostFacts) HandedOut(cpus int) int {
	if f.CPUOvercommit > 1 {
		return int(float64(cpus) * min(f.CPUOvercommit, MaxCPUOvercommit))
	}
	return cpus
}

// Demand is what one VM of spec takes of a host: its sizes, one VM slot, the
// memory its process needs beside the guest's (facts.OverheadMB), and the
// GPUs it is bound to. A guest on huge pages takes those in place of ordinary
// memory. Placement and the owner's accounting both use it.
func Demand(spec Spec, facts HostFacts) HostCapacity {
	d := HostCapacity{
		CPUs:      spec.CPUs,
		RamMB:     spec.RamMB + facts.OverheadMB,
		StorageGB: spec.StorageGB,
		VMCount:   1,
	}
	if spec.HugePages {
		d.HugePages = (spec.RamMB + HugePageMB - 1) / HugePageMB
		d.RamMB = facts.OverheadMB
	}
	switch {
	case spec.GPUProfile != "":
		d.MIGProfiles = map[string]int{spec.GPUProfile: max(int(spec.GPUs), 1)}
		d.MIGInstanceUUIDs = spec.MIGInstanceUUIDs
	case spec.GPUs > 0:
		d.GPUs = int(spec.GPUs)
		d.GPUDeviceUUIDs = spec.GPUUUIDs
	}
	return d
}

// Plus returns the sum of two allocations. Inventory and architecture, which
// only a total has, stay c's. Neither operand is changed.
func (c HostCapacity) Plus(d HostCapacity) HostCapacity {
	c = c.counted(d, 1)
	c.GPUDeviceUUIDs = union(c.GPUDeviceUUIDs, d.GPUDeviceUUIDs)
	c.MIGInstanceUUIDs = union(c.MIGInstanceUUIDs, d.MIGInstanceUUIDs)
	return c
}

// Minus returns c without d, the inverse of Plus. A result below zero means
// that d was never added: callers see it rather than a silent zero.
func (c HostCapacity) Minus(d HostCapacity) HostCapacity {
	c = c.counted(d, -1)
	c.GPUDeviceUUIDs = without(c.GPUDeviceUUIDs, d.GPUDeviceUUIDs)
	c.MIGInstanceUUIDs = without(c.MIGInstanceUUIDs, d.MIGInstanceUUIDs)
	return c
}

func (c HostCapacity) counted(d HostCapacity, sign int) HostCapacity {
	c.CPUs += sign * d.CPUs
	c.RamMB += sign * d.RamMB
	c.StorageGB += sign * d.StorageGB
	c.VMCount += sign * d.VMCount
	c.HugePages += sign * d.HugePages
	c.GPUs += sign * d.GPUs
	if len(d.MIGProfiles) == 0 {
		return c
	}
	c.MIGProfiles = maps.Clone(c.MIGProfiles)
	if c.MIGProfiles == nil {
		c.MIGProfiles = map[string]int{}
	}
	for profile, n := range d.MIGProfiles {
		if c.MIGProfiles[profile] += sign * n; c.MIGProfiles[profile] == 0 {
			delete(c.MIGProfiles, profile)
		}
	}
	if len(c.MIGProfiles) == 0 {
		c.MIGProfiles = nil
	}
	return c
}

// union keeps duplicates out, so that a device bound twice shows as one name
// for two counted GPUs and can be refused.
func union(a, b []string) []string {
	if len(b) == 0 {
		return a
	}
	all := append(slices.Clone(a), b...)
	slices.Sort(all)
	return slices.Compact(all)
}

func without(a, b []string) []string {
	if len(b) == 0 {
		return a
	}
	left := slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
	if len(left) == 0 {
		return nil
	}
	return left
}
