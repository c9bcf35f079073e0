package fleet

import (
	"fmt"
	"time"
)

// MaxServiceImages is how many images the services of one environment can bring
// along: each is a disk.
const MaxServiceImages = 8

// CapServiceImages and CapLimits are what a host says of itself when it attaches
// the images of services, and when it holds machines to ResourceLimits.
const (
	CapServiceImages = "services.image"
	CapLimits        = "limits"
	CapUsage         = "usage"
)

// ResourceLimits bound what a machine takes of its host beside its memory and
// the size of its disk. Zero is no limit of its own.
type ResourceLimits struct {
	// CPUWeight is the machine's share where CPUs are short: 100 is what one CPU
	// of an ordinary machine gets. Zero is 100 for each of its CPUs.
	CPUWeight int `json:"cpu_weight,omitempty"`
	// CPUMillis is how much processor time it gets, in thousandths of a CPU.
	CPUMillis int `json:"cpu_millis,omitempty"`
	// Bytes and operations of its disk a second.
	DiskReadBps  int64 `json:"disk_read_bps,omitempty"`
	DiskWriteBps int64 `json:"disk_write_bps,omitempty"`
	DiskIOPS     int64 `json:"disk_iops,omitempty"`
	// Bytes a second from the world to the machine, and back. What the control
	// plane sends and takes itself (commands, files) does not count.
	NetInBps  int64 `json:"net_in_bps,omitempty"`
	NetOutBps int64 `json:"net_out_bps,omitempty"`
}

// Bounds of ResourceLimits. Below the least values a machine would not boot, or
// a connection not come about.
const (
	MaxCPUWeight  = 10_000
	MinCPUMillis  = 50
	MaxCPUMillis  = 1_024_000
	MinDiskBps    = 64 << 10
	MinDiskIOPS   = 20
	MinNetBps     = 4 << 10
	MaxLimitValue = int64(1) << 40
)

// Check refuses limits that cannot be kept, or with which nothing would run.
func (l ResourceLimits) Check() error {
	for _, f := range []struct {
		name       string
		v, low, hi int64
	}{
		{"cpu_weight", int64(l.CPUWeight), 1, MaxCPUWeight},
		{"cpu_millis", int64(l.CPUMillis), MinCPUMillis, MaxCPUMillis},
		{"disk_read_bps", l.DiskReadBps, MinDiskBps, MaxLimitValue},
		{"disk_write_bps", l.DiskWriteBps, MinDiskBps, MaxLimitValue},
		{"disk_iops", l.DiskIOPS, MinDiskIOPS, MaxLimitValue},
		{"net_in_bps", l.NetInBps, MinNetBps, MaxLimitValue},
		{"net_out_bps", l.NetOutBps, MinNetBps, MaxLimitValue},
	} {
		if f.v != 0 && (f.v < f.low || f.v > f.hi) {
			return Invalid("spec.limits."+f.name, fmt.Sprintf("%d to %d, or 0 for none", f.low, f.hi), "choose a value within it, or leave it out", "is %d", f.v)
		}
	}
	return nil
}

// Usage is what a machine has taken of its host since it was made, and holds
// now. Counters begin anew when its process does.
type Usage struct {
	UID            string
	VMID           string
	At             time.Time
	CPUSeconds     float64
	MemoryBytes    int64 // held now
	DiskBytes      int64 // of its own disk, held now
	DiskReadBytes  int64
	DiskWriteBytes int64
	NetInBytes     int64
	NetOutBytes    int64
	Reboots        []Reboot // the last ones, oldest first
}

// Reboot is one reboot of a guest: of its own will, or because its kernel
// panicked.
type Reboot struct {
	At    time.Time `json:"at"`
	Cause string    `json:"cause"` // reboot or panic
}
