package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/keylock"
	"github.com/fusevm/fuse/internal/persist"
)

// Causes with which work in flight is cancelled.
var (
	// errTaken: another claim holds the environment now and does the rest.
	errTaken = errors.New("another claim has taken the environment over")
	// errStopping: the server stops. Rows stay as they are; recovery ends what
	// was half made, so nothing is undone against a store that may be gone.
	errStopping = errors.New("the server is stopping")
)

// Service is the lifecycle of all environments. It owns every piece of work it
// starts; Close waits for all of it.
type Service struct {
	core    *core
	creator *creator
	ender   *ender
	drainer *drainer
}

// New makes the service. It does nothing until it is called.
func New(cfg Config) (*Service, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &core{cfg: cfg, log: cfg.Logger, jobs: map[string]*job{}}
	c.base, c.stop = context.WithCancelCause(context.Background())
	return &Service{
		core:    c,
		creator: &creator{core: c, steps: (&recipe{c}).steps(), slots: map[string]chan struct{}{}},
		ender:   &ender{core: c, flights: map[string]*flight{}},
		drainer: &drainer{c},
	}, nil
}

// Close refuses new work and waits for what is in flight. When ctx ends first
// the rest is abandoned where it stands, for recovery to find, and ctx's error
// comes back.
func (s *Service) Close(ctx context.Context) error { return s.core.close(ctx) }

// Interrupt cancels the work in flight on a life that was ended without its
// host, which is lost.
func (s *Service) Interrupt(uid string) { s.core.interrupt(uid) }

// core is what all verbs share: the work in flight and the way to the state
// and the hosts.
type core struct {
	cfg   Config
	log   *slog.Logger
	locks keylock.Lock    // by VM id
	base  context.Context // of all work; ends when it is abandoned
	stop  context.CancelCauseFunc
	work  sync.WaitGroup

	mu      sync.Mutex
	closing bool            // guarded by mu
	jobs    map[string]*job // creates and drains in flight by uid; guarded by mu
}

func (s *core) close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	return persist.Finish(ctx, &s.work, func() { s.stop(errStopping) })
}

// begin counts one piece of work in; the caller must call the returned end.
func (s *core) begin() (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, fleet.Wrap(fleet.CodeUnavailable, errStopping, "the server is stopping").
			With(fleet.DetailRemedy, "try again shortly")
	}
	s.work.Add(1)
	return s.work.Done, nil
}

// job is a create or a drain in flight that a destroy can interrupt.
type job struct {
	uid    string
	ctx    context.Context
	cancel context.CancelCauseFunc
	unhook func() bool // from the service's end
	done   chan struct{}
	once   sync.Once
	// Valid once done is closed.
	vm  *fleet.VM
	err error
}

// newJob registers work on a life. Its context keeps the values of the
// caller's and ends with the service or with an interrupt, not with the caller.
func (s *core) newJob(ctx context.Context, uid string) *job {
	j := &job{uid: uid, done: make(chan struct{})}
	ctx, j.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	j.unhook = context.AfterFunc(s.base, func() { j.cancel(context.Cause(s.base)) })
	j.ctx = ctx
	s.mu.Lock()
	s.jobs[uid] = j
	s.mu.Unlock()
	return j
}

// answer gives the waiting callers their result; the first answer counts.
func (j *job) answer(vm *fleet.VM, err error) {
	j.once.Do(func() {
		j.vm, j.err = vm, err
		close(j.done)
	})
}

// drop forgets a job whose work has ended.
func (s *core) drop(j *job) {
	j.unhook()
	j.cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[j.uid] == j {
		delete(s.jobs, j.uid)
	}
}

// interrupt cancels the work in flight on a life whose claim was taken over.
func (s *core) interrupt(uid string) {
	s.mu.Lock()
	j := s.jobs[uid]
	s.mu.Unlock()
	if j != nil {
		j.cancel(errTaken)
	}
}
