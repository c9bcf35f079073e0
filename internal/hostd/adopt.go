package hostd

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/entry"
	"github.com/fusevm/fuse/internal/hostd/ops"
	"github.com/fusevm/fuse/internal/hostd/probe"
)

// adoptTimeout bounds the adoption of one VM.
const adoptTimeout = 30 * time.Second

// keeper is the part of a host that runs by itself: adoption, the watch for
// VMs that stop, and the sweep.
type keeper struct {
	*core
	prober    *probe.Prober
	destroyer *destroyer
}

// adopt takes hold of every VM that an earlier process left: running ones are
// kept, ended ones get their exit record, and what was never acknowledged or
// was being removed is removed. Until it ends, listings are not complete.
func (h *keeper) adopt(ctx context.Context) {
	h.snaps.Adopt(ctx)
	var g errgroup.Group
	g.SetLimit(h.cfg.AdoptAtOnce)
	for _, l := range h.reg.list(nil) {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { h.adoptOne(ctx, l); return nil })
	}
	_ = g.Wait() // adoptOne handles its errors
	if ctx.Err() == nil {
		h.prober.SetAdopted()
	}
}

func (h *keeper) adoptOne(ctx context.Context, l *life) {
	h.reg.mu.Lock()
	p := l.phase
	interrupted := p == phaseUnadopted && !l.acknowledgedLocked()
	h.reg.mu.Unlock()
	switch {
	case p == phaseCondemned:
		h.retryRemoval(ctx, l)
	case interrupted:
		h.undoInterrupted(ctx, l)
	case p == phaseUnadopted:
		h.takeHold(ctx, l)
	}
}

// acknowledgedLocked reports whether the VM's create was answered with
// success, or may have been.
func (l *life) acknowledgedLocked() bool {
	a, ok := entry.Answered(l.answers, verbCreate, l.owner.OpID)
	return ok && a.Error == nil
}

// undoInterrupted removes a VM whose create never came to an answer, and gives
// the operation one.
func (h *keeper) undoInterrupted(ctx context.Context, l *life) {
	vm := l.owner.VM
	unlock, err := h.locks.Take(ctx, vm.UID)
	if err != nil {
		return
	}
	defer unlock()
	if !h.reg.hold(l) {
		return
	}
	err = fleet.Errorf(fleet.CodeUnavailable, "the host agent died while the environment was being created; it was undone").
		With(fleet.DetailReason, fleet.RuleCreateInterrupted)
	h.log.Warn("interrupted create undone", "vm_id", vm.ID, "uid", vm.UID)
	a := answer{UID: vm.UID, Verb: verbCreate, OpID: l.owner.OpID, Error: ops.KeepError(err)}
	if err := h.undo(l, a); err != nil {
		h.log.Error("answer of an interrupted create not logged", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
}

func (h *keeper) takeHold(ctx context.Context, l *life) {
	vm := l.owner.VM
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	unlock, err := h.locks.Take(ctx, vm.UID)
	if err != nil {
		return
	}
	defer unlock()
	inst, err := h.drv.Adopt(ctx, vm)
	var gone *driver.GoneError
	var paused *driver.PausedError
	switch {
	case err == nil && h.reg.adopted(l, inst):
		h.log.Info("vm adopted", "vm_id", vm.ID, "uid", vm.UID)
	case err == nil:
		_ = inst.Close() // the removal that waits for us works without it
	case errors.As(err, &paused):
		l.rest(h.reg)
		h.log.Info("vm is paused", "vm_id", vm.ID, "uid", vm.UID)
	case errors.As(err, &gone):
		h.log.Warn("vm is gone", "vm_id", vm.ID, "uid", vm.UID, "cause", gone.Exit.Cause)
		if err := h.reg.foundGone(l, gone.Exit).Wait(); err != nil {
			h.log.Error("exit record not logged", "vm_id", vm.ID, "uid", vm.UID, "error", err)
		}
	default:
		// It may well run: it stays listed, and the timer tries again.
		h.log.Error("vm cannot be adopted", "vm_id", vm.ID, "uid", vm.UID, "error", err)
	}
}

// retryRemoval tries again to clear a condemned life.
func (h *keeper) retryRemoval(ctx context.Context, l *life) {
	h.reg.mu.Lock()
	fl, err := h.destroyer.removalLocked(l)
	h.reg.mu.Unlock()
	if err == nil {
		_, _ = fl.Wait(ctx, nil) // logged where it failed
	}
}
