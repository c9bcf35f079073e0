package lifecycle

import (
	"context"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/ending"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/tracing"
)

// ender ends lives.
type ender struct {
	*core
	flights map[string]*flight // teardowns in flight by uid; guarded by core.mu
}

// Destroy ends an environment in whatever state it is. It returns nil once
// nothing is left of it, and again for a day after that; *PendingError when
// the end is durable as an intent but not confirmed by the host within ctx.
func (s *Service) Destroy(ctx context.Context, id string, reason fleet.Reason) error {
	return s.ender.destroy(ctx, end{id: id, reason: reason})
}

// DestroyLife is Destroy for one life: it never touches another one that has
// the same id, and is nil if that life is over.
func (s *Service) DestroyLife(ctx context.Context, id, uid string, reason fleet.Reason) error {
	return s.ender.destroy(ctx, end{id: id, uid: uid, reason: reason})
}

// DestroyLifeWhile is DestroyLife that leaves the life alone, without an error,
// unless why it is to end still holds in the transaction that claims it.
func (s *Service) DestroyLifeWhile(ctx context.Context, id, uid string, reason fleet.Reason, holds func(*state.ReadTx) bool) error {
	return s.ender.destroy(ctx, end{id: id, uid: uid, reason: reason, holds: holds})
}

func (s *ender) destroy(ctx context.Context, e end) error {
	if err := s.cfg.Admit(ctx, e.reason.Actor, "destroy", map[string]string{"id": e.id}); err != nil {
		return err
	}
	e.visible, e.task = auth.Visible(ctx), fleet.TaskRunFailed
	vm, err := s.claimEnd(e)
	if err != nil || vm == nil {
		return err
	}
	f, err := s.tearDown(ctx, vm)
	if err != nil {
		return err
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return &PendingError{VMID: vm.ID, HostID: vm.HostID, cause: ctx.Err()}
	}
}

// Complete marks the task of a running or draining environment completed and
// tears it down in the background. ref is the environment's id or its task's;
// evidence is who said so, such as the request.
func (s *Service) Complete(ctx context.Context, ref, actor, evidence string) (*fleet.VM, error) {
	return s.ender.complete(ctx, ref, fleet.Reason{Actor: actor, Rule: fleet.RuleTaskCompleted, Evidence: evidence})
}

func (s *ender) complete(ctx context.Context, ref string, reason fleet.Reason) (*fleet.VM, error) {
	if err := s.cfg.Admit(ctx, reason.Actor, "complete", map[string]string{"id": ref}); err != nil {
		return nil, err
	}
	id := ref
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		if _, ok := tx.VMs().Get(ref); ok {
			return nil
		}
		if vm, ok := tx.VMs().ByTask(ref); ok {
			id = vm.ID
		}
		return nil
	}); err != nil {
		return nil, err
	}
	vm, err := s.claimEnd(end{
		id: id, visible: auth.Visible(ctx), reason: reason, task: fleet.TaskRunCompleted,
		admits: func(vm *fleet.VM, task *fleet.Task) error {
			completed := task != nil && task.UID == vm.UID && task.RunStatus == fleet.TaskRunCompleted
			if vm.State == fleet.VMStateRunning || vm.State == fleet.VMStateDraining || vm.State == fleet.VMStateDestroying && completed {
				return nil
			}
			return notRunning(vm, "complete")
		},
	})
	if err != nil || vm == nil {
		return nil, err
	}
	_, err = s.tearDown(ctx, vm)
	return vm, err
}

// end is what to claim for destruction, and why.
type end struct {
	id, uid string                  // uid empty: whichever life there is
	visible func(owner string) bool // nil: all
	reason  fleet.Reason
	task    fleet.TaskRunStatus
	holds   func(*state.ReadTx) bool // nil: always; else nothing is done when it does not
	// admits refuses by state; nil allows every state.
	admits func(*fleet.VM, *fleet.Task) error
}

// claimEnd makes the intent durable. A row that is destroying already keeps
// its first reason. No row and no error means that the life is over.
func (s *ender) claimEnd(e end) (*fleet.VM, error) {
	var found *fleet.VM
	var again bool
	look := func(tx *state.ReadTx) error {
		var err error
		found, again = nil, false
		if e.holds != nil && !e.holds(tx) {
			return nil
		}
		if found, err = e.find(tx); err != nil || found == nil {
			return err
		}
		again = found.State == fleet.VMStateDestroying
		if e.admits == nil {
			return nil
		}
		task, _ := tx.Tasks().Get(found.TaskID)
		return e.admits(found, task)
	}
	if err := s.cfg.Store.View(look); err != nil || found == nil || again {
		return found, err
	}
	if err := failpoint.Hit("lifecycle.destroy.intent"); err != nil {
		return nil, err
	}
	var row fleet.VM
	commit, err := s.cfg.Store.Update(s.base, func(tx *state.Tx) error {
		if err := look(&tx.ReadTx); err != nil || found == nil || again {
			return err
		}
		row = *found
		row.Generation++
		return ending.Claim(tx, &row, e.reason, e.task)
	})
	if err != nil || found == nil || again {
		return found, err
	}
	row.Revision = commit.Revision
	s.log.Info("environment destroying", slog.String("vm_id", row.ID), slog.String("uid", row.UID), slog.String("host_id", row.HostID),
		slog.String("task_id", row.TaskID), slog.String("rule", e.reason.Rule), slog.String("actor", e.reason.Actor))
	s.interrupt(row.UID)
	return &row, nil
}

// find looks the life up. It is nil without an error when the life, or the
// last one of that id within the retention, has ended.
func (e end) find(tx *state.ReadTx) (*fleet.VM, error) {
	vm, ok := tx.VMs().Get(e.id)
	if ok && e.visible != nil && !e.visible(vm.Owner) {
		return nil, notFound(e.id)
	}
	if ok && (e.uid == "" || vm.UID == e.uid) {
		return vm, nil
	}
	if e.uid != "" {
		return nil, nil
	}
	life, ok := tx.Lives().Latest(e.id)
	switch {
	case !ok || time.Since(life.EndedAt) > fleet.LifeRetention || e.visible != nil && !e.visible(life.Owner):
		return nil, notFound(e.id)
	case e.admits != nil && life.Reason.Rule != e.reason.Rule:
		// A verb that depends on the state cannot succeed on an ended life,
		// unless it is what ended it.
		return nil, notFound(e.id)
	default:
		return nil, nil
	}
}

// flight is one teardown that everybody who wants it waits for.
type flight struct {
	done chan struct{}
	err  error // valid once done is closed
}

// tearDown starts the teardown of a life or joins the one in flight. It belongs
// to the trace of ctx, but not to its end.
func (s *ender) tearDown(ctx context.Context, vm *fleet.VM) (*flight, error) {
	done, err := s.begin()
	if err != nil {
		return nil, &PendingError{VMID: vm.ID, HostID: vm.HostID, cause: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights[vm.UID]; f != nil {
		done()
		return f, nil
	}
	f := &flight{done: make(chan struct{})}
	s.flights[vm.UID] = f
	go func() {
		defer done()
		ctx, span := tracing.Start(tracing.Carry(ctx, s.base), "destroy")
		span.Set(tracing.VMID, vm.ID)
		span.Set(tracing.UID, vm.UID)
		span.Set(tracing.HostID, vm.HostID)
		span.Set(tracing.TaskID, vm.TaskID)
		f.err = s.runTearDown(ctx, vm.ID, vm.UID)
		span.End(f.err)
		s.mu.Lock()
		delete(s.flights, vm.UID)
		s.mu.Unlock()
		close(f.done)
	}()
	return f, nil
}

// runTearDown waits for what works on the environment, has the host clear
// everything, then ends the life.
func (s *ender) runTearDown(ctx context.Context, id, uid string) (err error) {
	defer s.recovered(id, "destroy", &err)
	unlock, err := s.locks.Take(ctx, id)
	if err != nil {
		return &PendingError{VMID: id, cause: err}
	}
	defer unlock()
	var row fleet.VM
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		if vm, ok := tx.VMs().Get(id); ok && vm.UID == uid {
			row = *vm
		}
		return nil
	}); err != nil {
		return err
	}
	if row.UID == "" {
		return nil
	}
	log := s.log.With(slog.String("vm_id", id), slog.String("uid", uid), slog.String("host_id", row.HostID), slog.String("task_id", row.TaskID))
	ref := provider.Ref{ID: id, UID: uid, Generation: row.Generation, OpID: newULID()}
	if err := s.destroyAtHost(ctx, row.HostID, ref); err != nil {
		log.Warn("destroy not confirmed by the host", slog.Any("error", err))
		return &PendingError{VMID: id, HostID: row.HostID, cause: err}
	}
	if err := failpoint.Hit("lifecycle.destroy.settle"); err != nil {
		return &PendingError{VMID: id, HostID: row.HostID, cause: err}
	}
	if err := s.settleEnd(ctx, id, uid); err != nil {
		log.Warn("end not recorded", slog.Any("error", err))
		return &PendingError{VMID: id, HostID: row.HostID, cause: err}
	}
	log.Info("environment ended")
	return nil
}

func (s *ender) settleEnd(ctx context.Context, id, uid string) (err error) {
	ctx, span := tracing.Start(ctx, "destroy settle")
	defer func() { span.End(err) }()
	return s.persist(ctx, func(tx *state.Tx) error {
		vm, ok := tx.VMs().Get(id)
		if !ok || vm.UID != uid {
			return nil
		}
		return ending.Remove(tx, *vm)
	})
}
