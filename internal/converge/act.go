package converge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

// actor applies steps beside the loop. Each host has a lane of a few workers
// that live as long as it has steps, so a host that is slow to destroy delays
// only itself. A life is in at most one lane, once, so the lanes are bounded
// by the fleet.
type actor struct {
	ctx   context.Context // ends with the loop
	apply func(context.Context, reconcile.Step) outcome
	per   int
	slots chan struct{}
	goes  *sync.WaitGroup

	mu       sync.Mutex
	lanes    map[string]*lane
	inFlight map[string]bool
	done     reconcile.Summary // of steps that ended since it was last taken
}

type lane struct {
	queue   []queued
	workers int
}

type queued struct {
	step  reconcile.Step
	batch *batch
}

// batch is the steps of one cycle; ended closes when all have ended.
type batch struct {
	mu    sync.Mutex
	left  int
	ended chan struct{}
}

func newBatch() *batch { return &batch{left: 1, ended: make(chan struct{})} }

func (b *batch) add(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left += n; b.left == 0 {
		close(b.ended)
	}
}

// outcome is how a step ended.
type outcome struct {
	dropped string // why it no longer held
	purged  int
	err     error
}

// laneKey is what a step occupies while it is at work.
func laneKey(s reconcile.Step) string {
	if s.UID != "" {
		return s.UID
	}
	return string(s.Kind)
}

// dispatch starts steps; one whose life is already being worked on is left out.
func (a *actor) dispatch(b *batch, steps []reconcile.Step) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range steps {
		if a.ctx.Err() != nil || a.inFlight[laneKey(s)] {
			continue
		}
		a.inFlight[laneKey(s)] = true
		b.add(1)
		ln := a.lanes[s.HostID]
		if ln == nil {
			ln = &lane{}
			a.lanes[s.HostID] = ln
		}
		ln.queue = append(ln.queue, queued{s, b})
		if ln.workers < a.per {
			ln.workers++
			a.goes.Go(func() { a.work(s.HostID, ln) })
		}
	}
}

func (a *actor) work(host string, ln *lane) {
	for {
		a.mu.Lock()
		if len(ln.queue) == 0 {
			if ln.workers--; ln.workers == 0 {
				delete(a.lanes, host)
			}
			a.mu.Unlock()
			return
		}
		q := ln.queue[0]
		ln.queue = ln.queue[1:]
		a.mu.Unlock()
		a.finish(q, a.one(q.step))
	}
}

func (a *actor) one(s reconcile.Step) outcome {
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
		return a.apply(a.ctx, s)
	case <-a.ctx.Done():
		return outcome{dropped: "the loop ends"}
	}
}

func (a *actor) finish(q queued, o outcome) {
	a.mu.Lock()
	delete(a.inFlight, laneKey(q.step))
	a.done.Purged += o.purged
	if o.dropped != "" {
		a.done.Dropped++
	} else {
		a.done.Applied(q.step.Kind, o.err)
	}
	a.mu.Unlock()
	q.batch.add(-1)
}

// forget drops what has not begun, because it may not be acted on any more.
func (a *actor) forget() {
	a.mu.Lock()
	var dropped []queued
	for _, ln := range a.lanes {
		dropped = append(dropped, ln.queue...)
		ln.queue = nil
	}
	a.mu.Unlock()
	for _, q := range dropped {
		a.finish(q, outcome{dropped: "the store is gone"})
	}
}

func (a *actor) busy() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.inFlight)
}

// take returns what steps have done since it was last called.
func (a *actor) take() reconcile.Summary {
	a.mu.Lock()
	defer a.mu.Unlock()
	done := a.done
	a.done = reconcile.Summary{}
	done.InFlight = len(a.inFlight)
	return done
}

// apply does one step, if it still holds. It runs on an actor's worker.
func (l *Loop) apply(ctx context.Context, s reconcile.Step) outcome {
	log := l.log.With(slog.String("step", string(s.Kind)), slog.String("vm_id", s.VMID), slog.String("uid", s.UID), slog.String("host_id", s.HostID))
	ctx, cancel := context.WithTimeout(ctx, l.cfg.StepDeadline)
	defer cancel()
	row, err := l.row(ctx, s.UID)
	if err != nil {
		return outcome{err: l.lost(err)}
	}
	if why, ok := s.Holds(row); !ok {
		log.Info("step dropped", slog.String("why", why))
		return outcome{dropped: why}
	}
	var o outcome
	switch s.Kind {
	case reconcile.KindMissing:
		o.err = l.claimMissing(ctx, s)
	case reconcile.KindRetry, reconcile.KindReap:
		o.err = l.goOn(ctx, s, row)
	case reconcile.KindOrphan:
		o.err = l.killOrphan(ctx, s)
	case reconcile.KindDeadLetter:
		o.err = l.giveUp(ctx, s)
	default:
		o.purged, o.err = l.purge(ctx, s)
	}
	if o.err != nil {
		log.Warn("step failed", slog.Int("count", s.Count), slog.Any("error", o.err))
		o.err = l.lost(o.err)
	}
	return o
}

// row reads the row of a life as it is now; nil if there is none. It fails
// when nothing may be acted on.
func (l *Loop) row(ctx context.Context, uid string) (row *fleet.VM, err error) {
	if err := l.cfg.Store.Ready(ctx); err != nil {
		return nil, err
	}
	err = l.cfg.Store.View(func(tx *state.ReadTx) error {
		row, _ = tx.VMs().GetUID(uid)
		return nil
	})
	return row, err
}

// claimMissing has a VM that its host no longer has ended. The step is done
// once the end is durable as an intent; if the host confirms it later, the
// unfinished destroy goes on by its own pass.
func (l *Loop) claimMissing(ctx context.Context, s reconcile.Step) error {
	err := l.destroy(ctx, s, s.Reason())
	if err == nil {
		return nil
	}
	if row, readErr := l.row(context.WithoutCancel(ctx), s.UID); readErr == nil && (row == nil || row.State == fleet.VMStateDestroying) {
		l.log.Info("end claimed, not confirmed yet", slog.String("vm_id", s.VMID), slog.String("host_id", s.HostID), slog.Any("error", err))
		return nil
	}
	return err
}

func (l *Loop) goOn(ctx context.Context, s reconcile.Step, row *fleet.VM) error {
	reason := s.Reason()
	if row.End != nil {
		reason = *row.End
	}
	if s.Kind == reconcile.KindRetry {
		why := s.Reason()
		if _, err := l.cfg.Store.Update(ctx, func(tx *state.Tx) error {
			tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: s.VMID, UID: s.UID, Type: fleet.EventVMDestroyRetried, Reason: &why})
			return nil
		}); err != nil {
			return err
		}
	}
	return l.destroy(ctx, s, reason)
}

func (l *Loop) destroy(ctx context.Context, s reconcile.Step, reason fleet.Reason) error {
	err := l.cfg.Destroyer.DestroyLife(ctx, s.VMID, s.UID, reason)
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		return nil // it ended meanwhile
	}
	return err
}

func (l *Loop) killOrphan(ctx context.Context, s reconcile.Step) error {
	if err := l.cfg.OrphanKiller.DestroyOrphan(ctx, s.HostID, s.VMID, s.UID); err != nil {
		return fmt.Errorf("try %d: %w", s.Count, err)
	}
	l.log.Info("orphan destroyed", slog.String("vm_id", s.VMID), slog.String("uid", s.UID), slog.String("host_id", s.HostID), slog.String("evidence", s.Evidence))
	why := s.Reason()
	_, err := l.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: s.VMID, UID: s.UID, Type: fleet.EventVMOrphanDestroy, Reason: &why})
		return nil
	})
	return err
}

// giveUp records an orphan that could not be destroyed. Nothing reads the
// record but people.
func (l *Loop) giveUp(ctx context.Context, s reconcile.Step) error {
	why := s.Reason()
	_, err := l.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: s.VMID, UID: s.UID, Type: fleet.EventVMOrphanDead, Reason: &why})
		return tx.UpsertDeadLetter(fleet.DeadLetter{
			Kind: fleet.DeadLetterOrphanDestroy, EntityID: s.VMID, Reason: s.Evidence, RetryCount: s.Count,
		})
	})
	return err
}

// lost sees to it that nothing goes on without the store. It returns err.
func (l *Loop) lost(err error) error {
	switch {
	case errors.Is(err, fleet.ErrNotLeader):
		l.stop(err)
	case errors.Is(err, fleet.ErrStoreUnavailable):
		l.acts.forget()
	}
	return err
}
