// Package loop is Playguard's loop: once a minute it looks at each marquee,
// decides, writes what was decided in one commit, and sets in motion what that
// asks for. Marquees never wait for each other: each has a goroutine of its own,
// and a bounded number of them is at work at a time. It runs only while this
// process leads.
package loop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// Store is the part of the state owner that the loop uses.
type Store interface {
	records.Store
	Head() (revision, seq uint64)
	Term() int64
}

// Config wires a Loop.
type Config struct {
	Store  Store
	Worker *work.Worker
	Policy model.Policy
	Logger *slog.Logger
	// Host is how a marquee is reached. It does no I/O.
	Host func(m records.Marquee) work.Host
	// Drop ends what connects to a marquee that is gone or changed. May be nil.
	Drop func(id model.MarqueeID)
	// AtOnce bounds the passes that are under way; zero is 32.
	AtOnce int
	// Before are the phases that come before the rules, in order: branches,
	// credentials, registry auth, expiry. After come behind them: the sweep.
	Before, After []Phase
	// Figures is told of each pass. May be nil.
	Figures func(Summary)
}

// atOnce is the default of Config.AtOnce.
const atOnce = 32

// Loop is the loop. Its methods are safe for concurrent use.
type Loop struct {
	Config
	slots chan struct{}
	seen  memory

	mu      sync.Mutex
	actors  map[model.MarqueeID]*actor
	life    context.Context // of Run; nil before and after
	working sync.WaitGroup  // actors, jobs and operations
}

// New makes a Loop.
func New(c Config) *Loop {
	if c.AtOnce <= 0 {
		c.AtOnce = atOnce
	}
	if c.Drop == nil {
		c.Drop = func(model.MarqueeID) {}
	}
	if c.Figures == nil {
		c.Figures = func(Summary) {}
	}
	return &Loop{Config: c, slots: make(chan struct{}, c.AtOnce), actors: map[model.MarqueeID]*actor{}, seen: newMemory()}
}

// Run runs until ctx ends, and waits for what it began to notice that.
func (l *Loop) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	l.mu.Lock()
	l.life = ctx
	l.mu.Unlock()
	defer func() {
		stop()
		l.mu.Lock()
		l.life = nil
		l.mu.Unlock()
		l.working.Wait()
	}()
	tick := time.NewTicker(l.Policy.Period)
	defer tick.Stop()
	for {
		l.refresh()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// refresh starts an actor for each marquee that has none, and ends those whose
// marquee is gone.
func (l *Loop) refresh() {
	rows := map[model.MarqueeID]bool{}
	if err := l.Store.View(func(tx *state.ReadTx) error {
		for id := range records.Marquees.All(tx) {
			rows[model.MarqueeID(id)] = true
		}
		return nil
	}); err != nil {
		l.Logger.Warn("marquees could not be read", slog.Any("error", err))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life == nil {
		return
	}
	for id := range rows {
		if l.actors[id] == nil {
			a := newActor(l, id)
			l.actors[id] = a
			l.working.Go(func() { a.run(time.Now().Add(id.Offset(l.Policy.Period))) })
		}
	}
	for id, a := range l.actors {
		if !rows[id] {
			a.stop()
			delete(l.actors, id)
			l.seen.forget(id)
			l.Drop(id)
		}
	}
}

// actor returns the actor of a marquee; nil while the loop does not run or the
// marquee is not there.
func (l *Loop) actor(id model.MarqueeID) *actor {
	l.mu.Lock()
	a, runs := l.actors[id], l.life != nil
	l.mu.Unlock()
	if a != nil || !runs {
		return a
	}
	l.refresh()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.actors[id]
}

// Kick has a marquee looked at now, or learn that it is gone.
func (l *Loop) Kick(id model.MarqueeID) {
	l.refresh()
	if a := l.actor(id); a != nil {
		a.kick()
	}
}

// Begin starts the job of a playground that somebody just asked something of.
// If that is not possible now, the loop queues it later.
func (l *Loop) Begin(m model.MarqueeID, p model.PlaygroundID) {
	a := l.actor(m)
	if a == nil || a.queue(p) {
		return
	}
	a.start(p, func(ctx context.Context) (bool, error) {
		row, err := l.epoch(ctx, m)
		if err != nil || row.Admin != model.AdminActive || row.Reach == model.ReachQuarantined {
			return false, err
		}
		return true, l.Worker.Job(ctx, a.site(row), p)
	})
}

// Check looks at a marquee now and returns what the pass saw, once it has acted
// on it.
func (l *Loop) Check(ctx context.Context, id model.MarqueeID) (Sight, error) {
	a := l.actor(id)
	if a == nil {
		return Sight{}, fleet.Errorf(fleet.CodeUnavailable, "Playguard does not run on this server now").
			With(fleet.DetailRemedy, "try again in a moment; only the leading server looks at marquees")
	}
	return a.ask(ctx)
}

// epoch returns a marquee with the epoch that this term holds there. It is
// raised once in a term, and durable before anybody is shown it.
func (l *Loop) epoch(ctx context.Context, id model.MarqueeID) (m records.Marquee, err error) {
	term := l.Store.Term()
	read := func(tx state.Reader) error {
		row, ok := records.Marquees.Get(tx, string(id))
		if !ok {
			return records.ErrMoved
		}
		m = *row
		return nil
	}
	if err := l.Store.View(func(tx *state.ReadTx) error { return read(tx) }); err != nil || m.Term.Term == term {
		return m, err
	}
	_, err = l.Store.Update(ctx, func(tx *state.Tx) error {
		if err := read(tx); err != nil || m.Term.Term == term {
			return err
		}
		m.Begin(term, m.Term.Epoch+1, tx.Revision()+1)
		m.Revision = tx.Revision() + 1
		return records.PutMarquee(tx, m)
	})
	return m, err
}

// Summary is what a pass over one marquee came to.
type Summary struct {
	Marquee     model.MarqueeID
	Verdict     string // seen, partial or unseen; "skipped" for one that was not looked at
	Reason      string
	Took        time.Duration
	Playgrounds int
	// Acts counts the steps that changed or began something, by what they do.
	Acts map[string]int
	// Refusals counts what was not done, by guard: an ordinary outcome.
	Refusals map[decide.Guard]int
	Moved    int // records that changed meanwhile; what was decided for them was dropped
}
