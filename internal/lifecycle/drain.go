package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/ending"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// drainedOK is DrainResult after a drain without failure.
const drainedOK = "ok"

// drainer drains environments.
type drainer struct{ *core }

// Drain stops the services of a running environment; it stays up and draining
// whatever comes of it, and there is no way back. The error of a drain that
// did not succeed comes with the row.
func (s *Service) Drain(ctx context.Context, id, actor string) (*fleet.VM, error) {
	return s.drainer.start(ctx, id, "", actor, nil)
}

// DrainLifeWhile is Drain for one life: it never touches another one that has
// the same id, and is a conflict unless holds does when the drain is claimed.
func (s *Service) DrainLifeWhile(ctx context.Context, id, uid, actor string, holds func(*state.ReadTx) bool) (*fleet.VM, error) {
	return s.drainer.start(ctx, id, uid, actor, holds)
}

func (s *drainer) start(ctx context.Context, id, uid, actor string, holds func(*state.ReadTx) bool) (*fleet.VM, error) {
	if err := s.cfg.Admit(ctx, actor, "drain", map[string]string{"id": id}); err != nil {
		return nil, err
	}
	stop, err := s.begin()
	if err != nil {
		return nil, err
	}
	vm, err := s.claim(ctx, id, uid, actor, holds)
	if err != nil {
		stop()
		return nil, err
	}
	j := s.newJob(ctx, vm.UID)
	go func() {
		defer stop()
		defer s.drop(j)
		j.answer(s.run(j.ctx, vm))
	}()
	select {
	case <-j.done:
		return j.vm, j.err
	case <-ctx.Done():
		return vm, fleet.Wrap(fleet.CodeDeadlineExceeded, ctx.Err(), fmt.Sprintf("environment %s is still draining", id))
	}
}

func (s *drainer) claim(ctx context.Context, id, uid, actor string, holds func(*state.ReadTx) bool) (*fleet.VM, error) {
	var row fleet.VM
	commit, err := s.cfg.Store.Update(s.base, func(tx *state.Tx) error {
		vm, ok := tx.VMs().Get(id)
		if !ok || uid != "" && vm.UID != uid || !auth.Visible(ctx)(vm.Owner) {
			return notFound(id)
		}
		if holds != nil && !holds(&tx.ReadTx) {
			return fleet.Errorf(fleet.CodeConflict, "environment %s is not to be drained any more", id)
		}
		if vm.State != fleet.VMStateRunning {
			return notRunning(vm, "drain")
		}
		if a := vm.Activity(); a != "" {
			return fleet.Errorf(fleet.CodeConflict, "cannot drain environment %s while it is %s", id, a).
				With(fleet.DetailScope, id).With(fleet.DetailRemedy, "resume it first: fuse resume "+id)
		}
		row = *vm
		row.State, row.UpdatedAt = fleet.VMStateDraining, tx.Now()
		row.Generation++
		if err := tx.PutVM(row); err != nil {
			return err
		}
		tx.Emit(ending.VMEvent(&row, fleet.EventVMDraining, fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}))
		return nil
	})
	if err != nil {
		return nil, err
	}
	row.Revision = commit.Revision
	return &row, nil
}

// run does the host's part and records what came of it, unless a destroy
// has taken over.
func (s *drainer) run(ctx context.Context, vm *fleet.VM) (*fleet.VM, error) {
	unlock, err := s.locks.Take(ctx, vm.ID)
	if err != nil {
		return vm, drainOvertaken(vm, err)
	}
	defer unlock()
	err = s.atHost(ctx, vm)
	if cause := causeOf(ctx, err); errors.Is(cause, errTaken) || errors.Is(cause, errStopping) {
		return vm, drainOvertaken(vm, cause)
	}
	row, recErr := s.record(vm, err)
	if recErr != nil {
		return vm, drainOvertaken(vm, recErr)
	}
	if err != nil {
		s.log.Warn("drain did not succeed", slog.String("vm_id", vm.ID), slog.String("host_id", vm.HostID), slog.Any("error", err))
	}
	return row, err
}

func drainOvertaken(vm *fleet.VM, cause error) error {
	if errors.Is(cause, errTaken) {
		return fleet.Wrap(fleet.CodeConflict, cause, fmt.Sprintf("environment %s was destroyed while it drained", vm.ID))
	}
	return fleet.Wrap(fleet.CodeUnavailable, cause, fmt.Sprintf("the drain of %s was given up", vm.ID))
}

func (s *drainer) atHost(ctx context.Context, vm *fleet.VM) (err error) {
	defer s.recovered(vm.ID, "drain", &err)
	p, err := s.cfg.Providers.Provider(vm.HostID)
	if err != nil {
		return drainError(vm, err)
	}
	env := p.Open(provider.Ref{ID: vm.ID, UID: vm.UID, Generation: vm.Generation, OpID: drainOp(vm)})
	status, err := bounded(ctx, s.cfg.Limits.Drain, func(ctx context.Context) (fleet.ExecStatus, error) {
		return env.Drain(ctx, vm.DrainCommand)
	})
	switch {
	case err != nil:
		return drainError(vm, err)
	case status.ExitCode != 0:
		return fleet.Errorf(fleet.CodeInternal, "environment %s is draining, but stopping its services ended with exit code %d", vm.ID, status.ExitCode).
			With("exit_code", strconv.Itoa(status.ExitCode))
	default:
		return nil
	}
}

// drainOp names the one drain of a claim, so that a host which is asked again by
// the next process answers with its outcome instead of beginning another.
func drainOp(vm *fleet.VM) string {
	return "drain-" + vm.UID + "-" + strconv.FormatInt(vm.Generation, 10)
}

// ResumeDrain goes on with a drain that an earlier process began and whose
// outcome is not recorded, and returns when it is.
func (s *Service) ResumeDrain(ctx context.Context, id, uid string) error {
	stop, err := s.core.begin()
	if err != nil {
		return err
	}
	defer stop()
	var vm *fleet.VM
	if err := s.core.cfg.Store.View(func(tx *state.ReadTx) error {
		row, ok := tx.VMs().GetUID(uid)
		if ok && row.ID == id && row.State == fleet.VMStateDraining && row.DrainResult == "" {
			vm = row
		}
		return nil
	}); err != nil || vm == nil {
		return err
	}
	j := s.core.newJob(ctx, uid)
	defer s.core.drop(j)
	j.answer(s.drainer.run(j.ctx, vm))
	return j.err
}

func drainError(vm *fleet.VM, err error) error {
	code := fleet.CodeOf(err)
	if code == fleet.CodeInternal {
		code = fleet.CodeUnavailable
	}
	return fleet.Wrap(code, err, fmt.Sprintf("environment %s is draining, but its services may still run", vm.ID)).
		With(fleet.DetailHostID, vm.HostID)
}

func (s *drainer) record(vm *fleet.VM, failure error) (*fleet.VM, error) {
	var row fleet.VM
	err := s.persist(s.base, func(tx *state.Tx) error {
		now, ok := tx.VMs().Get(vm.ID)
		if !ok || now.UID != vm.UID || now.Generation != vm.Generation {
			return errTaken
		}
		row = *now
		row.DrainResult, row.UpdatedAt = drainedOK, tx.Now()
		ev := ending.VMEvent(&row, fleet.EventVMDrained, byItself(fleet.RuleSettled))
		if failure != nil {
			row.DrainResult = message(failure)
			ev.Type, ev.Error = fleet.EventVMDrainFailed, row.DrainResult
		}
		ev.State = ""
		if err := tx.PutVM(row); err != nil {
			return err
		}
		tx.Emit(ev)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &row, nil
}
