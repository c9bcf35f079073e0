package loop

import (
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
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

// Decision is what was decided about a playground, and how often in a row.
type Decision struct {
	First, Last time.Time
	Count       int
	Verdict     observe.Verdict
	Step        decide.Step
	Epoch       uint64
}

// memory is what explain tells from. It is this process's, and begins anew with
// it.
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

// keep remembers a pass.
func (m memory) keep(id model.MarqueeID, s Sight, steps []decide.Step, rows []model.Playground) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sights[id] = s
	for _, step := range steps {
		if step.Playground == "" {
			continue
		}
		list := m.decisions[step.Playground]
		if n := len(list) - 1; n >= 0 && same(list[n], s, step) {
			list[n].Last, list[n].Step.Why = s.At, step.Why
			list[n].Count++
			continue
		}
		list = append(list, Decision{First: s.At, Last: s.At, Count: 1, Verdict: s.Look.Verdict(), Step: step, Epoch: s.Epoch})
		m.decisions[step.Playground] = list[max(0, len(list)-keptDecisions):]
		if _, gone := step.Act.(decide.Delete); gone {
			delete(m.decisions, step.Playground)
		}
	}
}

func same(d Decision, s Sight, step decide.Step) bool {
	if d.Verdict != s.Look.Verdict() || d.Epoch != s.Epoch || d.Step.Rule != step.Rule {
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
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	list := l.seen.decisions[id]
	out := make([]Decision, 0, len(list))
	for i := len(list) - 1; i >= 0; i-- {
		out = append(out, list[i])
	}
	return out
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
