package qemu

import (
	"context"
	"runtime"
	"strings"

	"github.com/fusevm/fuse/internal/diskspace"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/guestmem"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/accel"
)

// Probe reports facts about the host. The first call of a boot of the host
// may take seconds, since it tries KVM.
func (d *Driver) Probe(ctx context.Context) (driver.Facts, error) {
	p, err := d.prober.Accelerator(ctx)
	if err != nil {
		return driver.Facts{}, err
	}
	_, total, err := diskspace.Free(d.cfg.Dir)
	if err != nil {
		return driver.Facts{}, err
	}
	mem, err := guestmem.Read()
	if err != nil {
		return driver.Facts{}, err
	}
	list, err := d.cfg.Images.List()
	if err != nil {
		return driver.Facts{}, err
	}
	images := image.Held(list)
	return driver.Facts{
		Driver: "qemu", DriverVersion: p.Version, Accelerator: p.Accel, Arch: d.machine.Arch,
		Kernel: vmm.HostKernel(), CPUModel: vmm.HostCPU(), CPUs: runtime.NumCPU(), RamMB: mem.RamMB, HugePages: mem.HugePages, FreeHugePages: mem.FreeHuge,
		StorageGB: int(total >> 30), OverheadMB: vmm.OverheadMB(p.Accel), Images: images, Missing: d.missing(p), Capabilities: d.capabilities(),
	}, nil
}

// missing says, for people, what this host lacks and what follows from it.
func (d *Driver) missing(p accel.Found) []string {
	var out []string
	if p.Accel != vmm.KVM {
		out = append(out, "no KVM, guests run in software emulation: "+p.Why)
	}
	if d.noSlots != nil {
		out = append(out, "user networking instead of network slots ("+d.noSlots.Error()+
			"): a guest can reach whatever this machine can, its loopback included")
	} else {
		out = append(out, d.slots.Problems()...)
	}
	if !d.root {
		out = append(out, "no root: VM processes run as this user")
	}
	if err := d.Userfault.Works(); err != nil && d.root {
		out = append(out, "live snapshots hold a machine up for as long as its memory takes to be copied: "+err.Error())
	}
	if m := d.cgroups.Missing(); len(m) > 0 {
		out = append(out, "no limits for VM processes: cgroup controllers "+strings.Join(m, ", ")+" cannot be used")
	}
	return out
}
