package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byFit wants room for the whole VM, with what its process needs beside the
// guest. Only CPUs are overcommitted, on hosts whose operator allows it.
func byFit(in *Input, h *fleet.Host, why *Refusal) bool {
	need, free := needs(&in.Spec, h), headroom(h)
	fits := need.cpus <= free.cpus && need.ramMB <= free.ramMB && need.storageGB <= free.storageGB &&
		need.vms <= free.vms && need.hugePages <= free.hugePages
	gpu := wantsGPU(&in.Spec)
	if fits && !gpu {
		return true
	}
	if why == nil && !fits {
		return false
	}
	var short []Shortage
	if !fits {
		short = shortages(in, h, need, free)
	}
	if gpu {
		short = append(short, shortOfGPUs(&in.Spec, h)...)
	}
	if why != nil {
		why.Short = short
	}
	return len(short) == 0
}

func shortages(in *Input, h *fleet.Host, need, free sizes) []Shortage {
	room := roomOf(h)
	short := make([]Shortage, 0, 1)
	for _, s := range [...]Shortage{
		{ResourceCPUs, need.cpus, free.cpus, room.cpus, 0},
		{ResourceRAM, need.ramMB, free.ramMB, room.ramMB, h.Facts.OverheadMB},
		{ResourceStorage, need.storageGB, free.storageGB, room.storageGB, 0},
		{ResourceHugePages, need.hugePages, free.hugePages, room.hugePages, 0},
		{ResourceVMs, need.vms, free.vms, room.vms, 0},
	} {
		if s.Need > s.Free {
			short = append(short, s)
		}
	}
	return short
}

// sizes are the plain parts of a fleet.HostCapacity, small enough to be copied
// for each of thousands of hosts.
type sizes struct{ cpus, ramMB, storageGB, vms, hugePages int }

func sizesOf(c *fleet.HostCapacity) sizes {
	return sizes{c.CPUs, c.RamMB, c.StorageGB, c.VMCount, c.HugePages}
}

// needs is fleet.Demand without the devices; a test holds the two together.
func needs(spec *fleet.Spec, h *fleet.Host) sizes {
	d := sizes{spec.CPUs, spec.RamMB + h.Facts.OverheadMB, spec.StorageGB, 1, 0}
	if spec.HugePages {
		d.ramMB, d.hugePages = h.Facts.OverheadMB, (spec.RamMB+fleet.HugePageMB-1)/fleet.HugePageMB
	}
	return d
}

// roomOf is fleet.Room without the devices.
func roomOf(h *fleet.Host) sizes {
	room := sizesOf(&h.Capacity)
	room.cpus = h.Facts.HandedOut(room.cpus)
	return room
}

// headroom is what is left; it can be negative on a host whose declared
// capacity was lowered below what already runs there.
func headroom(h *fleet.Host) sizes {
	room, used := roomOf(h), sizesOf(&h.Allocated)
	return sizes{
		room.cpus - used.cpus, room.ramMB - used.ramMB, room.storageGB - used.storageGB,
		room.vms - used.vms, room.hugePages - used.hugePages,
	}
}
