// Package pausing lets environments stand still and go on: a paused one keeps
// memory and disk and takes neither CPU nor RAM. Claim, act, settle; what a
// crash leaves in between is brought to run again.
package pausing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/keylock"
	"github.com/fusevm/fuse/internal/persist"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Store is the part of the state owner that is used.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Providers finds the provider of a registered host.
type Providers interface {
	Provider(hostID string) (provider.Provider, error)
}

// Config wires a Service. Store, Providers, Admission and Logger are needed.
type Config struct {
	Store     Store
	Providers Providers
	Admission *admission.Desk
	Logger    *slog.Logger
	// Locks are by id of the environment, shared with what else may not happen to
	// it meanwhile. nil: of its own.
	Locks *keylock.Lock
	// Admit is asked before every verb; nil allows all.
	Admit func(ctx context.Context, actor, verb string, params map[string]string) error
	// Done is told of what nobody asked for by name: idle_pause and wake, once each
	// has ended. May be nil.
	Done func(verb string, took time.Duration, err error)
	// Timeout bounds one call to a host; zero is ten minutes. WakeTimeout bounds
	// how long a use of a paused environment waits for it; zero is two minutes.
	Timeout, WakeTimeout time.Duration
	// AtOnce bounds the pauses and resumes at a time; zero is 16.
	AtOnce int
}

// Service pauses and resumes. Run does what a crash left to be done.
type Service struct {
	cfg   Config
	log   *slog.Logger
	base  context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup
	slots chan struct{}
	doing provider.Doing // by uid

	mu      sync.Mutex
	closing bool
	waking  map[string]*wake // by uid; guarded by mu
	busy    map[string]int   // by id of the environment: changes under way; guarded by mu
}

// wake is one resume that everybody who uses the environment waits for.
type wake struct {
	done chan struct{}
	vm   *fleet.VM // valid once done is closed
	err  error
}

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Providers == nil || cfg.Admission == nil || cfg.Logger == nil {
		return nil, errors.New("pausing config: store, providers, admission and logger are needed")
	}
	if cfg.Locks == nil {
		cfg.Locks = &keylock.Lock{}
	}
	if cfg.Admit == nil {
		cfg.Admit = func(context.Context, string, string, map[string]string) error { return nil }
	}
	if cfg.Done == nil {
		cfg.Done = func(string, time.Duration, error) {}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Minute
	}
	if cfg.WakeTimeout <= 0 {
		cfg.WakeTimeout = 2 * time.Minute
	}
	if cfg.AtOnce <= 0 {
		cfg.AtOnce = 16
	}
	s := &Service{cfg: cfg, log: cfg.Logger, slots: make(chan struct{}, cfg.AtOnce), waking: map[string]*wake{}, busy: map[string]int{}}
	s.base, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Close refuses new work and waits for what is under way until ctx ends; the
// rest is left to the next start.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	return persist.Finish(ctx, &s.work, func() { s.stop() })
}

// Pause lets a running environment stand still. A pause that fails leaves it
// running; one that stands still already is success.
func (s *Service) Pause(ctx context.Context, id, actor string) (*fleet.VM, error) {
	if err := s.cfg.Admit(ctx, actor, "pause", map[string]string{"id": id}); err != nil {
		return nil, err
	}
	return s.detached(ctx, "the pause of "+id, func(ctx context.Context) (*fleet.VM, error) {
		return s.pause(ctx, change{id: id, sees: auth.Visible(ctx), reason: fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}})
	})
}

// PauseLife pauses one life for want of use, unless it is another by now; see
// converge.Pauser. What still refuses is no pause, and is not counted as one.
func (s *Service) PauseLife(ctx context.Context, id, lifeUID string, reason fleet.Reason, still func() (done func(), err error)) error {
	_, err := s.detached(ctx, "the pause of "+id, func(ctx context.Context) (*fleet.VM, error) {
		began, givenUp := time.Now(), false
		c := change{id: id, uid: lifeUID, sees: everybody, reason: reason}
		if still != nil {
			c.still = func() (done func(), err error) {
				done, err = still()
				givenUp = err != nil
				return done, err
			}
		}
		vm, err := s.pause(ctx, c)
		if !givenUp {
			s.cfg.Done("idle_pause", time.Since(began), err)
		}
		return vm, err
	})
	return err
}

// Resume lets a paused environment go on, if its host has room for it. One that
// runs is success.
func (s *Service) Resume(ctx context.Context, id, actor string) (*fleet.VM, error) {
	if err := s.cfg.Admit(ctx, actor, "resume", map[string]string{"id": id}); err != nil {
		return nil, err
	}
	return s.detached(ctx, "the resume of "+id, func(ctx context.Context) (*fleet.VM, error) {
		return s.resume(ctx, change{id: id, sees: auth.Visible(ctx), reason: fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}})
	})
}

// Wake lets an environment that somebody uses go on, and returns it as it is
// then. Those who use it at a time wait for one resume.
func (s *Service) Wake(ctx context.Context, vm *fleet.VM, actor string) (*fleet.VM, error) {
	if vm.Paused == nil {
		return vm, nil
	}
	s.mu.Lock()
	w := s.waking[vm.UID]
	if w == nil {
		if s.closing {
			s.mu.Unlock()
			return nil, stopping()
		}
		w = &wake{done: make(chan struct{})}
		s.waking[vm.UID] = w
		s.work.Go(func() {
			ctx, cancel := context.WithTimeout(s.base, s.cfg.Timeout)
			defer cancel()
			began := time.Now()
			w.vm, w.err = s.resume(ctx, change{id: vm.ID, uid: vm.UID, sees: everybody, reason: fleet.Reason{Actor: actor, Rule: fleet.RuleUsed}})
			s.cfg.Done("wake", time.Since(began), w.err)
			s.mu.Lock()
			delete(s.waking, vm.UID)
			s.mu.Unlock()
			close(w.done)
		})
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.WakeTimeout)
	defer cancel()
	select {
	case <-w.done:
		return w.vm, w.err
	case <-ctx.Done():
		return nil, fleet.Wrap(fleet.CodeDeadlineExceeded, ctx.Err(), fmt.Sprintf("environment %s was paused and is still being resumed", vm.ID)).
			With(fleet.DetailScope, vm.ID).With(fleet.DetailRemedy, "try again in a moment").With("retry_after", "2")
	}
}

func everybody(string) bool { return true }

func stopping() error {
	return fleet.Errorf(fleet.CodeUnavailable, "the server is stopping").With(fleet.DetailRemedy, "try again shortly")
}

// detached does work in the service's own time: it goes on when the caller
// leaves.
func (s *Service) detached(ctx context.Context, what string, work func(context.Context) (*fleet.VM, error)) (*fleet.VM, error) {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil, stopping()
	}
	s.work.Add(1)
	s.mu.Unlock()
	done := make(chan wake, 1)
	go func() {
		defer s.work.Done()
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(s.base, cancel)()
		vm, err := work(ctx)
		done <- wake{vm: vm, err: err}
	}()
	select {
	case w := <-done:
		return w.vm, w.err
	case <-ctx.Done():
		return nil, fleet.Wrap(fleet.CodeDeadlineExceeded, ctx.Err(), what+" goes on").With(fleet.DetailRemedy, "look at it later")
	}
}

// change is what is to be done with one environment.
type change struct {
	id, uid string // uid empty: whichever life there is
	sees    func(owner string) bool
	reason  fleet.Reason
	still   func() (done func(), err error) // nil: whatever it is used for
}

func (c *change) find(tx *state.ReadTx) (fleet.VM, error) {
	vm, ok := tx.VMs().Get(c.id)
	if !ok || !c.sees(vm.Owner) || c.uid != "" && vm.UID != c.uid {
		return fleet.VM{}, fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", c.id, fleet.ErrVMNotFound).With(fleet.DetailScope, c.id)
	}
	return *vm, nil
}

// slot bounds what is under way at hosts.
func (s *Service) slot(ctx context.Context) (release func(), err error) {
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	case <-ctx.Done():
		return nil, stopping()
	}
}

// at says that a change of an environment is under way until the result is
// called.
func (s *Service) at(id string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy[id]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.busy[id]--; s.busy[id] == 0 {
			delete(s.busy, id)
		}
	}
}

func (s *Service) pause(ctx context.Context, c change) (*fleet.VM, error) {
	defer s.at(c.id)()
	unlock, err := s.cfg.Locks.Take(ctx, c.id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	decided := func() {}
	if c.still != nil {
		if decided, err = c.still(); err != nil {
			return nil, err
		}
	}
	vm, err := s.claimPause(ctx, &c)
	decided()
	if err != nil || vm.Activity() == fleet.ActivityPaused {
		return vm, err
	}
	release, err := s.slot(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	var kept int64
	err = failpoint.Hit("pausing.pause.claimed")
	if err == nil {
		kept, err = s.pauseAtHost(ctx, vm)
	}
	if err == nil {
		err = failpoint.Hit("pausing.pause.done")
	}
	if err == nil {
		return s.settle(vm, settled{to: fleet.ActivityPaused, event: fleet.EventVMPaused, kept: kept})
	}
	if s.base.Err() != nil {
		return nil, err // the next start brings it to run again
	}
	s.log.Warn("environment not paused", slog.String("vm_id", vm.ID), slog.String("host_id", vm.HostID), slog.Any("error", err))
	err = fit(err, "the pause of "+vm.ID)
	return nil, errors.Join(err, s.goBack(ctx, vm, err))
}

// goBack lets an environment run again whose pause failed or was not heard of.
func (s *Service) goBack(ctx context.Context, vm *fleet.VM, cause error) error {
	out, err := s.resumeAtHost(ctx, vm)
	if err != nil {
		s.log.Warn("environment may stand still", slog.String("vm_id", vm.ID), slog.Any("error", err))
		return nil // it stays pausing, and Run tries again
	}
	_, err = s.settle(vm, settled{event: fleet.EventVMPauseFailed, failure: cause, certificate: out.Certificate})
	return err
}

// claimPause makes the pause durable as an intent. Memory and CPUs count as held
// until its host has let go of them.
func (s *Service) claimPause(ctx context.Context, c *change) (*fleet.VM, error) {
	var row fleet.VM
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		var err error
		if row, err = c.find(&tx.ReadTx); err != nil {
			return err
		}
		switch {
		case row.State != fleet.VMStateRunning:
			return fleet.Errorf(fleet.CodeConflict, "cannot pause environment %s while it is %s: %w", row.ID, row.State, fleet.ErrVMNotRunning).
				With(fleet.DetailScope, row.ID).With(fleet.DetailUsage, "state "+string(row.State)).With(fleet.DetailRemedy, "wait until it runs: fuse get "+row.ID)
		case row.Activity() == fleet.ActivityPaused:
			return nil
		case row.Paused != nil:
			return fleet.Errorf(fleet.CodeConflict, "environment %s is %s", row.ID, row.Activity()).With(fleet.DetailScope, row.ID).
				With(fleet.DetailRemedy, "wait until it runs")
		case row.Spec.HasGPU():
			return fleet.Errorf(fleet.CodeConflict, "cannot pause environment %s: %w", row.ID, fleet.ErrGPUUnsupported).With(fleet.DetailScope, row.ID).
				With(fleet.DetailRemedy, "let it run, or destroy it: the state of a device cannot be kept")
		}
		if h, ok := tx.Hosts().Get(row.HostID); ok && !h.Facts.Can(fleet.CapPause) {
			return fleet.Errorf(fleet.CodeUnimplemented, "host %s cannot pause environments", h.ID).With(fleet.DetailHostID, h.ID).
				With(fleet.DetailScope, fleet.CapPause).With(fleet.DetailRemedy, "update its agent, or use a host with a driver that can")
		} else if ok && h.State == fleet.HostDraining {
			return fleet.Errorf(fleet.CodeUnavailable, "host %s is being drained: what is paused there ends with the drain", h.ID).With(fleet.DetailHostID, h.ID).
				With(fleet.DetailRemedy, "wait until the drain is over or cancel it: fuse host drain --cancel "+h.ID)
		}
		row.Paused = &fleet.Standstill{Activity: fleet.ActivityPausing, Reason: c.reason, At: tx.Now(), Op: uid.New()}
		tx.Emit(vmEvent(&row, fleet.EventVMPausing, c.reason, nil))
		return tx.PutVM(row)
	})
	return &row, err
}

func (s *Service) resume(ctx context.Context, c change) (*fleet.VM, error) {
	defer s.at(c.id)()
	unlock, err := s.cfg.Locks.Take(ctx, c.id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	vm, unsure, err := s.claimResume(ctx, &c)
	if err != nil || vm.Paused == nil {
		return vm, err
	}
	release, err := s.slot(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	var out provider.Resumed
	err = failpoint.Hit("pausing.resume.claimed")
	if err == nil {
		out, err = s.resumeAtHost(ctx, vm)
	}
	if err == nil {
		err = failpoint.Hit("pausing.resume.done")
	}
	if err == nil {
		return s.settle(vm, settled{event: fleet.EventVMResumed, certificate: out.Certificate})
	}
	if s.base.Err() != nil {
		return nil, err
	}
	s.log.Warn("environment not resumed", slog.String("vm_id", vm.ID), slog.String("host_id", vm.HostID), slog.Any("error", err))
	if !refused(err) || unsure && !final(err) {
		// It may run. Its memory stays counted, and Run asks again.
		return nil, fit(err, "the resume of "+vm.ID)
	}
	_, serr := s.settle(vm, settled{to: fleet.ActivityPaused, event: fleet.EventVMResumeFailed, failure: err, kept: vm.Paused.KeptBytes})
	return nil, errors.Join(fit(err, "the resume of "+vm.ID), serr)
}

// refused says whether a host has answered that it did nothing.
func refused(err error) bool {
	var fe *fleet.Error
	return errors.As(err, &fe) && !errors.Is(err, provider.ErrNoAnswer)
}

// claimResume takes the memory and CPUs of an environment again, if its host has
// them. unsure says that they were taken already, and it may run.
func (s *Service) claimResume(ctx context.Context, c *change) (_ *fleet.VM, unsure bool, _ error) {
	var row fleet.VM
	if err := s.cfg.Store.View(func(tx *state.ReadTx) (err error) {
		row, err = c.find(tx)
		return err
	}); err != nil {
		return nil, false, err
	}
	question := s.cfg.Admission.Prepare(again(&row))
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		now, err := c.find(&tx.ReadTx)
		if err != nil {
			return err
		}
		if now.UID != row.UID {
			return fleet.Errorf(fleet.CodeConflict, "environment %s is another one by now", c.id)
		}
		row = now
		switch {
		case row.State != fleet.VMStateRunning:
			return fleet.Errorf(fleet.CodeConflict, "cannot resume environment %s while it is %s: %w", row.ID, row.State, fleet.ErrVMNotRunning).
				With(fleet.DetailScope, row.ID).With(fleet.DetailUsage, "state "+string(row.State)).With(fleet.DetailRemedy, "wait until it runs: fuse get "+row.ID)
		case row.Paused == nil:
			return nil
		}
		p := *row.Paused
		if p.Activity == fleet.ActivityPaused {
			if _, err := question.Admit(&tx.ReadTx); err != nil {
				return err
			}
			tx.Emit(vmEvent(&row, fleet.EventVMResuming, c.reason, nil))
		}
		unsure = p.Activity != fleet.ActivityPaused
		p.Activity, p.Reason, p.Op, p.At, p.LastError = fleet.ActivityResuming, c.reason, uid.New(), tx.Now(), ""
		row.Paused = &p
		return tx.PutVM(row)
	})
	return &row, unsure, err
}

// again is what a resume asks of admission: the sizes, on the host where the
// memory is. Labels, region and image were asked for when it was made.
func again(vm *fleet.VM) admission.Request {
	return admission.Request{
		Kind: admission.Resume, Owner: vm.Owner, KeyID: vm.KeyID, Holder: vm.ID,
		Spec: fleet.Spec{CPUs: vm.Spec.CPUs, RamMB: vm.Spec.RamMB, StorageGB: vm.Spec.StorageGB, HugePages: vm.Spec.HugePages, PinnedHostID: vm.HostID},
	}
}

func (s *Service) pauser(vm *fleet.VM, op string) (provider.Pauser, error) {
	p, err := s.cfg.Providers.Provider(vm.HostID)
	if err != nil {
		return nil, err
	}
	env, ok := p.Open(provider.Ref{ID: vm.ID, UID: vm.UID, OpID: op}).(provider.Pauser)
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "the host of environment %s cannot pause", vm.ID).With(fleet.DetailHostID, vm.HostID).
			With(fleet.DetailRemedy, "use a host with a driver that can")
	}
	return env, nil
}

func (s *Service) pauseAtHost(ctx context.Context, vm *fleet.VM) (int64, error) {
	env, err := s.pauser(vm, vm.Paused.Op)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	tell, end := s.doing.Note(vm.UID)
	defer end()
	return env.Pause(ctx, tell)
}

func (s *Service) resumeAtHost(ctx context.Context, vm *fleet.VM) (provider.Resumed, error) {
	env, err := s.pauser(vm, uid.New())
	if err != nil {
		return provider.Resumed{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	tell, end := s.doing.Note(vm.UID)
	defer end()
	return env.Resume(ctx, tell)
}

// Progress is how far the pause or resumption of a life is; ok is false while its
// host does not say.
func (s *Service) Progress(uid string) (p provider.SnapshotProgress, ok bool) {
	return s.doing.Of(uid)
}

// settled is what came of a change.
type settled struct {
	to          fleet.Activity // empty: it runs
	event       string
	kept        int64
	certificate *fleet.Certificate
	failure     error
}

// settle records what came of a change, unless a destroy or a drain has taken
// over.
func (s *Service) settle(vm *fleet.VM, what settled) (*fleet.VM, error) {
	var row fleet.VM
	err := s.persist(s.base, func(tx *state.Tx) error {
		now, ok := tx.VMs().GetUID(vm.UID)
		if !ok || now.Paused == nil || now.Paused.Op != vm.Paused.Op || now.State == fleet.VMStateDestroying {
			return fleet.Errorf(fleet.CodeConflict, "environment %s was ended meanwhile", vm.ID).With(fleet.DetailScope, vm.ID)
		}
		row = *now
		why := row.Paused.Reason
		row.Paused = nil
		if what.to != "" {
			row.Paused = &fleet.Standstill{Activity: what.to, Reason: why, At: tx.Now(), KeptBytes: what.kept}
		}
		if what.certificate != nil {
			row.Certificate = what.certificate
		}
		ev := vmEvent(&row, what.event, why, map[string]any{"kept_bytes": what.kept})
		if what.failure != nil {
			ev.Error = message(what.failure)
			if row.Paused != nil {
				row.Paused.LastError = ev.Error
			}
		}
		tx.Emit(ev)
		return tx.PutVM(row)
	})
	if err != nil {
		return nil, err
	}
	s.log.Info("environment "+what.event, slog.String("vm_id", row.ID), slog.String("host_id", row.HostID), slog.Int64("kept_bytes", what.kept))
	return &row, nil
}
