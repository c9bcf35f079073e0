package qemu

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/hostd/capture/engine"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
)

// Sweep compares processes, cgroups and network objects with the list of live
// VMs. All of them carry this registry's id in their names, and a life that
// is not on the list has ended, so what remains of it is removed. What carries
// the name of a live VM but is not what was recorded is reported.
func (d *Driver) Sweep(ctx context.Context, live []driver.VM) (driver.SweepReport, error) {
	s := sweep{d: d, lives: map[string]driver.VM{}, slots: map[int]bool{}}
	for _, vm := range live {
		s.lives[vm.UID] = vm
		s.slots[vm.Slot] = true
		s.unknown = s.unknown || vm.Slot == 0
	}
	// Processes first: they hold the rest.
	for _, step := range []func(context.Context) error{s.processes, s.cgroups, s.network} {
		if err := step(ctx); err != nil {
			return s.report, fmt.Errorf("sweep: %w", err)
		}
	}
	s.report.At = time.Now().UTC()
	return s.report, nil
}

type sweep struct {
	d       *Driver
	lives   map[string]driver.VM
	slots   map[int]bool
	unknown bool // a live VM's slot is not known
	report  driver.SweepReport
}

func (s *sweep) removed(kind, name, why string) {
	s.report.Removed = append(s.report.Removed, driver.Object{Kind: kind, Name: name, Why: why})
}

func (s *sweep) processes(ctx context.Context) error {
	found, err := proc.Named(s.d.reaper.Prefix)
	if err != nil {
		return err
	}
	for pid, uid := range found {
		if engine.NotVM(uid) {
			continue
		}
		name := strconv.Itoa(pid)
		vm, live := s.lives[uid]
		if !live {
			if err := s.d.reaper.EndAll(ctx, []int{pid}); err != nil {
				return err
			}
			s.removed("process", name, "life "+uid+" has ended")
			continue
		}
		rec, err := record.Read[processRecord](vm.Dir, fileProcess)
		if err == nil && rec.PID != pid {
			s.report.Reported = append(s.report.Reported, driver.Object{
				Kind: "process", Name: name, Why: fmt.Sprintf("bears the name of life %s, whose process is %d", uid, rec.PID),
			})
		}
	}
	return nil
}

func (s *sweep) cgroups(ctx context.Context) error {
	names, err := s.d.cgroups.List()
	if err != nil {
		return err
	}
	for _, uid := range names {
		if _, live := s.lives[uid]; live || engine.NotVM(uid) {
			continue
		}
		if err := s.d.reaper.EndGroup(ctx, uid); err != nil {
			return err
		}
		if err := s.d.cgroups.Group(uid).Remove(ctx); err != nil {
			return err
		}
		s.removed("cgroup", uid, "life "+uid+" has ended")
	}
	return nil
}

// network removes slots that no live VM has, and puts the host's rules right.
func (s *sweep) network(ctx context.Context) error {
	if s.d.slots == nil {
		return nil
	}
	if err := s.d.slots.Sync(ctx); err != nil {
		return err
	}
	objects, err := s.d.slots.List()
	if err != nil {
		return err
	}
	gone := map[int]bool{}
	for _, o := range objects {
		if o.Slot < 0 || s.slots[o.Slot] {
			continue
		}
		if s.unknown {
			s.report.Reported = append(s.report.Reported, driver.Object{
				Kind: o.Kind, Name: o.Name, Why: fmt.Sprintf("slot %d may be a VM's whose slot is not known", o.Slot),
			})
			continue
		}
		if !gone[o.Slot] {
			if err := s.d.slots.Remove(ctx, o.Slot); err != nil {
				return err
			}
			gone[o.Slot] = true
		}
		s.removed(o.Kind, o.Name, fmt.Sprintf("no VM has slot %d", o.Slot))
	}
	return nil
}
