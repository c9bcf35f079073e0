package snapshots

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/keylock"
	"github.com/fusevm/fuse/internal/persist"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/snapshots/decide"
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

// Opener opens what is stored sealed.
type Opener interface {
	Open(kind, id string, sealed []byte) ([]byte, error)
}

// Child is an environment to make from a snapshot.
type Child struct {
	TaskID, Owner, Actor string
	Spec                 fleet.Spec
	Boot                 fleet.BootOptions
	Ancestors            []string
	Live                 bool
	// Idempotency is of the request, where it makes one environment.
	Idempotency *state.Idempotency
	Progress    func(provider.SnapshotProgress)
}

// Config wires a Service. Store, Providers, Logger, Opener and Create are needed.
type Config struct {
	Store     Store
	Providers Providers
	Logger    *slog.Logger
	Opener    Opener
	// BootKind is the kind of the sealed boot options of environments.
	BootKind string
	// Create makes an environment from a snapshot, admission included.
	Create func(ctx context.Context, c Child) (*fleet.VM, error)
	// Restored hands an environment that was put back what belongs to it now;
	// may be nil.
	Restored func(ctx context.Context, vm *fleet.VM)
	// Locks are by id of the environment, shared with what else may not happen to
	// it meanwhile. nil: of its own.
	Locks *keylock.Lock
	// Admission is asked before a snapshot is taken for forks; nil: not asked.
	Admission *admission.Desk
	Limits    decide.Limits // of each tenant
	Quotas    *quota.Book   // of owners and keys; nil bounds nobody
	// Admit is asked before every verb; nil allows all.
	Admit func(ctx context.Context, actor, verb string, params map[string]string) error
	// Done is told of every verb that has ended: take, restore, fork, delete. May
	// be nil.
	Done func(verb string, took time.Duration, err error)
	// Timeout bounds one call to a host; zero is ten minutes.
	Timeout time.Duration
	// AtOnce bounds what is under way at a time; zero is 32. Of Queue more (256)
	// each waits its turn.
	AtOnce, Queue int
	// Interval is between looks at what hosts keep; zero is a minute.
	Interval time.Duration
	// Paused is asked whether destruction is stopped; nil: never.
	Paused func() (fleet.Pauses, error)
}

// Service keeps snapshots. It is safe for concurrent use; Run does what nobody
// asks for.
type Service struct {
	*core
	taker
	restorer
	remover
	forker
	sweeper
}

// core is what all verbs share: the work under way, the records and the way to
// the hosts.
type core struct {
	cfg   Config
	log   *slog.Logger
	base  context.Context
	stop  context.CancelFunc
	work  sync.WaitGroup
	slots chan struct{}
	doing provider.Doing // by id of the snapshot

	mu      sync.Mutex
	closing bool
	waiting int
	held    map[string]int // snapshots that work under way needs, by id; guarded by mu
}

// New makes a Service.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Providers == nil || cfg.Logger == nil || cfg.Opener == nil || cfg.Create == nil {
		return nil, errors.New("snapshots config: store, providers, logger, opener and create are needed")
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
	if cfg.AtOnce <= 0 {
		cfg.AtOnce = 32
	}
	if cfg.Queue <= 0 {
		cfg.Queue = 256
	}
	if cfg.Interval <= 0 {
		cfg.Interval = time.Minute
	}
	c := &core{cfg: cfg, log: cfg.Logger, slots: make(chan struct{}, cfg.AtOnce), held: map[string]int{}}
	c.base, c.stop = context.WithCancel(context.Background())
	s := &Service{core: c, taker: taker{c}, restorer: restorer{c}, remover: remover{c}, sweeper: sweeper{core: c, seen: decide.Seen{}}}
	s.forker = forker{core: c, takes: &s.taker, removes: &s.remover}
	return s, nil
}

// Close refuses new work and waits for what is under way until ctx ends; the
// rest is left to the recovery of the next start.
func (s *core) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	return persist.Finish(ctx, &s.work, func() { s.stop() })
}

// newID makes the id of a snapshot.
func newID() string { return "snap-" + strings.ToLower(uid.New()) }

// begin counts a piece of work in, or refuses it when too many wait.
func (s *core) begin() (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, fleet.Errorf(fleet.CodeUnavailable, "the server is stopping").With(fleet.DetailRemedy, "try again shortly")
	}
	bound := s.cfg.AtOnce + s.cfg.Queue
	if s.waiting >= bound {
		n := fmt.Sprint(bound)
		return nil, fleet.Errorf(fleet.CodeUnavailable, "%s captures, restores and deletions are under way already", n).
			With(fleet.DetailScope, "work on snapshots").With(fleet.DetailLimit, n).With(fleet.DetailUsage, n).
			With(fleet.DetailRemedy, "try again in a few seconds").With("retry_after", "5")
	}
	s.waiting++
	s.work.Add(1)
	return func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
		s.work.Done()
	}, nil
}

// run is detached for work that is at a host all the while, of which there is
// only so much at a time.
func run[T any](ctx context.Context, s *core, what string, work func(ctx context.Context) (T, error)) (T, error) {
	return detached(ctx, s, what, func(ctx context.Context) (v T, err error) {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			return v, stopping()
		}
		return work(ctx)
	})
}

// detached does work in the service's own time: it goes on when the caller
// leaves, whose error then names what goes on.
func detached[T any](ctx context.Context, s *core, what string, work func(ctx context.Context) (T, error)) (T, error) {
	var none T
	end, err := s.begin()
	if err != nil {
		return none, err
	}
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(s.base, cancel)()
		v, err := work(ctx)
		end() // whoever hears of the end finds the place free
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return none, fleet.Wrap(fleet.CodeDeadlineExceeded, ctx.Err(), what+" goes on").
			With(fleet.DetailRemedy, "look at it later")
	}
}

func stopping() error {
	return fleet.Errorf(fleet.CodeUnavailable, "the server stopped meanwhile").With(fleet.DetailRemedy, "try again shortly")
}

// guarded turns a panic into an error, so that what it broke off is undone.
func (s *core) guarded(id string, do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("work on a snapshot panicked", slog.String("snapshot_id", id), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
			err = fmt.Errorf("work on snapshot %s panicked", id)
		}
	}()
	return do()
}

// persist is Update for work that must not end half done: while the store cannot
// be written it tries again until ctx ends.
func (s *core) persist(ctx context.Context, fn func(*state.Tx) error) error {
	return persist.Update(ctx, s.cfg.Store, fn)
}

// hold keeps a snapshot from being collected while work needs it.
func (s *core) hold(id string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[id]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[id]--; s.held[id] == 0 {
			delete(s.held, id)
		}
	})
}

// Held are the snapshots that work under way needs: nobody collects them.
func (s *core) Held() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]bool, len(s.held))
	for id := range s.held {
		out[id] = true
	}
	return out
}

// message is what of an error may be shown and stored.
func message(err error) string {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe.Message
	}
	return "internal error"
}

// fit makes an error fit for callers.
func fit(err error, what string) error {
	var fe *fleet.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fleet.ErrStaleTerm):
		return fleet.Wrap(fleet.CodeUnavailable, err, "this server does not lead the fleet any more")
	case errors.As(err, &fe):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fleet.Wrap(fleet.CodeDeadlineExceeded, err, what+" ran out of time")
	}
	return fleet.Wrap(fleet.CodeInternal, err, what+" failed")
}
