package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
)

// Bounds of looks out of turn.
const (
	leastBetween = 2 * time.Second // between two looks at a marquee
	mostKicks    = 10              // after operations, in a period
)

// actor is one marquee's part of the loop. One pass over a marquee is under way
// at a time.
type actor struct {
	loop *Loop
	id   model.MarqueeID
	ctx  context.Context
	stop context.CancelFunc
	ops  chan struct{} // see work.Site
	wake chan struct{}
	asks chan chan Sight

	// Of the goroutine of run alone.
	claimed uint64 // epoch that the marquee was told
	reaped  time.Time
	alarm   string // that was told last
	orphans map[string]bool
	skipped map[model.PlaygroundID]time.Time // when it was last told that work forbade something

	mu      sync.Mutex
	working map[model.PlaygroundID]bool             // a job or an operation is followed
	then    map[model.PlaygroundID]bool             // a job is wanted after that
	tried   map[string]map[model.PlaygroundID]tried // by chore
	kicks   int                                     // since the last look in turn
	soon    time.Duration                           // wanted until the next look, zero: its turn
}

func newActor(l *Loop, id model.MarqueeID) *actor {
	a := &actor{
		loop: l, id: id, ops: make(chan struct{}, 1), wake: make(chan struct{}, 1), asks: make(chan chan Sight),
		working: map[model.PlaygroundID]bool{}, then: map[model.PlaygroundID]bool{}, tried: map[string]map[model.PlaygroundID]tried{}, orphans: map[string]bool{}, skipped: map[model.PlaygroundID]time.Time{},
	}
	a.ctx, a.stop = context.WithCancel(l.life)
	return a
}

func (a *actor) site(m records.Marquee) work.Site {
	return work.Site{Marquee: a.id, Pin: m.Identity, Host: a.loop.Host(m), Epoch: m.Term.Epoch, Ops: a.ops}
}

// run looks in turn, and out of turn when asked to. Ticks that a slow look
// takes are left out.
func (a *actor) run(due time.Time) {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	var asked chan Sight
	for {
		a.loop.seen.due(a.id, due)
		inTurn := false
		select {
		case <-a.ctx.Done():
			return
		case <-timer.C:
			inTurn = true
		case <-a.wake:
		case asked = <-a.asks:
		}
		select {
		case a.loop.slots <- struct{}{}:
		case <-a.ctx.Done():
			return
		}
		began := time.Now()
		sight, next := a.look()
		<-a.loop.slots
		if asked != nil {
			asked <- sight
			asked = nil
		}
		a.mu.Lock()
		if inTurn {
			a.kicks = 0
		}
		soon := a.soon
		a.soon = 0
		a.mu.Unlock()
		due = nextDue(due, began, next, a.loop.Policy.Period)
		wait := time.Until(due)
		if soon > 0 {
			wait = min(wait, soon)
		}
		timer.Reset(max(wait, leastBetween))
		a.settleDown()
	}
}

// nextDue is when a look is due after one that began then. Turns keep a fixed
// clock, except for a marquee that is only probed and one that comes back.
func nextDue(due, began time.Time, next, period time.Duration) time.Time {
	if next != period || due.Sub(began) > period {
		return began.Add(next)
	}
	for now := time.Now(); !due.After(now); {
		due = due.Add(period)
	}
	return due
}

// settleDown keeps looks out of turn apart.
func (a *actor) settleDown() {
	t := time.NewTimer(leastBetween)
	defer t.Stop()
	select {
	case <-t.C:
	case <-a.ctx.Done():
	}
}

// kick asks for a look out of turn.
func (a *actor) kick() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// ask asks for a look and waits for it.
func (a *actor) ask(ctx context.Context) (Sight, error) {
	answer := make(chan Sight, 1)
	select {
	case a.asks <- answer:
	case <-ctx.Done():
		return Sight{}, context.Cause(ctx)
	case <-a.ctx.Done():
		return Sight{}, fleet.Errorf(fleet.CodeUnavailable, "the marquee is not looked at any more")
	}
	select {
	case s := <-answer:
		return s, nil
	case <-ctx.Done():
		return Sight{}, context.Cause(ctx)
	case <-a.ctx.Done():
		return Sight{}, fleet.Errorf(fleet.CodeUnavailable, "the marquee is not looked at any more")
	}
}

// start follows work on a playground in a goroutine of its own, unless some is
// under way. It says whether its end is worth a look out of turn.
func (a *actor) start(p model.PlaygroundID, do func(ctx context.Context) (again bool, err error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.working[p] || a.ctx.Err() != nil {
		return
	}
	a.working[p] = true
	a.loop.working.Go(func() {
		again, err := do(a.ctx)
		if err != nil {
			level, _ := work.Ordinary(err)
			a.loop.Logger.Log(a.ctx, level, "work on a playground was left", slog.String("playground", string(p)), slog.String("marquee", string(a.id)), slog.Any("error", err))
		}
		a.mu.Lock()
		delete(a.working, p)
		then := a.then[p]
		delete(a.then, p)
		a.kicks++
		again = again && a.kicks <= mostKicks
		a.mu.Unlock()
		switch {
		case then:
			a.loop.Begin(a.id, p)
		case again && (err == nil || errors.Is(err, records.ErrMoved)): // people want something else
			a.kick()
		}
	})
}

// queue has a job begin after what is under way; false if nothing is.
func (a *actor) queue(p model.PlaygroundID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.working[p] {
		a.then[p] = true
	}
	return a.working[p]
}

// jobs is what is known of the playgrounds' jobs: those of this process are the
// only ones that may still do anything.
func (a *actor) jobs(rows []model.Playground) map[model.PlaygroundID]decide.Job {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[model.PlaygroundID]decide.Job, len(rows))
	for _, p := range rows {
		out[p.ID] = decide.JobNone
		if a.working[p.ID] {
			out[p.ID] = decide.JobAlive
		}
	}
	return out
}

// within asks for the next look no later than that.
func (a *actor) within(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.soon == 0 || d < a.soon {
		a.soon = d
	}
}
