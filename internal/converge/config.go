package converge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/tracing"
)

// Store is the part of the state owner that the loop uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
	// Head is the newest revision that readers see.
	Head() (revision, seq uint64)
	// Ready is an error while nothing may be acted on.
	Ready(ctx context.Context) error
	FleetID() string
}

// Looker looks at one host. It returns when ctx ends at the latest.
type Looker interface {
	Look(ctx context.Context, host fleet.Host) fleet.Observation
}

// Destroyer ends one life of a VM: intent, act, settle. It is nil once nothing
// is left of that life, and whenever it is over already.
type Destroyer interface {
	DestroyLife(ctx context.Context, id, uid string, reason fleet.Reason) error
}

// OrphanKiller destroys a VM that no row knows, at its host.
type OrphanKiller interface {
	DestroyOrphan(ctx context.Context, hostID, id, uid string) error
}

// Collector deletes a snapshot or layer artifact, wherever copies of it are, and
// makes the events of it. It looks at the row once more, which has to be of that
// revision.
type Collector interface {
	Collect(ctx context.Context, id string, revision uint64, reason fleet.Reason) error
}

// Pauser lets one life of a VM stand still, unless another has taken its place.
// Right before it decides that, once nothing else is being done with the VM, it
// asks still; an error is its own, and what still returns is called when the
// decision is made.
type Pauser interface {
	PauseLife(ctx context.Context, id, uid string, reason fleet.Reason, still func() (done func(), err error)) error
}

// Use is how a life was used: when it last was, and what is open now.
type Use struct {
	Last time.Time // zero: not since this process began
	Open int
}

// Reattacher takes back what an earlier process left at work and its host still
// runs. It returns when it has done, or ctx ends.
type Reattacher interface {
	Reattach(ctx context.Context, vms []*fleet.VM)
}

// EventLog is the fleet's events, and how the oldest are forgotten.
type EventLog interface {
	Events(ctx context.Context, q state.EventQuery) ([]fleet.Event, error)
	// PurgeEvents forgets events older than before and all but the newest keep;
	// zero values keep all.
	PurgeEvents(ctx context.Context, before time.Time, keep uint64) (int, error)
}

// Config is what a Loop needs. Zero numbers mean the defaults.
type Config struct {
	Store        Store
	Looker       Looker
	Destroyer    Destroyer
	OrphanKiller OrphanKiller
	// Events may be nil while EventRetention and EventKeep are zero.
	Events EventLog
	// Reattacher may be nil: then nothing but the event tells of a recovery.
	Reattacher Reattacher
	// Collector may be nil: then collections are refused, and tried again later.
	Collector Collector

	// Use says how a life was used; nil: nothing is known of any, and the idle
	// window of each begins with the loop.
	Use func(uid string) Use
	// Shut lets no use of a life begin until its result is called: from the last
	// look at its uses to its end for want of them. nil: uses may begin meanwhile.
	Shut func(uid string) (open func())
	// Hold says why an environment must not be ended by its age or for want of
	// use, "" for nothing. It is asked before the second strike acts; nil holds
	// nothing. It must be quick.
	Hold func(vm *fleet.VM) string
	// Paused says that a life stands still on purpose; nil: none does.
	Paused func(uid string) bool
	// Pauser lets environments stand still that asked for it; nil: they are left
	// as they are.
	Pauser Pauser
	// Held are snapshots that work under way needs; nil: none.
	Held func() map[string]bool
	// Artifacts says how layer artifacts were used, by snapshot id; nil: none.
	Artifacts func() map[string]reconcile.ArtifactUse

	// Wall is the wall clock; nil: time.Now. Simulations move it.
	Wall func() time.Time

	// Interval is that of the tick (seed: ReconcileInterval, 30 s).
	Interval time.Duration
	// HostDeadline bounds a look at one host. Default 10 s.
	HostDeadline time.Duration
	// StepDeadline bounds one step. Default 2 min.
	StepDeadline time.Duration
	// MaxLooks bounds the looks at a time. Default 128.
	MaxLooks int
	// StepsPerHost and MaxSteps bound the steps at a time, on one host and in
	// all. Defaults 4 and 64.
	StepsPerHost int
	MaxSteps     int
	Limits       reconcile.Limits
	// EventRetention is how long events are kept; zero means for ever.
	EventRetention time.Duration
	// EventKeep is how many events are kept; zero means all. It takes none of
	// the last fleet.LifeRetention: they explain ends that can still be read.
	EventKeep uint64
	// DeadLetterRetention is how long dead letters are kept that are not seen
	// again, DeadLetterKeep how many; zero means for ever, and all.
	DeadLetterRetention time.Duration
	DeadLetterKeep      int

	Logger *slog.Logger
	// Tracer makes a trace of each cycle; nil makes none.
	Tracer *tracing.Tracer
	// Metrics is called at the end of every cycle, also of an aborted one;
	// nil drops the counts.
	Metrics func(reconcile.Summary)
}

// Defaults of Config.
const (
	DefaultInterval     = 30 * time.Second
	DefaultHostDeadline = 10 * time.Second
	DefaultStepDeadline = 2 * time.Minute
	DefaultMaxLooks     = 128
	DefaultStepsPerHost = 4
	DefaultMaxSteps     = 64
)

func (c Config) withDefaults() Config {
	if c.Wall == nil {
		c.Wall = time.Now
	}
	c.Interval = cmp.Or(c.Interval, DefaultInterval)
	c.HostDeadline = cmp.Or(c.HostDeadline, min(DefaultHostDeadline, c.Interval/3))
	c.StepDeadline = cmp.Or(c.StepDeadline, DefaultStepDeadline)
	c.MaxLooks = cmp.Or(c.MaxLooks, DefaultMaxLooks)
	c.StepsPerHost = cmp.Or(c.StepsPerHost, DefaultStepsPerHost)
	c.MaxSteps = cmp.Or(c.MaxSteps, DefaultMaxSteps)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

func (c Config) check() error {
	var all []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Errorf("converge: "+format, args...))
		}
	}
	need(c.Store != nil, "it needs a store")
	need(c.Looker != nil, "it needs a looker")
	need(c.Destroyer != nil, "it needs a destroyer")
	need(c.OrphanKiller != nil, "it needs an orphan killer")
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"interval", c.Interval}, {"host deadline", c.HostDeadline}, {"step deadline", c.StepDeadline}} {
		need(d.d > 0, "the %s is %s; it has to be more than 0", d.name, d.d)
	}
	need(c.HostDeadline <= c.Interval/2, "the host deadline is %s; it can be at most half the interval of %s", c.HostDeadline, c.Interval)
	need(c.MaxLooks > 0 && c.StepsPerHost > 0 && c.MaxSteps > 0, "bounds have to be more than 0")
	need(c.EventRetention == 0 && c.EventKeep == 0 || c.Events != nil, "it needs the events to forget old ones")
	need(c.DeadLetterRetention >= 0 && c.DeadLetterKeep >= 0, "the retention of dead letters cannot be negative")
	need(c.EventRetention >= 0, "the retention of events is %s; it cannot be negative", c.EventRetention)
	return errors.Join(all...)
}
