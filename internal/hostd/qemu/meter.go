package qemu

import (
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/bounds"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/kept"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/qmp"
	"github.com/fusevm/fuse/internal/hostd/vmm"
)

var (
	_ driver.Meter   = (*instance)(nil)
	_ driver.Limiter = (*instance)(nil)
)

// bounds is what holds a machine to its limits and measures it.
func (d *Driver) bounds(vm driver.VM, pid int, c *qmp.Client) bounds.Machine {
	m := bounds.Machine{VM: vm, PID: pid, QMP: c, Beside: vmm.DeviceCPUShare, Reboots: kept.Reboots}
	if d.cgroups.Works() {
		m.Group = d.cgroups.Group(vm.UID)
	}
	if d.slots != nil {
		m.Net = network.Queues{Manager: d.slots.Manager}
	}
	return m
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
