package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byFit wants room for the whole VM, with what its process needs beside the
// guest. Nothing is overcommitted.
func byFit(in *Input, h *fleet.Host) *Refusal {
	need := fleet.Demand(in.Spec, h.Facts)
	free := headroom(h.Capacity, h.Allocated)
	if need.CPUs <= free.CPUs && need.RamMB <= free.RamMB && need.StorageGB <= free.StorageGB &&
		need.VMCount <= free.VMCount && !wantsGPU(in.Spec) {
		return nil
	}
	var short []Shortage
	for _, s := range []Shortage{
		{ResourceCPUs, need.CPUs, free.CPUs, h.Capacity.CPUs, 0},
		{ResourceRAM, need.RamMB, free.RamMB, h.Capacity.RamMB, need.RamMB - in.Spec.RamMB},
		{ResourceStorage, need.StorageGB, free.StorageGB, h.Capacity.StorageGB, 0},
		{ResourceVMs, need.VMCount, free.VMCount, h.Capacity.VMCount, 0},
	} {
		if s.Need > s.Free {
			short = append(short, s)
		}
	}
	short = append(short, shortOfGPUs(in.Spec, h)...)
	if len(short) == 0 {
		return nil
	}
	return &Refusal{Short: short}
}

// headroom is what is left of the plain sizes; it can be negative on a host
// whose declared capacity was lowered below what already runs there.
func headroom(total, used fleet.HostCapacity) fleet.HostCapacity {
	return fleet.HostCapacity{
		CPUs:      total.CPUs - used.CPUs,
		RamMB:     total.RamMB - used.RamMB,
		StorageGB: total.StorageGB - used.StorageGB,
		VMCount:   total.VMCount - used.VMCount,
	}
}
