package qemu

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/proc"
)

// reaper ends processes of this registry's VMs.
type reaper struct {
	cgroups *cgroup.Manager
	prefix  string // of the names of its processes, before the uid
	bootID  string
	log     *slog.Logger
}

// endLife kills every process of a life: the one recorded, and any that
// an interrupted start left without a record.
func (r reaper) endLife(ctx context.Context, vm driver.VM) error {
	rec, err := readRecord[processRecord](vm.Dir, fileProcess)
	switch {
	case err == nil && rec.UID == vm.UID && !rec.Paused:
		if err := r.endProcess(ctx, rec.Ident); err != nil {
			return err
		}
		if r.cgroups.Works() {
			return r.endGroup(ctx, vm.UID)
		}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		r.log.Warn("record of the process unreadable, looking for it", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
	pids, err := r.processes(vm.UID)
	if err != nil {
		return err
	}
	return r.endAll(ctx, pids)
}

// processes finds those of a life by name and by cgroup.
func (r reaper) processes(uid string) ([]int, error) {
	pids, err := r.cgroups.Group(uid).Procs()
	if err != nil {
		return nil, err
	}
	byName, err := proc.Named(r.prefix + uid)
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

// endOthers kills every process of a life but one: of a change that broke off
// there may be another, which never counted.
func (r reaper) endOthers(ctx context.Context, vm driver.VM, keep int) error {
	pids, err := r.processes(vm.UID)
	if err != nil {
		return err
	}
	return r.endAll(ctx, slices.DeleteFunc(pids, func(pid int) bool { return pid == keep }))
}

func (r reaper) endGroup(ctx context.Context, uid string) error {
	pids, err := r.cgroups.Group(uid).Procs()
	if err != nil {
		return err
	}
	return r.endAll(ctx, pids)
}

func (r reaper) endAll(ctx context.Context, pids []int) error {
	for _, pid := range pids {
		start, err := proc.StartTime(pid)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		if err := r.endProcess(ctx, proc.Ident{PID: pid, Start: start, BootID: r.bootID}); err != nil {
			return err
		}
	}
	return nil
}

func (r reaper) endProcess(ctx context.Context, id proc.Ident) error {
	p, err := proc.Open(id, r.bootID)
	if errors.Is(err, proc.ErrGone) {
		proc.Reap(id.PID)
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(p.End(ctx), p.Close())
}
