package converge

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
)

// Loop is the converge loop. Its methods other than Run may be called from
// anywhere.
type Loop struct {
	*eyes
	*pauser
	cfg  Config
	log  *slog.Logger
	acts *actor
	goes sync.WaitGroup // every goroutine that Run started
	stop context.CancelCauseFunc
	rows chan struct{} // closed when recovery has ended
	up   chan struct{} // closed when ready
	once sync.Once
	last atomic.Pointer[cycled]
	// shared is the newest memory, which nobody changes.
	shared atomic.Pointer[reconcile.Memory]
	// dry lets one preview run at a time.
	dry chan struct{}

	// The rest belongs to the goroutine of Run.
	clock     clock
	now       time.Time       // of this cycle, and what
	lap       reconcile.Clock // the clocks said then
	memory    reconcile.Memory
	sights    map[string]sight
	inherited uint64 // rows up to this revision are an earlier process's
}

// New makes a loop; it does nothing until Run. What the store holds now counts
// as left by an earlier process, so New comes before anything else may write.
func New(cfg Config) (*Loop, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l := &Loop{
		cfg: cfg, log: cfg.Logger, clock: clock{wall: cfg.Wall}, sights: map[string]sight{},
		stop: func(error) {}, rows: make(chan struct{}), up: make(chan struct{}),
		dry: make(chan struct{}, 1), pauser: &pauser{cfg.Store},
	}
	l.eyes = &eyes{cfg: &l.cfg, began: time.Now()}
	l.shared.Store(&reconcile.Memory{})
	l.inherited, _ = cfg.Store.Head()
	hands := &doer{cfg: &l.cfg, log: l.log, lost: l.lost, life: l.life}
	l.acts = &actor{
		apply: hands.apply, per: cfg.StepsPerHost, slots: make(chan struct{}, cfg.MaxSteps), goes: &l.goes,
		lanes: map[string]*lane{}, inFlight: map[string]bool{},
	}
	return l, nil
}

var errNotReady = fleet.Errorf(fleet.CodeUnavailable, "the first look at the hosts has not ended yet").
	With(fleet.DetailRemedy, "try again in a moment")

// Ready is nil once recovery and the looks of the first cycle are over.
func (l *Loop) Ready() error {
	select {
	case <-l.up:
		return nil
	default:
		return errNotReady
	}
}

// WaitRecovered waits until recovery has ended. Nothing is served before: a row
// that an earlier process left half made would be taken for one at work.
func (l *Loop) WaitRecovered(ctx context.Context) error { return wait(ctx, l.rows, "recovery") }

// WaitReady waits until Ready is nil.
func (l *Loop) WaitReady(ctx context.Context) error {
	return wait(ctx, l.up, "the first look at the hosts")
}

func wait(ctx context.Context, over <-chan struct{}, what string) error {
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
	}
}

// Last is the summary of the newest cycle; ok is false before the first.
func (l *Loop) Last() (_ reconcile.Summary, ok bool) {
	if c := l.last.Load(); c != nil {
		return c.Summary, true
	}
	return reconcile.Summary{}, false
}

// cycled is a cycle that has ended.
type cycled struct {
	reconcile.Summary
	at time.Time
}

// Run recovers, runs a cycle at once and then one on every tick. A tick that
// falls into a running cycle is left out, never caught up with. Run returns
// when ctx ends (nil), when recovery fails, or when this process no longer
// leads; everything it started has ended then. It can run once.
func (l *Loop) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	l.stop, l.acts.ctx = stop, ctx
	defer l.goes.Wait()
	defer stop(nil)
	if err := l.recoverRows(ctx); err != nil {
		if ctx.Err() != nil {
			return l.ended(ctx)
		}
		return err
	}
	close(l.rows)
	l.inherit(ctx)
	start := time.Now()
	l.cycle(ctx, l.cfg.HostDeadline)
	for tick := int64(1); ; {
		tick = max(tick, int64(time.Since(start)/l.cfg.Interval)+1)
		timer := time.NewTimer(time.Until(start.Add(time.Duration(tick) * l.cfg.Interval)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return l.ended(ctx)
		case <-timer.C:
		}
		l.cycle(ctx, l.cfg.Interval-l.cfg.HostDeadline)
		tick++
	}
}

func (l *Loop) ended(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, fleet.ErrNotLeader) {
		return cause
	}
	return nil
}

func collect[T any](seq iter.Seq[T]) []T { return slices.Collect(seq) }

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
