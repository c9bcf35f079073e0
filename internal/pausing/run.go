package pausing

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/persist"
	"github.com/fusevm/fuse/internal/state"
)

// retryEvery is between tries to bring to run what stands in between, of which
// perHost are made at one host at a time: one that hangs holds up its own.
const (
	retryEvery = 5 * time.Second
	perHost    = 4
)

// Run brings environments to run, until ctx ends, that an earlier process left
// on their way to a pause or back, and those whose host did not answer.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	r := retries{s: s, byHost: map[string]int{}}
	defer r.wg.Wait()
	for {
		if err := r.start(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("environments on their way from a pause not looked at", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// retries are those under way.
type retries struct {
	s  *Service
	wg sync.WaitGroup

	mu     sync.Mutex
	byHost map[string]int // guarded by mu
}

func (r *retries) start(ctx context.Context) error {
	s := r.s
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
	for _, vm := range open {
		s.mu.Lock()
		busy := s.busy[vm.ID] > 0
		s.mu.Unlock()
		if busy || !r.enter(vm.HostID) {
			continue
		}
		done := s.at(vm.ID)
		r.wg.Go(func() {
			defer r.leave(vm.HostID)
			defer done()
			s.finish(ctx, vm.ID, vm.UID)
		})
	}
	return nil
}

func (r *retries) enter(host string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byHost[host] >= perHost {
		return false
	}
	r.byHost[host]++
	return true
}

func (r *retries) leave(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byHost[host]--; r.byHost[host] == 0 {
		delete(r.byHost, host)
	}
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
		if ctx.Err() == nil { // else this process ends, which is no trouble of it
			s.stuck(vm, err)
		}
		return
	}
	if _, err := s.settle(vm, settled{event: fleet.EventVMResumed, certificate: out.Certificate}); err != nil {
		s.log.Info("environment not settled after a pause", slog.String("vm_id", id), slog.Any("error", err))
	}
}

// stuck records why a life was not brought to run. A host that will never do it
// has it stand still for good; else it is asked again.
func (s *Service) stuck(vm *fleet.VM, cause error) {
	if s.base.Err() != nil {
		return
	}
	var err error
	if final(cause) {
		_, err = s.settle(vm, settled{to: fleet.ActivityPaused, event: fleet.EventVMResumeFailed, failure: cause, kept: vm.Paused.KeptBytes})
	} else if text := message(cause); vm.Paused.LastError != text {
		_, err = s.cfg.Store.Update(s.base, func(tx *state.Tx) error {
			now, ok := tx.VMs().GetUID(vm.UID)
			if !ok || now.Paused == nil || now.Paused.Op != vm.Paused.Op {
				return nil
			}
			row, p := *now, *now.Paused
			p.LastError, row.Paused = text, &p
			return tx.PutVM(row)
		})
	}
	if err != nil {
		s.log.Info("not recorded why an environment is not brought to run", slog.String("vm_id", vm.ID), slog.Any("error", err))
	}
}

// final says whether a host has refused for good: the memory is damaged, or of
// another kind of machine than the host is now.
func final(err error) bool {
	return errors.Is(err, fleet.ErrSnapshotCorrupt) || errors.Is(err, fleet.ErrSnapshotIncompatible)
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
