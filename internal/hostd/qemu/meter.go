package qemu

import (
	"context"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/bounds"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/kept"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/vmm"
)

var (
	_ driver.Meter   = (*instance)(nil)
	_ driver.Limiter = (*instance)(nil)
)

func (i *instance) machine() bounds.Machine {
	m := bounds.Machine{VM: i.vm, PID: i.proc.PID, QMP: i.qmp, Beside: vmm.DeviceCPUShare}
	if i.d.cgroups.Works() {
		m.Group = i.d.cgroups.Group(i.vm.UID)
	}
	if i.d.slots != nil {
		m.Net = network.Queues{Manager: i.d.slots.Manager}
	}
	return m
}

// SetLimits implements driver.Limiter.
func (i *instance) SetLimits(ctx context.Context, l fleet.ResourceLimits) error {
	return i.machine().Change(ctx, l)
}

// Usage implements driver.Meter.
func (i *instance) Usage(ctx context.Context) (fleet.Usage, error) {
	return kept.Metered(ctx, i.vm.Dir, i.machine().Usage)
}

// capabilities are what the driver can do beyond making machines.
func (d *Driver) capabilities() []string {
	out := []string{fleet.CapServiceImages, fleet.CapUsage, fleet.CapSnapshotDisk, fleet.CapSnapshotLive, fleet.CapFork, fleet.CapPause}
	if d.slots != nil {
		out = append(out, fleet.CapGolden)
	}
	if d.slots != nil && d.cgroups.Works() {
		out = append(out, fleet.CapLimits)
	}
	return out
}
