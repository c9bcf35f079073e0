package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// BudgetWindow is what PerHour counts over.
const BudgetWindow = time.Hour

// refusal is why a destruction is not begun now.
type refusal int

const (
	admitted refusal = iota
	busy             // an earlier step, or an earlier pass, ends it
	paused           // somebody stopped destruction there
	spent            // the budget is; its turn comes
)

// Withheld is a destruction that a cycle did not begin, and why.
type Withheld struct {
	Step Step
	Why  string
}

// end plans a destruction that nobody asked for, unless it has to wait. Every
// pass that destroys goes through here.
func (p *plan) end(v view, s Step) refusal {
	s.HostID, s.Look, s.LookRevision = v.host, v.obs.ID, v.obs.Revision
	if s.UID != "" && (p.in.Busy[s.UID] || p.ending[s.UID]) {
		return busy
	}
	if by, ok := p.in.Paused.At(v.host); ok {
		p.sum.Withheld++
		p.withheld = append(p.withheld, Withheld{s, "paused: " + by.String()})
		return paused
	}
	key := BudgetKey{v.host, s.Kind}
	if limit, ok := p.room(key); !ok {
		p.sum.Waiting++
		p.waiting[key] = limit
		p.withheld = append(p.withheld, Withheld{s, "the budget of " + limit + " is spent"})
		return spent
	}
	p.begun[key]++
	p.ending[s.UID] = true
	p.steps = append(p.steps, s)
	return admitted
}

// room says whether a budget has one more, and if not which limit it met.
func (p *plan) room(key BudgetKey) (limit string, ok bool) {
	begun := p.begun[key]
	if n := p.in.Limits.PerCycle; n >= 0 && begun >= n {
		return fmt.Sprintf("%d a cycle", n), false
	}
	if n := p.in.Limits.PerHour; n >= 0 {
		for _, s := range p.next.Spent[key].Window {
			begun += s.N
		}
		if begun >= n {
			return fmt.Sprintf("%d an hour", n), false
		}
	}
	return "", true
}

// openBudgets forgets what was spent more than an hour ago.
func (p *plan) openBudgets() {
	for key, s := range p.next.Spent {
		window := s.Window
		for len(window) > 0 && window[0].At+BudgetWindow <= p.in.Clock.Uptime {
			window = window[1:]
		}
		if s.Window = window; len(window) == 0 && !s.Exhausted {
			delete(p.next.Spent, key)
			continue
		}
		p.next.Spent[key] = s
	}
}

// closeBudgets books what was begun, and says once of each budget that it is
// spent.
func (p *plan) closeBudgets() {
	for key, n := range p.begun {
		s := p.next.Spent[key]
		s.Window = append(slices.Clone(s.Window), Spend{At: p.in.Clock.Uptime, N: n})
		p.next.Spent[key] = s
	}
	for key, s := range p.next.Spent {
		if !p.in.decides(key) {
			continue
		}
		if _, waits := p.waiting[key]; s.Exhausted && !waits {
			if s.Exhausted = false; len(s.Window) == 0 {
				delete(p.next.Spent, key)
				continue
			}
			p.next.Spent[key] = s
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.waiting), func(a, b BudgetKey) int {
		return cmp.Or(cmp.Compare(a.HostID, b.HostID), cmp.Compare(a.Pass, b.Pass))
	}) {
		s := p.next.Spent[key]
		if s.Exhausted {
			continue
		}
		s.Exhausted = true
		p.next.Spent[key] = s
		p.steps = append(p.steps, Step{
			Kind: KindBudget, HostID: key.HostID, Rule: fleet.RuleBudget, Pass: key.Pass,
			Evidence: fmt.Sprintf("pass %s on host %q has spent its budget of %s; the rest waits", key.Pass, key.HostID, p.waiting[key]),
		})
	}
}

// decides says whether a plan on this decides about a budget's pass and host.
func (in *Input) decides(key BudgetKey) bool {
	if key.Pass == KindSnapshotGC || key.Pass == KindArtifactGC {
		return in.Fleet
	}
	_, looked := in.Observations[key.HostID]
	return looked
}

// Within is how many destructions were begun in the hour that ends now, a time
// since the loop's start.
func (s Spent) Within(now time.Duration) (n int) {
	for _, w := range s.Window {
		if w.At+BudgetWindow > now {
			n += w.N
		}
	}
	return n
}
