package converge

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

const (
	// budgetPages bounds the pages of events that are read for budgets, because
	// the first look waits for them: of more events in an hour the older count
	// for nothing. What a server did that keeps ending is among the newest.
	budgetPages = 20
	// budgetGrain is how close destructions are counted as one.
	budgetGrain = time.Second
)

// inherit books what earlier processes spent of the budgets of the last hour,
// so that a server that starts again and again cannot exceed them. The events
// tell; without them every budget is fresh.
func (l *Loop) inherit(ctx context.Context) {
	if l.cfg.Events == nil || l.cfg.Limits.Effective().PerHour < 0 {
		return
	}
	spent, err := l.spentBefore(ctx, l.cfg.Wall())
	if err != nil {
		l.log.Warn("what was spent of the budgets of destruction cannot be read; they begin anew", slog.Any("error", err))
	}
	l.memory.Spent = spent
	l.shared.Store(&reconcile.Memory{Spent: spent})
}

// spentBefore reads the events of the hour before now, from the newest on.
func (l *eyes) spentBefore(ctx context.Context, now time.Time) (map[reconcile.BudgetKey]reconcile.Spent, error) {
	out := map[reconcile.BudgetKey]reconcile.Spent{}
	_, upTo := l.cfg.Store.Head()
	for page := 0; page < budgetPages && upTo > 0; page++ {
		from := upTo - min(upTo, state.MaxEventPage)
		list, err := l.cfg.Events.Events(ctx, state.EventQuery{After: from, UpTo: upTo})
		if err != nil {
			return nil, err
		}
		for i := range slices.Backward(list) {
			ago := max(now.Sub(list[i].At), 0)
			if ago >= reconcile.BudgetWindow {
				upTo = 0
				break
			}
			if pass, ok := passOf(&list[i]); ok {
				key := reconcile.BudgetKey{HostID: list[i].HostID, Pass: pass}
				out[key] = reconcile.Spent{Window: book(out[key].Window, -ago)}
			}
		}
		if len(list) == 0 || upTo == 0 {
			break // older ones are not kept, or do not count
		}
		upTo = from
	}
	for _, s := range out {
		slices.Reverse(s.Window)
	}
	return out, nil
}

// book adds one to a window that goes back in time; what is close together
// counts as of the newest.
func book(window []reconcile.Spend, at time.Duration) []reconcile.Spend {
	if n := len(window); n > 0 && window[n-1].At-at < budgetGrain {
		window[n-1].N++
		return window
	}
	return append(window, reconcile.Spend{At: at, N: 1})
}

// passOf is the pass that began the destruction which an event tells of.
func passOf(e *fleet.Event) (reconcile.Kind, bool) {
	switch e.Type {
	case fleet.EventVMOrphanDestroy:
		return reconcile.KindOrphan, true
	case fleet.EventSnapshotGCDeleted:
		return reconcile.KindSnapshotGC, true
	case fleet.EventArtifactGCDeleted:
		return reconcile.KindArtifactGC, true
	case fleet.EventVMDestroying:
		if e.Reason != nil && e.Reason.Actor == fleet.ActorReconcile {
			pass, ok := map[string]reconcile.Kind{
				fleet.RuleMissingFromProvider: reconcile.KindMissing,
				fleet.RuleStuckTask:           reconcile.KindStuck,
				fleet.RuleIdleTimeout:         reconcile.KindIdle,
			}[e.Reason.Rule]
			return pass, ok
		}
	}
	return "", false
}
