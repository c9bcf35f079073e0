package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// Remove ends a VM and clears everything that Start made, whether or not it
// still runs and however far its start came. It is idempotent. The order
// matters: a process holds its tap, and a cgroup its process.
func (d *Driver) Remove(ctx context.Context, vm driver.VM) error {
	inst := d.holder(vm.UID)
	if inst != nil {
		inst.remove()
	}
	if err := d.endLife(ctx, vm); err != nil {
		return fmt.Errorf("end the VM's process: %w", err)
	}
	if inst != nil {
		if err := inst.settled(ctx); err != nil {
			return err
		}
	}
	if err := failpoint.Hit("qemu.remove.process"); err != nil {
		return err
	}
	if err := d.cgroups.Group(vm.UID).Remove(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(vm.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil // nothing else was made; the slot may be another VM's by now
	}
	if d.slots != nil {
		if err := d.slots.RemoveVM(ctx, vm); err != nil {
			return err
		}
	}
	if err := failpoint.Hit("qemu.remove.network"); err != nil {
		return err
	}
	return removeFiles(vm.Dir)
}

// endLife kills every process of a life: the one recorded, and any that
// an interrupted start left without a record.
func (d *Driver) endLife(ctx context.Context, vm driver.VM) error {
	r := d.reaper
	rec, err := record.Read[processRecord](vm.Dir, fileProcess)
	switch {
	case err == nil && rec.UID == vm.UID && !rec.Paused:
		if err := r.EndProcess(ctx, rec.Ident); err != nil {
			return err
		}
		if r.Cgroups.Works() {
			return r.EndGroup(ctx, vm.UID)
		}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		d.log.Warn("record of the process unreadable, looking for it", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
	pids, err := r.Processes(vm.UID)
	if err != nil {
		return err
	}
	return r.EndAll(ctx, pids)
}

// removeFiles deletes the driver's files, the process's record last: while
// anything is left, it tells whose it is.
func removeFiles(dir string) error {
	if err := errors.Join(chain.Remove(dir), removeSockets(dir, ""), os.RemoveAll(filepath.Join(dir, dirPaused))); err != nil {
		return err
	}
	for _, name := range files {
		if name == fileProcess {
			continue
		}
		if err := remove(filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := remove(filepath.Join(dir, name+".new")); err != nil {
			return err
		}
	}
	return errors.Join(remove(filepath.Join(dir, fileProcess)), remove(filepath.Join(dir, fileProcess+".new")))
}

// removeSockets removes the control sockets but one.
func removeSockets(dir, keep string) (err error) {
	for _, name := range sockets(dir, keep) {
		err = errors.Join(err, remove(filepath.Join(dir, name)))
	}
	return err
}

// sockets are the control sockets but one. Each was made before its process.
func sockets(dir, but string) (out []string) {
	entries, _ := os.ReadDir(dir) // what cannot be read has none
	for _, e := range entries {
		if ok, _ := filepath.Match("qmp*.sock", e.Name()); ok && e.Name() != but {
			out = append(out, e.Name())
		}
	}
	return out
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
