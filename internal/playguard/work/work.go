// Package work carries out what was decided about a playground: operations on
// its marquee, and the jobs that are made of them. An operation is claimed in
// the record before its marquee is asked, is asked for only while the lease
// holds, and is followed to its end. Work that is cut anywhere leaves its claim
// behind: whoever comes next attaches to it.
package work

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
)

// Host is a marquee as work reaches it.
type Host interface {
	// Claim makes the marquee refuse older epochs from here on.
	Claim(ctx context.Context, epoch uint64) error
	Look(ctx context.Context) observe.Trip
	Start(ctx context.Context, r runner.Request) error
	Poll(ctx context.Context, op string) (runner.Progress, error)
	// Reap forgets the marquee's records of operations that ended more than so
	// many days ago.
	Reap(ctx context.Context, days int) error
}

// Canceller is a Host that can tell an operation to end before its time.
type Canceller interface {
	Cancel(ctx context.Context, epoch uint64, op string) error
}

// Site is one marquee in one term of leadership.
type Site struct {
	Marquee model.MarqueeID
	Pin     model.Identity
	Host    Host
	Epoch   uint64
	// Ops has room for one: the marquee takes one operation at a time.
	Ops chan struct{}
}

// Config wires a Worker.
type Config struct {
	Store        records.Store
	Sealer       records.Sealer
	Installation model.InstallationID
	Policy       model.Policy
	Logger       *slog.Logger
	// Lease returns for how long this process may still change something on a
	// marquee, or why it may not.
	Lease func() (time.Duration, error)
	// Maker makes definitions of playgrounds that have a source. May be nil.
	Maker Maker
	// Auth is what the registries of a playground are logged in with, in the form
	// of Docker's configuration; nil: they are not. May be nil.
	Auth func(tx state.Reader, p *records.Playground) ([]byte, error)
	// Ended is told how an operation ended. May be nil.
	Ended func(kind model.OpKind, result string)
}

// Worker does the work.
type Worker struct {
	Config
	progress sync.Map // of operations under way: playground to what was said last
}

// New makes a Worker.
func New(c Config) *Worker {
	if c.Ended == nil {
		c.Ended = func(model.OpKind, string) {}
	}
	return &Worker{Config: c}
}

// Errors of work that was left as it is. What comes of it is for the next look.
var (
	// ErrLost: the lease does not hold any more. Nothing was written.
	ErrLost = errors.New("the lease was lost")
	// ErrUnknown: an operation's end could not be learned; its claim stands.
	ErrUnknown = errors.New("the end of an operation is not known")
)

// callTime bounds one call that changes something on a marquee, and leastLease
// is what has to be left of the lease for it.
const (
	callTime   = 25 * time.Second
	leastLease = 2 * time.Second
)

// lead is asked right before a marquee is changed. Its context ends when the
// lease may have: no call outlives it.
func (w *Worker) lead(ctx context.Context) (context.Context, context.CancelFunc, error) {
	left, err := w.Lease()
	if err == nil && left < leastLease {
		err = fmt.Errorf("%s left of it", left.Round(time.Millisecond))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	ctx, cancel := context.WithTimeout(ctx, min(callTime, left-leastLease/2))
	return ctx, cancel, nil
}

// Claim tells the marquee which epoch counts from here on.
func (w *Worker) Claim(ctx context.Context, s Site) error {
	ctx, cancel, err := w.lead(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return s.Host.Claim(ctx, s.Epoch)
}

// keptDays is how long a marquee keeps its record of an operation: each look
// lists all of them.
const keptDays = 1

// Reap has the marquee forget operations of long ago.
func (w *Worker) Reap(ctx context.Context, s Site) error {
	ctx, cancel, err := w.lead(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return s.Host.Reap(ctx, keptDays)
}

// Order starts an operation that no playground's record claims. Who gives it has
// claimed it elsewhere, and learns its end from a look.
func (w *Worker) Order(ctx context.Context, s Site, r runner.Request) error {
	select {
	case s.Ops <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.Ops }()
	if err := w.inUse(s); err != nil {
		return err
	}
	ctx, cancel, err := w.lead(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return s.Host.Start(ctx, r)
}

// InUse is ErrMoved for a marquee that a person took out of use, or that is gone:
// work under way goes no further there.
func InUse(tx state.Reader, id model.MarqueeID) error {
	if m, ok := records.Marquees.Get(tx, string(id)); !ok || m.Admin != model.AdminActive {
		return records.ErrMoved
	}
	return nil
}

func (w *Worker) inUse(s Site) error {
	return w.Store.View(func(tx *state.ReadTx) error { return InUse(tx, s.Marquee) })
}

// Refused reports whether a marquee said that it did not begin an operation.
func Refused(err error) bool { return refused(err) }

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// refused reports whether a marquee, or what leads to it, said that it did not
// begin an operation. One that was cut off while it began may have begun.
func refused(err error) bool {
	if errors.Is(err, runner.ErrSuperseded) || errors.Is(err, runner.ErrNotOurs) {
		return true
	}
	var answer *fleet.Error
	return errors.As(err, &answer) && !strings.Contains(answer.Message, "exit status")
}
