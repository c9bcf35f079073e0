package guestops

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Admit decides whether an actor may do something in an environment.
type Admit = func(ctx context.Context, actor, verb string, params map[string]string) error

// Store is the part of the state owner that guestops uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
}

// Providers finds the provider of a registered host.
type Providers interface {
	Provider(hostID string) (provider.Provider, error)
}

const (
	// grace is how much longer than the command's own timeout the call to the
	// host may take before it is given up.
	grace = 15 * time.Second
	// defaultConcurrent bounds the commands at a time over all environments.
	defaultConcurrent = 512
)

// Config wires a Service. Store and Providers are needed.
type Config struct {
	Store     Store
	Providers Providers
	// Wake lets a paused environment go on that somebody uses, and returns it as
	// it is then; nil: what stands still is refused by its host.
	Wake func(ctx context.Context, vm *fleet.VM, actor string) (*fleet.VM, error)
	// Admit is asked before every verb; nil allows all.
	Admit Admit
	// Concurrent commands at a time; more are refused. Zero is 512.
	Concurrent int
}

// Service runs commands in environments.
type Service struct {
	cfg      Config
	slots    chan struct{}
	sessions chan struct{}
	activity *activity
	output   *budget
}

// New makes the service.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Providers == nil {
		return nil, errors.New("guestops config: store and providers are needed")
	}
	if cfg.Admit == nil {
		cfg.Admit = func(context.Context, string, string, map[string]string) error { return nil }
	}
	if cfg.Concurrent <= 0 {
		cfg.Concurrent = defaultConcurrent
	}
	return &Service{cfg: cfg, slots: make(chan struct{}, cfg.Concurrent), sessions: make(chan struct{}, defaultSessions), activity: newActivity(), output: &budget{left: outputTotal}}, nil
}

// Exec runs a command and buffers its output, at most 8 MiB a stream, less when
// many large outputs are buffered at once. A timeout is no error: the result
// says so, with exit code 124.
func (s *Service) Exec(ctx context.Context, id string, req ExecRequest) (provider.ExecResult, error) {
	spec, err := req.spec()
	if err != nil {
		return provider.ExecResult{}, err
	}
	spec.Timeout = provider.ClampExecTimeout(spec.Timeout)
	var res provider.ExecResult
	err = s.run(ctx, target{id: id, actor: req.Actor, verb: "exec", spec: spec}, func(ctx context.Context, env provider.Environment) error {
		limit := spec.Timeout + grace
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate(id, limit))
		defer cancel()
		stdout, stderr := &capped{budget: s.output}, &capped{budget: s.output}
		defer stdout.free()
		defer stderr.free()
		status, err := env.ExecStream(ctx, spec, fleet.Stdio{Stdin: req.stdin(), Stdout: stdout, Stderr: stderr})
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		res = provider.ExecResult{
			ExecStatus: status, Stdout: stdout.buf, Stderr: stderr.buf, Truncated: stdout.over || stderr.over,
		}
		return err
	})
	if err != nil {
		return provider.ExecResult{}, err
	}
	return res, nil
}

// ExecStream runs a command with its streams wired. It has no timeout but the
// request's own; ending ctx kills the command.
func (s *Service) ExecStream(ctx context.Context, id string, req ExecRequest, io fleet.Stdio) (fleet.ExecStatus, error) {
	spec, err := req.spec()
	if err != nil {
		return fleet.ExecStatus{}, err
	}
	if io.Stdin == nil {
		io.Stdin = req.stdin()
	}
	var status fleet.ExecStatus
	err = s.run(ctx, target{id: id, actor: req.Actor, verb: "exec", spec: spec}, func(ctx context.Context, env provider.Environment) error {
		var err error
		status, err = env.ExecStream(ctx, spec, io)
		return err
	})
	return status, err
}

type target struct {
	id, actor, verb string
	spec            fleet.ExecSpec
}

// run admits a call, finds the running environment, counts the call as
// activity and makes errors of the call fit for callers.
func (s *Service) run(ctx context.Context, t target, call func(context.Context, provider.Environment) error) error {
	if err := s.cfg.Admit(ctx, t.actor, t.verb, map[string]string{"id": t.id, "command": t.spec.Argv[0]}); err != nil {
		return err
	}
	vm, err := s.running(ctx, t.id, false)
	if err != nil {
		return err
	}
	p, err := s.cfg.Providers.Provider(vm.HostID)
	if err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		n := strconv.Itoa(cap(s.slots))
		return fleet.Errorf(fleet.CodeUnavailable, "%s commands run already", n).
			With(fleet.DetailScope, "commands at a time").With(fleet.DetailLimit, n).With(fleet.DetailUsage, n).
			With(fleet.DetailRemedy, "try again when some have ended").With("retry_after", "1")
	}
	end, err := s.Begin(vm.UID)
	if err != nil {
		return err
	}
	defer end()
	if vm, err = s.awake(ctx, vm, t.actor); err != nil {
		return err
	}
	env := p.Open(provider.Ref{ID: vm.ID, UID: vm.UID, Generation: vm.Generation, OpID: uid.New()})
	if err := call(ctx, env); err != nil {
		return s.explain(ctx, vm, err)
	}
	return nil
}

func (s *Service) running(ctx context.Context, id string, looks bool) (*fleet.VM, error) {
	var found *fleet.VM
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		vm, ok := tx.VMs().Get(id)
		if !ok || !auth.Visible(ctx)(vm.Owner) {
			return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound).With(fleet.DetailScope, id)
		}
		if vm.State != fleet.VMStateRunning && (!looks || vm.State != fleet.VMStateDraining) {
			return fleet.Errorf(fleet.CodeConflict, "cannot run a command in environment %s while it is %s: %w", id, vm.State, fleet.ErrVMNotRunning).
				With(fleet.DetailScope, id).With(fleet.DetailUsage, "state "+string(vm.State))
		}
		found = vm
		return nil
	})
	return found, err
}

// awake lets an environment go on that stands still. The use has begun by then,
// so nobody pauses it again for want of one; whether one did before is read anew.
func (s *Service) awake(ctx context.Context, vm *fleet.VM, actor string) (*fleet.VM, error) {
	if s.cfg.Wake == nil {
		return vm, nil
	}
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		if now, ok := tx.VMs().GetUID(vm.UID); ok {
			vm = now
		}
		return nil
	}); err != nil || vm.Paused == nil {
		return vm, err
	}
	return s.cfg.Wake(ctx, vm, actor)
}

func errLate(id string, limit time.Duration) error {
	return fleet.Errorf(fleet.CodeDeadlineExceeded, "the host of environment %s did not answer within %s: %w", id, limit, context.DeadlineExceeded).
		With(fleet.DetailLimit, limit.String())
}

// explain makes the error of a command that could not be run or watched. One
// that lost its environment meanwhile says so instead of how it noticed.
func (s *Service) explain(ctx context.Context, vm *fleet.VM, err error) error {
	if ctx.Err() != nil {
		return err
	}
	var now *fleet.VM
	if verr := s.cfg.Store.View(func(tx *state.ReadTx) error {
		now, _ = tx.VMs().GetUID(vm.UID)
		return nil
	}); verr == nil && (now == nil || now.State == fleet.VMStateDestroying) {
		return fleet.Wrap(fleet.CodeConflict, outcomeOpen(err), fmt.Sprintf("environment %s ended while the command ran", vm.ID)).With(fleet.DetailScope, vm.ID)
	}
	if errors.Is(err, fleet.ErrStaleTerm) {
		return fleet.Wrap(fleet.CodeUnavailable, err, "this server does not lead the fleet any more")
	}
	if fleet.CodeOf(err) != fleet.CodeInternal {
		return err
	}
	return fleet.Wrap(fleet.CodeUnavailable, outcomeOpen(err), fmt.Sprintf("the command in environment %s could not be run or watched", vm.ID)).
		With(fleet.DetailScope, vm.ID).With(fleet.DetailHostID, vm.HostID)
}

// outcomeOpen marks an error after which the command may have run, so that
// nobody runs it again as if it had not.
func outcomeOpen(err error) error { return errors.Join(provider.ErrNoAnswer, err) }
