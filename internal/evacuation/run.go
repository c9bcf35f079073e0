package evacuation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

const (
	// firstPause and longestPause are between tries with a life that something
	// went wrong with.
	firstPause   = 2 * time.Second
	longestPause = time.Minute
)

// job is one thing to do with one environment.
type job struct {
	drain    fleet.HostDrain
	vm       fleet.VM
	action   action
	evidence string
}

// Run empties the hosts that are being drained until ctx ends, and waits for
// what it began. It returns the error of a store that this process no longer
// owns.
func (s *Service) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		if err := s.step(ctx, &work); errors.Is(err, fleet.ErrNotLeader) {
			return err
		} else if err != nil && ctx.Err() == nil {
			s.log.Warn("drains of hosts wait", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// step begins what can be begun now on every host that is being drained.
func (s *Service) step(ctx context.Context, work *sync.WaitGroup) error {
	hosts, jobs, err := s.plan(time.Now())
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if !s.take(j) {
			continue
		}
		work.Go(func() {
			defer s.release(j)
			s.do(ctx, j)
		})
	}
	var errs []error
	for id := range hosts {
		errs = append(errs, s.progress(ctx, id))
	}
	return errors.Join(errs...)
}

// plan reads which hosts are being drained, and what there is to do.
func (s *Service) plan(now time.Time) (hosts map[string]bool, jobs []job, err error) {
	hosts = map[string]bool{}
	drains := map[string]bool{}
	alive := map[string]bool{}
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		for h := range tx.Hosts().All() {
			if h.Drain == nil {
				continue
			}
			hosts[h.ID], drains[h.Drain.ID] = true, true
			for vm := range tx.VMs().ByHost(h.ID) {
				alive[vm.UID] = true
				if a, evidence := decide(h.Drain, vm, now); a != wait {
					jobs = append(jobs, job{*h.Drain, *vm, a, evidence})
				}
			}
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for u := range s.failed {
		if !alive[u] {
			delete(s.failed, u)
		}
	}
	for id := range s.told {
		if !drains[id] {
			delete(s.told, id)
		}
	}
	return hosts, jobs, err
}

// take reserves a place for a job; false if there is none, if its life is being
// worked on, or if it went wrong a moment ago.
func (s *Service) take(j job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, busy := s.busy[j.vm.UID]; busy {
		return false
	}
	if f := s.failed[j.vm.UID]; f.n > 0 && time.Since(f.at) < min(firstPause<<min(f.n-1, 10), longestPause) {
		return false
	}
	there := 0
	for _, host := range s.busy {
		if host == j.vm.HostID {
			there++
		}
	}
	if there >= perHost {
		return false
	}
	select {
	case s.slots <- struct{}{}:
	default:
		return false
	}
	s.busy[j.vm.UID] = j.vm.HostID
	return true
}

func (s *Service) release(j job) {
	<-s.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, j.vm.UID)
}

// do does one thing with one environment. At the deadline, whatever is being
// done for it is broken off.
func (s *Service) do(ctx context.Context, j job) {
	reason := fleet.Reason{Actor: j.drain.Actor, Rule: fleet.RuleHostDrained, Evidence: j.evidence}
	var err error
	switch {
	case !s.still(j):
		return
	case j.action == end:
		err = s.cfg.Lives.DestroyLifeWhile(ctx, j.vm.ID, j.vm.UID, reason, j.underWay)
	default:
		until, cancel := context.WithDeadline(ctx, j.drain.Deadline)
		defer cancel()
		err = s.leave(until, j, reason)
		if until.Err() != nil && ctx.Err() == nil {
			return // it is ended now, whatever came of it
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || ctx.Err() != nil {
		delete(s.failed, j.vm.UID)
		return
	}
	f := s.failed[j.vm.UID]
	s.failed[j.vm.UID] = failure{time.Now(), f.n + 1}
	s.log.Warn("environment of a host that is being drained", slog.String("vm_id", j.vm.ID), slog.String("host_id", j.vm.HostID), slog.Int("tries", f.n+1), slog.Any("error", err))
}

// leave moves an environment, or has its services stopped where it is.
func (s *Service) leave(ctx context.Context, j job, reason fleet.Reason) error {
	if s.cfg.Mover != nil {
		reason.Evidence = "host " + j.vm.HostID + " is being drained"
		switch moved, err := s.cfg.Mover.Move(ctx, j.vm, reason); {
		case err != nil:
			s.log.Warn("environment not moved", slog.String("vm_id", j.vm.ID), slog.String("host_id", j.vm.HostID), slog.Any("error", err))
		case moved:
			return nil
		}
		if !s.still(j) {
			return nil
		}
	}
	_, err := s.cfg.Lives.DrainLifeWhile(ctx, j.vm.ID, j.vm.UID, j.drain.Actor, j.underWay)
	switch {
	case errors.Is(err, fleet.ErrVMNotRunning), fleet.CodeOf(err) == fleet.CodeNotFound:
		return nil // it went another way meanwhile
	case err != nil && s.drained(j.vm.UID):
		return nil // it is recorded, and the grace counts from there
	case err != nil && !s.still(j):
		return nil // cancelled meanwhile
	}
	return err
}

// still reports whether the drain that a job belongs to is under way.
func (s *Service) still(j job) (yes bool) {
	// The closure never fails.
	_ = s.cfg.Store.View(func(tx *state.ReadTx) error {
		yes = j.underWay(tx)
		return nil
	})
	return yes
}

// underWay is asked once more where a life is claimed: a cancel that was
// answered before must be what counts.
func (j job) underWay(tx *state.ReadTx) bool {
	h, ok := tx.Hosts().Get(j.vm.HostID)
	return ok && h.Drain != nil && h.Drain.ID == j.drain.ID
}

func (s *Service) drained(lifeUID string) (yes bool) {
	_ = s.cfg.Store.View(func(tx *state.ReadTx) error {
		vm, ok := tx.VMs().GetUID(lifeUID)
		yes = ok && vm.State == fleet.VMStateDraining
		return nil
	})
	return yes
}

// progress tells how far a host has come, and that it is empty.
func (s *Service) progress(ctx context.Context, hostID string) error {
	var drain *fleet.HostDrain
	var now counts
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		if h, ok := tx.Hosts().Get(hostID); ok {
			drain, now = h.Drain, count(tx, hostID)
		}
		return nil
	}); err != nil || drain == nil {
		return err
	}
	s.mu.Lock()
	before, known := s.told[drain.ID]
	s.told[drain.ID] = now
	s.mu.Unlock()
	if before == now && known && now.left() > 0 || !known && now.left() == drain.Total && now.left() > 0 {
		return nil
	}
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(hostID)
		if !ok || h.Drain == nil || h.Drain.ID != drain.ID {
			return nil
		}
		n := count(&tx.ReadTx, hostID)
		why := fleet.Reason{Actor: drain.Actor, Rule: fleet.RuleHostDrained, Evidence: fmt.Sprintf("%d of %d environments are left", n.left(), drain.Total)}
		if n.left() > 0 {
			tx.Emit(event(hostID, fleet.EventHostDrainProgress, why, progressPayload{n, drain.Total, n.left()}))
			return nil
		}
		tx.Emit(event(hostID, fleet.EventHostDrained, why, progressPayload{n, drain.Total, 0}))
		row := *h
		row.State, row.Drain, row.UpdatedAt = fleet.HostCordoned, nil, tx.Now()
		return tx.PutHost(row)
	})
	if err != nil {
		s.mu.Lock()
		delete(s.told, drain.ID) // to be told again
		s.mu.Unlock()
		return err
	}
	if now.left() == 0 {
		s.log.Info("host is drained", slog.String("host_id", hostID))
	}
	return nil
}
