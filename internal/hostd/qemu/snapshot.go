package qemu

import (
	"context"
	"fmt"

	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/capture/engine"
	"github.com/fusevm/fuse/internal/hostd/capture/uffd"
	"github.com/fusevm/fuse/internal/hostd/disk"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/qmp"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
	"github.com/fusevm/fuse/internal/keylock"
)

var (
	_ driver.Snapshotter  = (*Driver)(nil)
	_ driver.MemoryHolder = (*Driver)(nil)
)

// captures is the part of a Driver that captures machines.
type captures struct {
	*engine.Engine
	d    *Driver
	lock keylock.Lock // by uid, while a VM is captured, replaced or set aside
}

func newCaptures(d *Driver) *captures {
	if err := uffd.New().Settle(); err != nil {
		d.log.Warn("vm.unprivileged_userfaultfd was lent and is not put back", "error", err)
	}
	return &captures{d: d, Engine: &engine.Engine{
		Host: engine.Host{
			Dir: d.cfg.Dir, Machine: d.machine, Images: d.cfg.Images, Reaper: d.reaper, Slots: d.slots != nil,
			UID: d.user, Facts: d.machineFacts, Program: d.prober.Program, Room: func() error { return disk.CheckRoom(d.cfg.Dir, d.cfg.MinFree) },
		},
		Userfault: uffd.New(),
	}}
}

// source is a running VM as the engine sees it.
func (c *captures) source(ctx context.Context, vm driver.VM) (engine.Source, *instance, error) {
	inst := c.d.holder(vm.UID)
	if inst == nil {
		return engine.Source{}, nil, engine.NotRunning()
	}
	rec, err := record.Read[processRecord](vm.Dir, fileProcess)
	if err != nil {
		return engine.Source{}, nil, err
	}
	if rec.Disk.Pending != 0 { // an earlier capture could not find out
		if rec, err = settledDisk(ctx, inst, rec); err != nil {
			return engine.Source{}, nil, err
		}
	}
	boot, err := record.Read[guestwire.BootConfig](vm.Dir, fileBoot)
	if err != nil {
		return engine.Source{}, nil, fmt.Errorf("what the guest was booted with is not recorded: %w", err)
	}
	src := engine.Source{
		VM: vm, PID: inst.proc.PID, QMP: inst.qmp, Guest: inst.guest, Alive: inst.alive, ImageDigest: inst.digest, Image: boot.Image, Services: boot.Services, Machine: rec.Machine, Disk: rec.Disk,
		Record: func(disk chain.Chain) error {
			rec := rec
			rec.Disk = disk
			return record.Write(vm.Dir, fileProcess, rec)
		},
		Free: freeing(inst),
		Watch: func(hear func(qmp.Event)) {
			if hear == nil {
				inst.pulse.Store(nil)
				return
			}
			inst.pulse.Store(&hear)
		},
	}
	return src, inst, nil
}

// Snapshot implements driver.Snapshotter.
func (c *captures) Snapshot(ctx context.Context, vm driver.VM, req driver.SnapshotRequest) (driver.SnapshotInfo, error) {
	unlock, err := c.lock.Take(ctx, vm.UID)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	defer unlock()
	src, _, err := c.source(ctx, vm)
	if err != nil {
		return driver.SnapshotInfo{}, err
	}
	return c.Engine.Snapshot(ctx, src, req)
}

// user is the user id of a slot's process, or -1 where this program cannot
// change it.
func (d *Driver) user(slot int) int {
	if !d.root {
		return -1
	}
	return d.cfg.UIDBase + slot
}
