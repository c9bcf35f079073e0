package converge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

// doer applies single steps.
type doer struct {
	cfg  *Config
	log  *slog.Logger
	lost func(error) error
	life func(*state.ReadTx, *fleet.VM) reconcile.Life
}

// apply does one step, if it still holds. It runs on an actor's worker.
func (d *doer) apply(ctx context.Context, s reconcile.Step) outcome {
	log := d.log.With(slog.String("step", string(s.Kind)), slog.String("vm_id", s.VMID), slog.String("uid", s.UID), slog.String("host_id", s.HostID))
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StepDeadline)
	defer cancel()
	if s.Kind == reconcile.KindIdle && d.cfg.Shut != nil {
		defer d.cfg.Shut(s.UID)()
	}
	now, err := d.now(ctx, s.UID)
	if err != nil {
		return outcome{err: d.lost(err)}
	}
	if why, ok := s.Holds(now); !ok {
		log.Info("step dropped", slog.String("why", why))
		return outcome{dropped: why}
	}
	var o outcome
	switch s.Kind {
	case reconcile.KindMissing, reconcile.KindStuck, reconcile.KindIdle:
		o.err = d.claimEnd(ctx, s)
	case reconcile.KindIdlePause:
		o = d.pause(ctx, s)
	case reconcile.KindStuckSuspected, reconcile.KindIdleSuspected, reconcile.KindHealth, reconcile.KindBudget:
		o.err = d.tell(ctx, s, now.Row)
	case reconcile.KindSnapshotGC, reconcile.KindArtifactGC:
		o.err = d.collect(ctx, s)
	case reconcile.KindRetry, reconcile.KindReap:
		o.err = d.goOn(ctx, s, now.Row)
	case reconcile.KindOrphan:
		o.err = d.killOrphan(ctx, s)
	case reconcile.KindDeadLetter:
		o.err = d.giveUp(ctx, s)
	default:
		o.purged, o.err = d.purge(ctx, s)
	}
	if o.err != nil {
		log.Warn("step failed", slog.Int("count", s.Count), slog.Any("error", o.err))
		o.err = d.lost(o.err)
	}
	return o
}

// usedError says that a step does not hold any more.
type usedError struct{ why string }

func (e *usedError) Error() string { return e.why }

// pause has a life stand still that nobody uses. No use begins from the last look
// at its uses to the decision; one that comes while it is being carried out waits,
// and then wakes it.
func (d *doer) pause(ctx context.Context, s reconcile.Step) outcome {
	if d.cfg.Pauser == nil {
		return outcome{}
	}
	err := d.cfg.Pauser.PauseLife(ctx, s.VMID, s.UID, s.Reason(), func() (func(), error) {
		open := func() {}
		if d.cfg.Shut != nil {
			open = d.cfg.Shut(s.UID)
		}
		now, err := d.now(ctx, s.UID)
		if err == nil {
			if why, ok := s.Holds(now); !ok {
				err = &usedError{why}
			}
		}
		if err != nil {
			open()
			return nil, err
		}
		return open, nil
	})
	var used *usedError
	if errors.As(err, &used) {
		d.log.Info("step dropped", slog.String("step", string(s.Kind)), slog.String("vm_id", s.VMID), slog.String("why", used.why))
		return outcome{dropped: used.why}
	}
	return outcome{err: err}
}

// now reads what a step about a life is checked against. It fails when nothing
// may be acted on.
func (d *doer) now(ctx context.Context, uid string) (now reconcile.Now, err error) {
	if err := d.cfg.Store.Ready(ctx); err != nil {
		return now, err
	}
	err = d.cfg.Store.View(func(tx *state.ReadTx) error {
		now.Paused = pauses(tx)
		if now.Row, _ = tx.VMs().GetUID(uid); now.Row != nil {
			now.Life = d.life(tx, now.Row)
		}
		return nil
	})
	return now, err
}

// claimEnd has a VM ended that its host no longer has, that is too old, or that
// nobody uses. The step is done once the end is durable as an intent; if the
// host confirms it later, the unfinished destroy goes on by its own pass.
func (d *doer) claimEnd(ctx context.Context, s reconcile.Step) error {
	err := d.destroy(ctx, s, s.Reason())
	if err == nil {
		return nil
	}
	if now, readErr := d.now(context.WithoutCancel(ctx), s.UID); readErr == nil && (now.Row == nil || now.Row.State == fleet.VMStateDestroying) {
		d.log.Info("end claimed, not confirmed yet", slog.String("vm_id", s.VMID), slog.String("host_id", s.HostID), slog.Any("error", err))
		return nil
	}
	return err
}

// destroyFailed is from which try on a destroy that does not end is a dead
// letter too. It is tried on, without end.
const destroyFailed = 5

func (d *doer) goOn(ctx context.Context, s reconcile.Step, row *fleet.VM) error {
	reason := s.Reason()
	if row.End != nil {
		reason = *row.End
	}
	if s.Kind == reconcile.KindRetry {
		why := s.Reason()
		if _, err := d.cfg.Store.Update(ctx, func(tx *state.Tx) error {
			tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: s.VMID, UID: s.UID, Type: fleet.EventVMDestroyRetried, Reason: &why})
			if s.Count < destroyFailed {
				return nil
			}
			return tx.UpsertDeadLetter(fleet.DeadLetter{
				Kind: fleet.DeadLetterDestroyFailed, EntityID: s.VMID, TaskID: row.TaskID, Reason: s.Evidence, RetryCount: s.Count,
			})
		}); err != nil {
			return err
		}
	}
	return d.destroy(ctx, s, reason)
}

func (d *doer) destroy(ctx context.Context, s reconcile.Step, reason fleet.Reason) error {
	err := d.cfg.Destroyer.DestroyLife(ctx, s.VMID, s.UID, reason)
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		return nil // it ended meanwhile
	}
	return err
}

func (d *doer) killOrphan(ctx context.Context, s reconcile.Step) error {
	if err := d.cfg.OrphanKiller.DestroyOrphan(ctx, s.HostID, s.VMID, s.UID); err != nil {
		return fmt.Errorf("try %d: %w", s.Count, err)
	}
	d.log.Info("orphan destroyed", slog.String("vm_id", s.VMID), slog.String("uid", s.UID), slog.String("host_id", s.HostID), slog.String("evidence", s.Evidence))
	why := s.Reason()
	return d.record(ctx, fleet.Event{EntityType: state.EntityVM, EntityID: s.VMID, UID: s.UID, HostID: s.HostID, Type: fleet.EventVMOrphanDestroy, Reason: &why})
}

// recordWithin bounds the record of what is done already.
const recordWithin = 10 * time.Second

// record tells what is done already, also when the step's time is over or the
// loop ends: nothing else knows of it.
func (d *doer) record(ctx context.Context, ev fleet.Event) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWithin)
	defer cancel()
	_, err := d.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		tx.Emit(ev)
		return nil
	})
	return err
}

// giveUp records an orphan that could not be destroyed. Nothing reads the
// record but people.
func (d *doer) giveUp(ctx context.Context, s reconcile.Step) error {
	why := s.Reason()
	_, err := d.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: s.VMID, UID: s.UID, HostID: s.HostID, Type: fleet.EventVMOrphanDead, Reason: &why})
		return tx.UpsertDeadLetter(fleet.DeadLetter{
			Kind: fleet.DeadLetterOrphanDestroy, EntityID: s.VMID, Reason: s.Evidence, RetryCount: s.Count,
		})
	})
	return err
}
