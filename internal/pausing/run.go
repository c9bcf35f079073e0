package pausing

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/persist"
	"github.com/fusevm/fuse/internal/state"
)

// retryEvery is between tries to bring to run what stands in between.
const retryEvery = 5 * time.Second

// Run brings environments to run, until ctx ends, that an earlier process left
// on their way to a pause or back, and those whose host did not answer.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		if err := s.retry(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("environments on their way from a pause not looked at", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (s *Service) retry(ctx context.Context) error {
	var open []*fleet.VM
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		for vm := range tx.VMs().All() {
			if a := vm.Activity(); (a == fleet.ActivityPausing || a == fleet.ActivityResuming) && vm.State == fleet.VMStateRunning {
				open = append(open, vm)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(s.cfg.AtOnce)
	for _, vm := range open {
		s.mu.Lock()
		busy := s.busy[vm.ID] > 0
		s.mu.Unlock()
		if busy {
			continue
		}
		g.Go(func() error {
			s.finish(ctx, vm.ID, vm.UID)
			return nil
		})
	}
	return g.Wait()
}

// finish brings one life to run, if nobody else works on it.
func (s *Service) finish(ctx context.Context, id, lifeUID string) {
	unlock, err := s.cfg.Locks.Take(ctx, id)
	if err != nil {
		return
	}
	defer unlock()
	var vm *fleet.VM
	// The closure never fails.
	_ = s.cfg.Store.View(func(tx *state.ReadTx) error {
		vm, _ = tx.VMs().GetUID(lifeUID)
		return nil
	})
	if vm == nil || vm.State != fleet.VMStateRunning || vm.Activity() != fleet.ActivityPausing && vm.Activity() != fleet.ActivityResuming {
		return
	}
	out, err := s.resumeAtHost(ctx, vm)
	if err != nil {
		s.log.Info("environment still on its way from a pause", slog.String("vm_id", id), slog.String("uid", lifeUID), slog.Any("error", err))
		return
	}
	if _, err := s.settle(vm, settled{event: fleet.EventVMResumed, certificate: out.Certificate}); err != nil {
		s.log.Info("environment not settled after a pause", slog.String("vm_id", id), slog.Any("error", err))
	}
}

// persist is Update for work that must not end half done: while the store cannot
// be written it tries again until ctx ends.
func (s *Service) persist(ctx context.Context, fn func(*state.Tx) error) error {
	return persist.Update(ctx, s.cfg.Store, fn)
}

func message(err error) string {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe.Message
	}
	return "internal error"
}

// fit makes an error of a host fit for callers.
func fit(err error, what string) error {
	var fe *fleet.Error
	switch {
	case errors.Is(err, fleet.ErrStaleTerm):
		return fleet.Wrap(fleet.CodeUnavailable, err, "this server does not lead the fleet any more")
	case errors.As(err, &fe):
		return err
	}
	return fleet.Wrap(fleet.CodeInternal, err, what+" failed")
}

// vmEvent tells of a pause. It has no state: the wire's is running all along.
func vmEvent(vm *fleet.VM, typ string, why fleet.Reason, told any) fleet.Event {
	e := fleet.Event{EntityType: fleet.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: typ, Reason: &why}
	if told != nil {
		if raw, err := json.Marshal(told); err == nil { // plain maps always encode
			e.Payload = raw
		}
	}
	return e
}
