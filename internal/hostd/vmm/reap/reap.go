// Package reap ends processes of a registry's VMs, by their records, names and
// cgroups.
package reap

import (
	"context"
	"errors"
	"slices"

	"github.com/fusevm/fuse/internal/hostd/cgroup"
	"github.com/fusevm/fuse/internal/hostd/proc"
)

// Reaper ends processes of this registry's VMs.
type Reaper struct {
	Cgroups *cgroup.Manager
	Prefix  string // of the names of its processes, before the uid
	BootID  string
}

// Processes finds those of a life by name and by cgroup.
func (r Reaper) Processes(uid string) ([]int, error) {
	pids, err := r.Cgroups.Group(uid).Procs()
	if err != nil {
		return nil, err
	}
	byName, err := proc.Named(r.Prefix + uid)
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

// EndOthers kills every process of a life but one: of a change that broke off
// there may be another, which never counted.
func (r Reaper) EndOthers(ctx context.Context, name string, keep int) error {
	pids, err := r.Processes(name)
	if err != nil {
		return err
	}
	return r.EndAll(ctx, slices.DeleteFunc(pids, func(pid int) bool { return pid == keep }))
}

// EndGroup ends all processes of a VM's cgroup.
func (r Reaper) EndGroup(ctx context.Context, uid string) error {
	pids, err := r.Cgroups.Group(uid).Procs()
	if err != nil {
		return err
	}
	return r.EndAll(ctx, pids)
}

// EndAll ends processes; one that is gone is done with.
func (r Reaper) EndAll(ctx context.Context, pids []int) error {
	for _, pid := range pids {
		start, err := proc.StartTime(pid)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		if err := r.EndProcess(ctx, proc.Ident{PID: pid, Start: start, BootID: r.BootID}); err != nil {
			return err
		}
	}
	return nil
}

// EndProcess ends exactly this process, not another that got its number.
func (r Reaper) EndProcess(ctx context.Context, id proc.Ident) error {
	p, err := proc.Open(id, r.BootID)
	if errors.Is(err, proc.ErrGone) {
		proc.Reap(id.PID)
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(p.End(ctx), p.Close())
}

// EndNamed ends everything that bears a name, and removes its cgroup.
func (r Reaper) EndNamed(ctx context.Context, name string) error {
	pids, err := r.Processes(name)
	if err != nil {
		return err
	}
	return errors.Join(r.EndAll(ctx, pids), r.Cgroups.Group(name).Remove(ctx))
}
