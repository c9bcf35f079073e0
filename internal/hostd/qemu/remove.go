package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// Remove ends a VM and clears everything that Start made, whether or not it
// still runs and however far its start came. It is idempotent. The order
// matters: a process holds its tap, and a cgroup its process.
func (d *Driver) Remove(ctx context.Context, vm driver.VM) error {
	inst := d.holder(vm.UID)
	if inst != nil {
		inst.remove()
	}
	if err := d.endProcesses(ctx, vm); err != nil {
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
		if err := d.slots.Remove(ctx, vm.Slot); err != nil {
			return err
		}
	}
	if err := failpoint.Hit("qemu.remove.network"); err != nil {
		return err
	}
	return removeFiles(vm.Dir)
}

// removeFiles deletes the driver's files, the process's record last: while
// anything is left, it tells whose it is.
func removeFiles(dir string) error {
	for _, name := range files {
		if name == fileProcess {
			continue
		}
		if err := remove(filepath.Join(dir, name)); err != nil {
			return err
		}
		if err := remove(filepath.Join(dir, name+".tmp")); err != nil {
			return err
		}
	}
	return errors.Join(remove(filepath.Join(dir, fileProcess)), remove(filepath.Join(dir, fileProcess+".tmp")))
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// endProcesses kills every process of a life: the one recorded, and any that
// an interrupted start left without a record.
func (d *Driver) endProcesses(ctx context.Context, vm driver.VM) error {
	rec, err := readRecord[processRecord](vm.Dir, fileProcess)
	switch {
	case err == nil && rec.UID == vm.UID:
		if err := d.endProcess(ctx, rec.ident); err != nil {
			return err
		}
		if d.cgroups.Works() {
			return d.endGroup(ctx, vm.UID)
		}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		d.log.Warn("record of the process unreadable, looking for it", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
	pids, err := d.processes(vm.UID)
	if err != nil {
		return err
	}
	return d.endAll(ctx, pids)
}

// processes finds those of a life by name and by cgroup.
func (d *Driver) processes(uid string) ([]int, error) {
	pids, err := d.cgroups.Group(uid).Procs()
	if err != nil {
		return nil, err
	}
	byName, err := named(d.processName(uid))
	if err != nil {
		return nil, err
	}
	for pid, rest := range byName {
		if rest == "" && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (d *Driver) endGroup(ctx context.Context, uid string) error {
	pids, err := d.cgroups.Group(uid).Procs()
	if err != nil {
		return err
	}
	return d.endAll(ctx, pids)
}

func (d *Driver) endAll(ctx context.Context, pids []int) error {
	for _, pid := range pids {
		start, err := startTime(pid)
		if errors.Is(err, errNoProcess) {
			continue
		}
		if err != nil {
			return err
		}
		if err := d.endProcess(ctx, ident{PID: pid, Start: start, BootID: d.bootID}); err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) endProcess(ctx context.Context, id ident) error {
	p, err := openProcess(id, d.bootID)
	if errors.Is(err, errNoProcess) {
		reapZombie(id.PID)
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(p.end(ctx), p.close())
}
