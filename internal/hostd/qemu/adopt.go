package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/kept"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/thaw"
	"github.com/fusevm/fuse/internal/hostd/vmm/nic"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// Adopt takes hold of a VM that an earlier process started: its pid and start
// time are those recorded, in this boot of the host, and QEMU answers to its
// name. A GoneError means that it certainly no longer runs.
func (d *Driver) Adopt(ctx context.Context, vm driver.VM) (driver.Instance, error) {
	exit, err := record.Read[fleet.ExitRecord](vm.Dir, fileExit)
	if err == nil && exit.UID == vm.UID {
		return nil, &driver.GoneError{Exit: exit}
	}
	rec, err := record.Read[processRecord](vm.Dir, fileProcess)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, d.neverRecorded(vm)
	}
	if err != nil {
		return nil, err
	}
	if rec.UID != vm.UID {
		return nil, fmt.Errorf("%s in %s is of the life %s", fileProcess, vm.Dir, rec.UID)
	}
	if rec.Paused {
		return nil, d.stillPaused(ctx, vm, rec)
	}
	if rec.BootID != d.bootID {
		return nil, d.gone(vm, causeRebooted, "the host has been rebooted since the VM started")
	}
	p, err := proc.Open(rec.Ident, d.bootID)
	if errors.Is(err, proc.ErrGone) {
		return nil, d.gone(vm, causeExited, "it ended while no host agent was watching")
	}
	if err != nil {
		return nil, err
	}
	if len(sockets(vm.Dir, rec.socket())) > 0 { // another process was begun, and never counted
		if err := errors.Join(d.reaper.EndOthers(ctx, vm.UID, rec.PID), nic.Mend(p, rec.Tap)); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	inst, err := d.takeHold(ctx, vm, p, rec)
	if err != nil {
		// It may have ended while it was asked.
		if _, serr := proc.StartTime(rec.PID); errors.Is(serr, proc.ErrGone) {
			err = d.gone(vm, causeExited, "it ended while it was being adopted")
		}
		return nil, errors.Join(err, p.Close())
	}
	return d.checkState(ctx, inst)
}

func (d *Driver) takeHold(ctx context.Context, vm driver.VM, p *proc.Process, rec processRecord) (*instance, error) {
	guest, err := record.Read[guestRecord](vm.Dir, fileGuest)
	if err != nil {
		return nil, fmt.Errorf("how to reach the guest is not recorded: %w", err)
	}
	guest.Port = cmp.Or(rec.Port, guest.Port)
	dial, err := d.findDialer(vm, guest)
	if err != nil {
		return nil, err
	}
	inst, err := d.attach(ctx, vm, p, rec.socket(), guest, dial)
	if err != nil {
		return nil, err
	}
	if err := recovered(ctx, inst, rec); err != nil {
		return nil, errors.Join(err, inst.Close())
	}
	inst.settleRotation(ctx, guest)
	inst.wg.Go(func() {
		if err := thaw.Settle(inst.alive, vm.Dir, inst.guest); err != nil {
			d.log.Error("adopted guest stands still", "vm_id", vm.ID, "uid", vm.UID, "error", err)
		}
	})
	d.slots.Republish(ctx, vm)
	return inst, nil
}

// checkState tells a running guest from one that ended while nobody listened
// and whose process waits to say so.
func (d *Driver) checkState(ctx context.Context, inst *instance) (driver.Instance, error) {
	var st struct{ Status string }
	if err := inst.qmp.Execute(ctx, "query-status", nil, &st); err != nil {
		return nil, errors.Join(err, inst.Close())
	}
	switch st.Status {
	case "shutdown":
		inst.setCause("")
	default:
		return inst, nil
	}
	select {
	case <-inst.Done():
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), inst.Close())
	}
	exit := inst.Exit()
	if err := inst.Close(); err != nil {
		d.log.Warn("ended vm not let go", "vm_id", inst.vm.ID, "uid", inst.vm.UID, "error", err)
	}
	return nil, &driver.GoneError{Exit: exit}
}

// neverRecorded is a VM whose start did not come to the process's record. It
// is gone unless a process with its name proves otherwise.
func (d *Driver) neverRecorded(vm driver.VM) error {
	pids, err := d.reaper.Processes(vm.UID)
	if err != nil {
		return err
	}
	if len(pids) > 0 {
		return fmt.Errorf("a process of %s runs (%v), but which one is not recorded: its start was interrupted", vm.UID, pids)
	}
	return d.gone(vm, causeExited, "its start was interrupted")
}

// gone makes the end durable and says so.
func (d *Driver) gone(vm driver.VM, cause, how string) error {
	exit, err := recordExit(vm.Dir, kept.Exit(vm, cause, how))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("exit not recorded", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
	return &driver.GoneError{Exit: exit}
}
