package hostd

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/admit"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/golden"
	"github.com/fusevm/fuse/internal/hostd/raise"
	"github.com/fusevm/fuse/internal/hostd/refusal"
	"github.com/fusevm/fuse/internal/hostd/room"
	"github.com/fusevm/fuse/internal/hostd/snaprpc"
	"github.com/fusevm/fuse/internal/hostd/snapstore"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// openCaptures opens what the host keeps of captures, where its driver makes
// any.
func (h *Host) openCaptures() error {
	c := h.core
	if holder, ok := c.drv.(driver.MemoryHolder); ok {
		c.memory = admit.New(admit.Config{Holder: holder, Making: func() int64 { return making(c.reg) }, Log: c.log})
	}
	c.snaps = &snaprpc.Service{Host: captures{h}, Driver: c.drv, RAM: c.cfg.SnapshotRAM, Memory: c.memory, Log: c.log}
	h.creator.raiser = &raise.Raiser{Driver: c.drv, Memory: c.memory, Count: c.metrics.Golden, Log: c.log}
	if _, ok := c.drv.(driver.Snapshotter); !ok {
		return nil
	}
	var err error
	if c.snaps.Store, err = snapstore.Open(c.cfg.Dir, c.log); err != nil {
		return err
	}
	h.creator.raiser.Store = c.snaps.Store
	drv, ok := c.drv.(golden.Driver)
	if !ok || c.cfg.GoldenDisk <= 0 {
		return nil
	}
	c.golden, err = golden.Open(golden.Config{
		Dir: c.cfg.Dir, Driver: drv, Disk: c.cfg.GoldenDisk, RAM: c.cfg.GoldenRAM, Room: h.creator.lend, Memory: c.memory, Identity: golden.Nobody, Log: c.log,
	})
	h.creator.raiser.Golden = c.golden
	return err
}

// captured is what captures take of the disk, in GiB.
func (h *core) captured() int {
	if h.snaps.Store == nil {
		return 0
	}
	return h.snaps.Store.StorageGB() + int((h.golden.Bytes()+1<<30-1)>>30)
}

// captures is the part of a host that its snapshots' service sees.
type captures struct{ h *Host }

// Once does an operation on a VM, alone with it.
func (c captures) Once(ctx context.Context, f *hostwirev1.Fence, r *hostwirev1.Ref, o snaprpc.Op) (snaprpc.Outcome, error) {
	reg := c.h.core.reg
	a, err := c.h.once(ctx, fenceOf(f), refOf(r), op{verb: o.Verb, limit: o.Limit, paused: o.Paused, do: func(ctx context.Context, l *life, _ driver.Instance, a *answer) error {
		unlock, err := c.h.core.locks.Take(ctx, l.owner.VM.UID)
		if err != nil {
			return err
		}
		defer unlock()
		reg.mu.Lock()
		inst := l.inst
		if _, err = l.runningLocked(); o.Paused && l.phase == phasePaused {
			err = nil
		}
		reg.mu.Unlock()
		if err != nil {
			return err
		}
		out, err := o.Do(ctx, snaprpc.VM{
			VM: l.owner.VM, Instance: inst,
			Runs:   func(inst driver.Instance) { l.swap(reg, inst) },
			Stands: func() { l.rest(reg) },
			Ended:  func(cause, detail string) { c.ended(l, cause, detail) },
			Unsure: func() { l.unsure(reg) },
			Wake:   func() (func(), error) { return c.wake(l) },
		})
		a.Boot, a.Certificate, a.Bytes = out.Boot, out.Certificate, out.Bytes
		return err
	}})
	return snaprpc.Outcome{Boot: a.Boot, Certificate: a.Certificate, Bytes: a.Bytes}, err
}

// wake takes a paused VM's memory back, if the host has it.
func (c captures) wake(l *life) (asleep func(), err error) {
	core, vm := c.h.core, l.owner.VM
	facts, _, _ := c.h.prober.Complete()
	core.reg.mu.Lock()
	defer core.reg.mu.Unlock()
	others := core.reg.used.Plus(room.Resting(vm)).Minus(room.Of(vm))
	if err := core.roomLocked(c.h.prober.Capacity(facts), others, vm, facts); err != nil {
		return nil, err
	}
	l.restLocked(core.reg, false)
	return func() { l.rest(core.reg) }, nil
}

// ended settles a VM that has ended under an operation, and what is left of it.
func (c captures) ended(l *life, cause, detail string) {
	core := c.h.core
	ctx, cancel := context.WithTimeout(context.Background(), core.cfg.RemoveTimeout)
	defer cancel()
	if err := core.drv.Remove(ctx, l.owner.VM); err != nil {
		core.log.Error("vm that has ended not cleared", "vm_id", l.owner.VM.ID, "uid", l.owner.VM.UID, "error", err)
	}
	core.reg.mu.Lock()
	inst := l.inst
	l.inst = nil
	if l.phase == phaseRunning || l.phase == phasePaused {
		core.reg.stoppedLocked(l, fleet.ExitRecord{Cause: cause, Detail: detail})
	}
	core.reg.mu.Unlock()
	if inst != nil {
		_ = inst.Close() // its VM is gone
	}
}

// CreateFrom is a create that begins with a capture.
func (c captures) CreateFrom(ctx context.Context, m *hostwirev1.CreateVMRequest, src raise.Source, step func(string) error) (*hostwirev1.CreateVMResult, error) {
	return vmService(c).create(ctx, m, src, step)
}

// Fenced refuses a call of who does not lead its fleet now.
func (c captures) Fenced(f *hostwirev1.Fence) error { return c.h.core.reg.marks.Check(fenceOf(f)) }

// Complete says whether a listing can be believed.
func (c captures) Complete() (bool, string) {
	_, ok, reason := c.h.prober.Complete()
	return ok, reason
}

// swap has another instance stand for a VM.
func (l *life) swap(r *registry, inst driver.Instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.restLocked(r, false)
	l.inst = inst
	if l.phase == phasePaused {
		l.phase = phaseRunning
	}
}

// rest settles a VM that is paused, unsure has one taken hold of anew.
func (l *life) rest(r *registry)   { l.without(r, phasePaused) }
func (l *life) unsure(r *registry) { l.without(r, phaseUnadopted) }

func (l *life) without(r *registry, now phase) {
	r.mu.Lock()
	inst := l.inst
	l.inst = nil
	if l.phase == phaseRunning || l.phase == phaseUnadopted || l.phase == phasePaused {
		l.phase = now
	}
	l.restLocked(r, l.rests || now == phasePaused)
	r.mu.Unlock()
	if inst != nil {
		_ = inst.Close() // it stands for nothing any more
	}
}

// restLocked gives a VM's memory back or takes it again.
func (l *life) restLocked(r *registry, rests bool) {
	switch {
	case l.rests == rests || r.lives[l.owner.VM.UID] != l:
		return
	case rests:
		r.used = r.used.Minus(room.Resting(l.owner.VM))
	default:
		r.used = r.used.Plus(room.Resting(l.owner.VM))
	}
	l.rests = rests
}

// lend finds a slot and memory for a machine that belongs to nobody. It yields
// to none: who finds no room meanwhile tries elsewhere.
func (h *creator) lend(ctx context.Context, vm driver.VM) (driver.VM, func(), error) {
	facts, err := h.facts.Await(ctx)
	if err != nil {
		return vm, nil, err
	}
	if err := h.reg.awaitSweepLock(ctx); err != nil {
		return vm, nil, err
	}
	defer h.reg.mu.Unlock()
	if err := h.roomLocked(h.facts.Capacity(facts), h.reg.used, vm, facts); err != nil {
		return vm, nil, err
	}
	if h.reg.lent[vm.UID].UID != "" {
		return vm, nil, refusal.Conflict("%s is being used", vm.UID)
	}
	vm.Slot, vm.Dir = h.reg.slots.Next(), filepath.Join(h.cfg.Dir, golden.Lent, vm.UID)
	if err := errors.Join(os.RemoveAll(vm.Dir), os.MkdirAll(vm.Dir, 0o700)); err != nil {
		return vm, nil, err
	}
	h.reg.slots.Take(vm.Slot)
	h.reg.lent[vm.UID], h.reg.used = vm, h.reg.used.Plus(room.Of(vm))
	return vm, func() {
		h.reg.mu.Lock()
		defer h.reg.mu.Unlock()
		delete(h.reg.lent, vm.UID)
		h.reg.slots.Free(vm.Slot)
		h.reg.used = h.reg.used.Minus(room.Of(vm))
	}, nil
}

// roomLocked refuses a VM for which the host has no room beside used, or no
// memory beside what captures under way may take.
func (h *core) roomLocked(total, used fleet.HostCapacity, vm driver.VM, facts driver.Facts) error {
	l := room.Limits{
		OverheadMB: facts.OverheadMB, CountCPUs: h.cfg.Capacity.CPUs > 0 || h.cfg.CPUOvercommit > 1, CPUOvercommit: h.cfg.CPUOvercommit,
	}
	if err := room.Check(total, used.Plus(h.memory.Seeds()), vm, l); err != nil {
		return err
	}
	return h.memory.Beside(vm, facts.OverheadMB, func() int64 { return makingLocked(h.reg) })
}

// making is what was promised to VMs that come up, in bytes.
func making(r *registry) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return makingLocked(r)
}

func makingLocked(r *registry) (bytes int64) {
	for _, l := range r.lives {
		if l.phase == phaseCreating || l.phase == phasePaused && !l.rests {
			bytes += int64(room.Of(l.owner.VM).RamMB) << 20
		}
	}
	return bytes
}
