package qemu

import (
	"errors"
	"os"
	"path/filepath"

	"context"
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/capture/live"
	"github.com/fusevm/fuse/internal/hostd/capture/manifest"
	"github.com/fusevm/fuse/internal/hostd/capture/uffd"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// pageSize of guest memory that is not on huge pages, at the host.
const pageSize = 4096

// machineFacts are those of a VM that would be started now.
func (d *Driver) machineFacts(ctx context.Context, vm driver.VM) (fleet.MachineFacts, error) {
	p, err := d.prober.Accelerator(ctx)
	if err != nil {
		return fleet.MachineFacts{}, err
	}
	k, err := d.cfg.Images.Kernel(ctx, nil)
	if err != nil {
		return fleet.MachineFacts{}, err
	}
	m := fleet.MachineFacts{
		Arch: d.machine.Arch, Driver: "qemu", DriverVersion: p.Version, Machine: d.machine.Options, Accelerator: p.Accel,
		CPUModel: d.machine.CPUModel(p.Accel, vmm.HostCPU()), PageSize: pageSize, Kernel: k.Digest, Fused: k.InitrdDigest,
		CPUs: vm.CPUs, RamMB: vm.RamMB,
	}
	if vm.HugePages {
		m.PageSize = fleet.HugePageMB << 20
	}
	return m, nil
}

// recovered puts right what a capture left that broke off with the process that
// made it: the machine runs, and it is known which overlay it writes.
func recovered(ctx context.Context, i *instance, rec processRecord) error {
	stood, err := live.Recover(ctx, i.qmp, freeing(i))
	if err != nil {
		return fmt.Errorf("let the machine run on: %w", err)
	}
	if stood || rec.Disk.Pending != 0 {
		release(ctx, i)
	}
	if rec.Disk.Pending != 0 {
		if rec, err = settledDisk(ctx, i, rec); err != nil {
			return err
		}
	}
	return tidy(i.vm, rec)
}

// settledDisk asks QEMU which overlay takes the writes.
func settledDisk(ctx context.Context, i *instance, rec processRecord) (processRecord, error) {
	top, err := live.Top(ctx, i.qmp, rec.Disk.Active, rec.Disk.Pending)
	if err != nil {
		return rec, err
	}
	if top == rec.Disk.Active {
		live.DropOverlay(ctx, i.qmp, rec.Disk.Pending)
	}
	rec.Disk = rec.Disk.Settled(top)
	return rec, record.Write(i.vm.Dir, fileProcess, rec)
}

// tidy removes files of a change that never counted.
func tidy(vm driver.VM, rec processRecord) error {
	err := errors.Join(rec.Disk.Prune(vm.Dir), removeSockets(vm.Dir, rec.socket()))
	if rec.Paused { // the overlay that it will have is not there yet
		return errors.Join(err, remove(filepath.Join(vm.Dir, chain.File(rec.Disk.Active))))
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(vm.Dir, dirPaused)))
}

// stillPaused ends what a broken resume left of a paused VM, and says that it
// is paused.
func (c *captures) stillPaused(ctx context.Context, vm driver.VM, rec processRecord) error {
	d := c.d
	m, err := manifest.Read(pausedArtifact(vm))
	if err != nil {
		return err // what runs may be all there is
	}
	if err := d.reaper.EndOthers(ctx, vm.UID, 0); err != nil {
		return err
	}
	if err := errors.Join(d.cgroups.Group(vm.UID).Remove(ctx), tidy(vm, rec)); err != nil {
		return err
	}
	return &driver.PausedError{Info: m.SnapshotInfo}
}

// pausedArtifact is the capture of a VM that is set aside.
func pausedArtifact(vm driver.VM) driver.Artifact {
	return driver.Artifact{ID: vm.UID, Dir: filepath.Join(vm.Dir, dirPaused)}
}

// freeing ends the protection that a failed capture may have left behind.
func freeing(i *instance) func() error {
	return func() error { return uffd.Free(i.proc.PID, i.proc.File) }
}

// release lets a guest go on that may have been made to stand still. One that
// does not answer goes on by itself, a little later.
func release(ctx context.Context, i *instance) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	if _, err := i.guest.Release(ctx); err != nil {
		i.d.log.Warn("guest of a capture that broke off not told to go on", "vm_id", i.vm.ID, "uid", i.vm.UID, "error", err)
	}
}
