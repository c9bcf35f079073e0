package sim

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

var (
	_ driver.Meter   = (*instance)(nil)
	_ driver.Limiter = (*instance)(nil)
)

// What a simulated machine is said to take: a little of a processor, all the
// time, and some memory.
const (
	simShare  = 0.05
	simMemory = 64 << 20
)

// Usage implements driver.Meter.
func (i *instance) Usage(context.Context) (fleet.Usage, error) {
	now := time.Now()
	return fleet.Usage{UID: i.uid, VMID: i.id, At: now.UTC(), CPUSeconds: simShare * now.Sub(i.state.Started).Seconds(), MemoryBytes: simMemory}, nil
}

// SetLimits implements driver.Limiter. There is nothing to hold to limits.
func (i *instance) SetLimits(context.Context, fleet.ResourceLimits) error { return nil }
