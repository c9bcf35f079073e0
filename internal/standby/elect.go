package standby

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Leaders reads who holds the lease.
type Leaders interface {
	Leader(ctx context.Context) (state.LeaseInfo, bool, error)
}

// View is told what the elector sees; a Front is one.
type View interface {
	// Follow: another server leads.
	Follow(ctx context.Context, info state.LeaseInfo)
	// Wait: nobody leads that this process knows of, because of reason.
	Wait(reason error)
}

// Config of an Elector.
type Config struct {
	Leaders Leaders
	View    View
	// Lead owns the fleet until ctx ends (nil), or until it is lost or another
	// server was faster (fleet.ErrNotLeader), or until the store cannot be
	// reached (fleet.ErrStoreUnavailable). Any other error ends the process.
	Lead func(ctx context.Context) error
	// Admit refuses a leader whom this process could not follow on: its error
	// ends the process, while there is still a leader. Nil admits everybody.
	Admit func(leader state.Candidate) error
	// Secret is this process's own, by which it knows a lease of its own that it
	// has lost and could not give back.
	Secret string
	Poll   time.Duration // how often the lease is looked at
	// StoreTimeout is how long the store may be out of reach before it has
	// answered once. Zero: for ever.
	StoreTimeout time.Duration
	Logger       *slog.Logger
}

// Elector waits for the lease and leads while it has it, again and again.
type Elector struct {
	cfg     Config
	reached bool // the store has answered
	failed  int  // looks in a row that failed
	follows bool // the view follows a leader
}

// NewElector makes an Elector.
func NewElector(cfg Config) *Elector {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Elector{cfg: cfg}
}

var (
	errUnowned = fleet.Errorf(fleet.CodeUnavailable, "no server leads the fleet at the moment")
	errOwnTerm = fleet.Errorf(fleet.CodeUnavailable, "this server has lost the lease, which nobody can take before it has run out")
)

// Run returns when ctx ends (nil) or when this process cannot go on.
func (e *Elector) Run(ctx context.Context) error {
	start := time.Now()
	for {
		err := e.round(ctx)
		if ctx.Err() != nil {
			return ignoreEnd(ctx, err)
		}
		switch {
		case err == nil, errors.Is(err, fleet.ErrNotLeader):
			e.reached, e.failed = true, 0
		case errors.Is(err, fleet.ErrStoreUnavailable):
			if !e.reached && e.cfg.StoreTimeout > 0 && time.Since(start) >= e.cfg.StoreTimeout {
				return fmt.Errorf("the state store was out of reach for %v: %w", e.cfg.StoreTimeout, err)
			}
			if e.failed++; e.failed == 1 {
				e.cfg.Logger.Warn("state store cannot be reached, trying again", slog.Any("error", err))
			}
			// A leader that was there a moment ago may well be there still: the store
			// may be out of reach for this process alone.
			if !e.follows {
				e.cfg.View.Wait(away(err))
			}
		default:
			return err
		}
		if !pause(ctx, e.wait()) {
			return nil
		}
	}
}

// away is what callers hear of a store that is out of reach. Anybody may ask, so
// it names no address; the log does.
func away(cause error) error {
	return fleet.Wrap(fleet.CodeUnavailable, cause, "the state store cannot be reached").
		With(fleet.DetailRemedy, "repeat it later; this server's log says what is wrong with the store")
}

// maxWait bounds the pause between looks at a store that does not answer.
const maxWait = 5 * time.Second

// wait grows while the store does not answer.
func (e *Elector) wait() time.Duration {
	return min(e.cfg.Poll<<min(max(e.failed-1, 0), 8), max(maxWait, e.cfg.Poll))
}

// round looks once and leads if nobody does.
func (e *Elector) round(ctx context.Context) error {
	info, held, err := e.look(ctx)
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", fleet.ErrStoreUnavailable, err)
		}
		return err
	}
	e.follows = held && (info.Secret == "" || info.Secret != e.cfg.Secret)
	if held {
		if e.follows && e.cfg.Admit != nil {
			if err := e.cfg.Admit(info.Candidate); err != nil {
				return err
			}
		}
		if e.follows {
			e.cfg.View.Follow(ctx, info)
		} else {
			e.cfg.View.Wait(errOwnTerm)
		}
		return nil
	}
	e.cfg.View.Wait(errUnowned)
	err = e.cfg.Lead(ctx)
	if err != nil && ctx.Err() == nil {
		e.cfg.Logger.Warn("this server does not lead", slog.Any("error", err))
	}
	return err
}

// lookTimeout bounds one look at the lease.
const lookTimeout = 5 * time.Second

func (e *Elector) look(ctx context.Context) (state.LeaseInfo, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return e.cfg.Leaders.Leader(ctx)
}

func ignoreEnd(ctx context.Context, err error) error {
	if errors.Is(err, ctx.Err()) || errors.Is(err, fleet.ErrNotLeader) {
		return nil
	}
	return err
}

// pause waits and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
