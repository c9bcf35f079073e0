package hostd

import (
	"context"
	"errors"
	"time"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/journal"
	"github.com/fusevm/fuse/internal/hostd/ops"
	"github.com/fusevm/fuse/internal/hostd/refusal"
)

const verbDestroy = "destroy"

// destroyer is the part of a host that removes VMs.
type destroyer struct{ *core }

// Destroy ends a life and returns once everything of it is cleared. It wins
// over a create under way. A life that is not there is success, and can no
// longer be created. When ctx ends the caller is let go and the work goes on.
func (h *destroyer) Destroy(ctx context.Context, f Fence, ref Ref) error {
	if err := ref.Validate(); err != nil {
		return err
	}
	fl, t, err := h.admitDestroy(f, ref)
	if err != nil {
		return err
	}
	if fl == nil {
		return t.Wait()
	}
	// The host's own word on who has ended a VM.
	h.log.Info("destroy ordered", "vm_id", ref.VMID, "uid", ref.UID, "fleet_id", f.FleetID, "term", f.Term, "operation", ref.OpID)
	_, err = fl.Wait(ctx, nil)
	return err
}

// admitDestroy returns the removal to wait for, or, if there is nothing to
// remove, the ticket of the record that says so.
func (h *destroyer) admitDestroy(f Fence, ref Ref) (*flight, *journal.Ticket, error) {
	h.reg.mu.Lock()
	defer h.reg.mu.Unlock()
	if err := h.reg.marks.Check(f); err != nil {
		return nil, nil, err
	}
	l := h.reg.lives[ref.UID]
	switch {
	case h.closedLocked():
		return nil, nil, refusal.Closing()
	case h.reg.unreadable[ref.UID]:
		return nil, nil, refusal.Unreadable(ref.UID)
	case l == nil:
		return nil, h.buryLocked(f, ref), nil
	}
	if err := l.isMeant(f, ref); err != nil {
		return nil, nil, err
	}
	fl, err := h.removalLocked(l)
	return fl, nil, err
}

// buryLocked makes sure that a life which is not there stays that way.
func (h *destroyer) buryLocked(f Fence, ref Ref) *journal.Ticket {
	if _, over := h.reg.ended.Get(ref.UID); over {
		return journal.Done()
	}
	e := &ended{UID: ref.UID, VMID: ref.VMID, FleetID: f.FleetID, At: time.Now().UTC()}
	h.reg.ended.Put(e.UID, e, e.At)
	return h.reg.log.Append(record{Ended: e}, false)
}

// isMeant refuses a reference to a life of another fleet, under another VM
// id, or to an earlier claim on it.
func (l *life) isMeant(f Fence, ref Ref) error {
	vm := l.owner.VM
	switch {
	case l.owner.FleetID != f.FleetID:
		return fleet.Errorf(fleet.CodeForbidden, "uid %s belongs to another fleet", ref.UID).
			With(fleet.DetailReason, "foreign")
	case vm.ID != ref.VMID:
		return refusal.Conflict("uid %s is a life of %s, not of %s", ref.UID, vm.ID, ref.VMID)
	case ref.Generation != 0 && ref.Generation < vm.Generation:
		return refusal.Conflict("generation %d of %s is over: the host has %d", ref.Generation, ref.VMID, vm.Generation).
			With(fleet.DetailReason, "stale_generation")
	}
	return nil
}

// removalLocked joins the removal of a life or begins it.
func (h *destroyer) removalLocked(l *life) (*flight, error) {
	if l.removal != nil {
		return l.removal, nil
	}
	if h.closedLocked() { // for the sweep, which asks here
		return nil, refusal.Closing()
	}
	fl := ops.NewFlight[answer]()
	l.removal = fl
	condemned := h.reg.condemnLocked(l)
	h.work.Go(func() {
		begun := time.Now()
		err := errors.Join(condemned.Wait(), failpoint.Hit("hostd.destroy.intent"))
		if err == nil {
			err = h.remove(l)
		}
		h.metrics.Observe(verbDestroy, begun, err)
		h.reg.mu.Lock()
		l.removal = nil
		h.reg.mu.Unlock()
		fl.Land(answer{}, err)
	})
	return fl, nil
}

// remove waits for the create under way, if there is one, to be undone, and
// clears the VM. A failure leaves the life condemned: the next call and the
// sweep try again.
func (h *destroyer) remove(l *life) error {
	vm := l.owner.VM
	ctx, cancel := context.WithTimeout(context.Background(), h.cfg.RemoveTimeout)
	defer cancel()
	unlock, err := h.locks.Take(ctx, vm.UID)
	if err != nil {
		return fleet.Wrap(fleet.CodeDeadlineExceeded, err, "the environment could not be destroyed in time: its create has not let go")
	}
	defer unlock()
	if !h.reg.hold(l) {
		return nil
	}
	if err := h.clear(ctx, l); err != nil {
		h.log.Error("vm not cleared", "vm_id", vm.ID, "uid", vm.UID, "error", err)
		return refusal.Remove(ctx, err)
	}
	if err := h.reg.finish(l, nil).Wait(); err != nil {
		// All is cleared; the log says so after the next start's adoption.
		h.log.Warn("end of a vm not logged", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
	h.log.Info("vm destroyed", "vm_id", vm.ID, "uid", vm.UID)
	return failpoint.Hit("hostd.destroy.answer")
}

// hold takes a life for its removal and lets go of the running VM; false if
// it is gone by now.
func (r *registry) hold(l *life) bool {
	r.mu.Lock()
	there := r.lives[l.owner.VM.UID] == l
	inst := l.inst
	if there {
		l.phase, l.inst = phaseCondemned, nil
	}
	r.mu.Unlock()
	if there && inst != nil {
		_ = inst.Close() // the removal that follows works without it
	}
	return there
}
