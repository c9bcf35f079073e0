package loop

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// keptDecisions is how many decisions of a playground are remembered; equal
// ones in a row count as one.
const keptDecisions = 20

// Sight is the last look at a marquee.
type Sight struct {
	At      time.Time
	Took    time.Duration
	Look    observe.Look
	Epoch   uint64
	Orphans []decide.Step
	Skipped bool // the marquee is disabled: nothing was looked at
}

// Decision is what was decided about a playground, and how often in a row. Step is
// known of decisions of this process only.
type Decision struct {
	records.Decision
	Step decide.Step
}

// memory is what explain tells from. It is this process's; the decisions go on from
// those that were kept.
type memory struct {
	mu        *sync.Mutex
	sights    map[model.MarqueeID]Sight
	next      map[model.MarqueeID]time.Time
	decisions map[model.PlaygroundID][]Decision // oldest first
}

func newMemory() memory {
	return memory{new(sync.Mutex), map[model.MarqueeID]Sight{}, map[model.MarqueeID]time.Time{}, map[model.PlaygroundID][]Decision{}}
}

func (m memory) due(id model.MarqueeID, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next[id] = at
}

func (m memory) forget(id model.MarqueeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sights, id)
	delete(m.next, id)
}

// keep remembers a pass. fresh are the playgrounds about which something else was
// decided than before.
func (m memory) keep(id model.MarqueeID, s Sight, steps []decide.Step, before func(model.PlaygroundID) []Decision) (fresh []model.PlaygroundID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sights[id] = s
	for _, step := range steps {
		if step.Playground == "" {
			continue
		}
		list, known := m.decisions[step.Playground]
		if !known {
			list = before(step.Playground)
		}
		if n := len(list) - 1; n >= 0 && same(list[n], s, step) {
			list[n].Last, list[n].Why = s.At, step.Why
			list[n].Count++
			continue
		}
		list = append(list, told(s, step))
		m.decisions[step.Playground] = list[max(0, len(list)-keptDecisions):]
		if _, gone := step.Act.(decide.Delete); gone {
			delete(m.decisions, step.Playground)
			continue
		}
		fresh = append(fresh, step.Playground)
	}
	return fresh
}

func told(s Sight, step decide.Step) Decision {
	d := records.Decision{
		First: s.At, Last: s.At, Count: 1, Verdict: s.Look.Verdict().String(), Rule: string(step.Rule), Act: step.Does(), Why: step.Why, Epoch: s.Epoch,
	}
	if r, ok := step.Act.(decide.Refuse); ok {
		d.Guard = string(r.Guard)
	}
	return Decision{d, step}
}

// remember keeps what a pass decided. What is not written is not worth more than a
// word: the next pass that decides something else writes all of it.
func (l *Loop) remember(ctx context.Context, id model.MarqueeID, s Sight, steps []decide.Step) {
	fresh := l.seen.keep(id, s, steps, l.kept)
	if len(fresh) == 0 {
		return
	}
	_, err := l.Store.Update(ctx, func(tx *state.Tx) error {
		for _, p := range fresh {
			var list []records.Decision
			for _, d := range l.seen.of(p) {
				list = append(list, d.Decision)
			}
			if err := records.PutDecisions(tx, p, list); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		l.Logger.Warn("what was decided could not be kept for explain", "marquee", id, "error", err)
	}
}

// kept are the decisions of an earlier process.
func (l *Loop) kept(p model.PlaygroundID) (out []Decision) {
	_ = l.Store.View(func(tx *state.ReadTx) error { // the closure never fails
		for _, d := range records.Decisions(tx, p) {
			out = append(out, Decision{Decision: d})
		}
		return nil
	})
	return out
}

func same(d Decision, s Sight, step decide.Step) bool {
	if d.Verdict != s.Look.Verdict().String() || d.Epoch != s.Epoch || d.Step.Rule != step.Rule {
		return false
	}
	a, refusedA := d.Step.Act.(decide.Refuse)
	b, refusedB := step.Act.(decide.Refuse)
	if refusedA || refusedB {
		return refusedA && refusedB && a == b
	}
	_, keptA := d.Step.Act.(decide.Keep)
	_, keptB := step.Act.(decide.Keep)
	return keptA && keptB
}

// Sight returns the last look at a marquee; false while there was none.
func (l *Loop) Sight(id model.MarqueeID) (Sight, bool) {
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	s, ok := l.seen.sights[id]
	return s, ok
}

// Due is when a marquee is looked at next in turn; zero: not by this process.
func (l *Loop) Due(id model.MarqueeID) time.Time {
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	return l.seen.next[id]
}

// Decisions returns what was decided about a playground, newest first.
func (l *Loop) Decisions(id model.PlaygroundID) []Decision {
	list := l.seen.of(id)
	if len(list) == 0 {
		list = l.kept(id)
	}
	slices.Reverse(list)
	return list
}

// of are the decisions about a playground, oldest first.
func (m memory) of(id model.PlaygroundID) []Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.decisions[id])
}

// Working reports whether a job or an operation of a playground is under way in
// this process.
func (l *Loop) Working(m model.MarqueeID, p model.PlaygroundID) bool {
	l.mu.Lock()
	a := l.actors[m]
	l.mu.Unlock()
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.working[p]
}

// Forget drops what is remembered of a playground that has no record any more.
func (l *Loop) Forget(id model.PlaygroundID) {
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	delete(l.seen.decisions, id)
}
