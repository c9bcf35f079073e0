package hostd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/entry"
	"github.com/fusevm/fuse/internal/hostd/journal"
	"github.com/fusevm/fuse/internal/hostd/ops"
	"github.com/fusevm/fuse/internal/hostd/probe"
	"github.com/fusevm/fuse/internal/hostd/raise"
	"github.com/fusevm/fuse/internal/hostd/refusal"
	"github.com/fusevm/fuse/internal/hostd/room"
)

// creator is the part of a host that makes VMs.
type creator struct {
	*core
	facts  *probe.Prober
	raiser *raise.Raiser
	kept   func() int // what captures take of the disk, in GiB
}

// CreateRequest is one VM to make and boot.
type CreateRequest struct {
	Ref
	CPUs      int
	RamMB     int
	StorageGB int
	HugePages bool
	Image     string
	Services  []string // images of the manifest's services
	Limits    fleet.ResourceLimits
	Identity  driver.Identity
	From      raise.Source // zero: the image, booted
}

// CreateResult is how the VM came up.
type CreateResult struct {
	ImageDigest string
	Boot        fleet.BootRecord
	Certificate *fleet.Certificate
}

func (r CreateRequest) validate() error {
	if err := r.Ref.Validate(); err != nil {
		return err
	}
	if err := room.Sound(r.CPUs, r.RamMB, r.StorageGB); err != nil {
		return err
	}
	if len(r.Image) > 255 {
		return ops.Invalid("image", r.Image, "at most 255 bytes")
	}
	return r.Limits.Check()
}

// Create makes and boots a VM, or joins or repeats the answer of the same
// operation. report gets each step's name. When ctx ends the caller is let
// go and the work goes on.
func (h *creator) Create(ctx context.Context, f Fence, req CreateRequest, report func(string) error) (CreateResult, error) {
	if err := req.validate(); err != nil {
		return CreateResult{}, err
	}
	facts, err := h.facts.Await(ctx)
	if err != nil {
		return CreateResult{}, err
	}
	fl, err := h.admitCreate(ctx, f, req, facts)
	if errors.Is(err, fleet.ErrNoCapacity) && h.golden.Yield(ctx) {
		fl, err = h.admitCreate(ctx, f, req, facts)
	}
	if err != nil {
		return CreateResult{}, err
	}
	a, err := fl.Wait(ctx, report)
	if err != nil {
		return CreateResult{}, err
	}
	return CreateResult{ImageDigest: a.Digest, Boot: a.Boot, Certificate: a.Certificate}, a.Failure()
}

// admitCreate decides everything that can refuse a create before it has any
// effect, and registers the life.
func (h *creator) admitCreate(ctx context.Context, f Fence, req CreateRequest, facts driver.Facts) (*flight, error) {
	if err := h.reg.awaitSweepLock(ctx); err != nil {
		return nil, err
	}
	defer h.reg.mu.Unlock()
	mark, err := h.reg.marks.Admit(f)
	if err != nil {
		return nil, err
	}
	if fl, err := h.earlierLocked(f, req.Ref); fl != nil || err != nil {
		return fl, err
	}
	vm := driver.VM{
		ID: req.VMID, UID: req.UID, Generation: req.Generation, Slot: h.reg.slots.Next(),
		Dir: h.vmDir(req.UID), CPUs: req.CPUs, RamMB: req.RamMB, StorageGB: req.StorageGB, HugePages: req.HugePages, Image: req.Image, ServiceImages: req.Services, Limits: req.Limits,
	}
	used := h.reg.used.Plus(fleet.HostCapacity{StorageGB: h.kept()})
	if err := h.roomLocked(h.facts.Capacity(facts), used, vm, facts); err != nil {
		return nil, err
	}
	o := owner{
		RegistryID: h.reg.id, FleetID: f.FleetID, OpID: req.OpID, At: time.Now().UTC(),
		Mark: mark,
		VM:   vm,
	}
	if h.closedLocked() {
		return nil, refusal.Closing()
	}
	l, fl := newLife(o, phaseCreating), ops.NewFlight[answer]()
	l.flights[flightKey(verbCreate, req.OpID)] = fl
	h.reg.addLocked(l)
	owned := h.reg.log.Append(record{Owner: &l.owner}, true)
	h.work.Go(func() {
		begun := time.Now()
		a, err := h.create(l, owned, fl, req)
		h.metrics.Observe(verbCreate, begun, errors.Join(err, a.Failure()))
		h.reg.mu.Lock()
		delete(l.flights, flightKey(verbCreate, req.OpID))
		h.reg.mu.Unlock()
		fl.Land(a, err)
	})
	return fl, nil
}

func flightKey(verb, opID string) string { return verb + " " + opID }

// earlierLocked finds what stands in a create's way: the same operation, whose
// flight or answer is returned, or another claim on the uid or the VM id.
func (h *creator) earlierLocked(f Fence, ref Ref) (*flight, error) {
	if h.reg.unreadable[ref.UID] {
		return nil, refusal.Unreadable(ref.UID)
	}
	if e, over := h.reg.ended.Get(ref.UID); over {
		if a, ok := entry.Answered(e.Answers, verbCreate, ref.OpID); ok && a.Error != nil && e.FleetID == f.FleetID {
			return landed(a), nil
		}
		return nil, refusal.Conflict("life %s of %s has ended and cannot be created again", ref.UID, ref.VMID)
	}
	if l := h.reg.lives[ref.UID]; l != nil {
		if l.owner.FleetID != f.FleetID || l.owner.VM.ID != ref.VMID {
			return nil, refusal.Conflict("uid %s is taken by another environment", ref.UID)
		}
		// The flight first: it lands when its answer is written.
		if fl := l.flights[flightKey(verbCreate, ref.OpID)]; fl != nil {
			return fl, nil
		}
		if a, ok := entry.Answered(l.answers, verbCreate, ref.OpID); ok {
			return landed(a), nil
		}
		return nil, refusal.Conflict("life %s of %s is already there", ref.UID, ref.VMID)
	}
	if l := h.reg.byVM[vmKey{f.FleetID, ref.VMID}]; l != nil {
		return nil, refusal.Conflict("%s is still there in its life %s (%s)", ref.VMID, l.owner.VM.UID, l.phase).
			With("uid", l.owner.VM.UID).
			With(fleet.DetailRemedy, "destroy that life first")
	}
	return nil, nil
}

func landed(a answer) *flight {
	fl := ops.NewFlight[answer]()
	fl.Land(a, nil)
	return fl
}

// create carries a registered life to running, or undoes it. Exactly one of
// the answer and the error is the outcome; an error is not remembered.
func (h *creator) create(l *life, owned *journal.Ticket, fl *flight, req CreateRequest) (answer, error) {
	a := answer{UID: l.owner.VM.UID, Verb: verbCreate, OpID: l.owner.OpID}
	if err := owned.Wait(); err != nil {
		h.reg.abandon(l)
		return a, err
	}
	ctx, cancel := context.WithTimeout(l.ctx, h.cfg.CreateTimeout)
	defer cancel()
	unlock, err := h.locks.Take(ctx, a.UID)
	if err == nil {
		defer unlock()
		err = h.build(ctx, l, fl, req, &a)
	}
	if err == nil {
		h.log.Info("vm running", "vm_id", l.owner.VM.ID, "uid", a.UID, "slot", l.owner.VM.Slot)
		return a, failpoint.Hit("hostd.create.answered")
	}
	err = refusal.Create(ctx, l.ctx, err)
	h.log.Warn("vm create undone", "vm_id", l.owner.VM.ID, "uid", a.UID, "error", err)
	a.Error, a.Boot = ops.KeepError(err), fleet.BootRecord{}
	return a, h.undo(l, a)
}

// build is the steps of a create, in order.
func (h *creator) build(ctx context.Context, l *life, fl *flight, req CreateRequest, a *answer) error {
	if err := failpoint.Hit("hostd.create.owner_record"); err != nil {
		return err
	}
	if err := h.writeOwner(l.owner); err != nil {
		return err
	}
	if err := failpoint.Hit("hostd.create.slot"); err != nil {
		return err
	}
	up, err := h.raiser.Start(ctx, l.owner.VM, req.Identity, req.From, fl.Step)
	if err != nil {
		return err
	}
	inst := up.Instance
	if err := failpoint.Hit("hostd.create.driver"); err != nil {
		return errors.Join(err, inst.Close())
	}
	a.Boot, a.Certificate = fleet.BootRecord{Mode: up.Mode, Steps: fl.Times(time.Now())}, up.Certificate
	if d, ok := inst.(interface{ ImageDigest() string }); ok {
		a.Digest = d.ImageDigest()
	}
	if err := failpoint.Hit("hostd.create.answer"); err != nil {
		return errors.Join(err, inst.Close())
	}
	t, ok := h.reg.started(l, inst, *a)
	if !ok {
		return errors.Join(context.Cause(l.ctx), inst.Close())
	}
	if err := t.Wait(); err != nil {
		// Without this record the next start would take the create for one
		// that was cut short, and undo what its caller relies on.
		h.reg.unanswer(l)
		return err
	}
	return nil
}

// undo clears what a failed create made and records its answer. If clearing
// does not work out, the life stays condemned and is tried again.
func (h *core) undo(l *life, a answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), h.cfg.RemoveTimeout)
	defer cancel()
	if err := h.clear(ctx, l); err != nil {
		h.log.Error("vm of a failed create not cleared", "vm_id", l.owner.VM.ID, "uid", a.UID, "error", err)
		h.reg.mu.Lock()
		l.phase = phaseCondemned
		h.reg.condemnLocked(l)
		h.reg.mu.Unlock()
		return h.reg.answer(l, a).Wait()
	}
	return h.reg.finish(l, &a).Wait()
}

// clear removes everything of a VM from the host but its records.
func (h *core) clear(ctx context.Context, l *life) error {
	h.consoles.Keep(l.owner.FleetID, l.owner.VM)
	if err := h.drv.Remove(ctx, l.owner.VM); err != nil {
		return err
	}
	if err := failpoint.Hit("hostd.destroy.driver"); err != nil {
		return err
	}
	if err := os.RemoveAll(l.owner.VM.Dir); err != nil {
		return fmt.Errorf("remove the VM's directory: %w", err)
	}
	return failpoint.Hit("hostd.destroy.clear")
}
