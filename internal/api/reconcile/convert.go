package reconcile

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	decide "github.com/fusevm/fuse/internal/reconcile"
)

func statusOf(s converge.Status) gen.Reconcile {
	out := gen.Reconcile{
		Ready: s.Ready, IntervalSeconds: s.Interval.Seconds(), Paused: s.Pauses.Any(), Pauses: pausesOf(s.Pauses),
		Passes: decide.Passes(), Limits: limitsOf(s.Limits), Budgets: []gen.ReconcileBudget{},
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.Spent), func(a, b decide.BudgetKey) int {
		return cmp.Or(cmp.Compare(a.HostID, b.HostID), cmp.Compare(a.Pass, b.Pass))
	}) {
		spent := s.Spent[key]
		out.Budgets = append(out.Budgets, gen.ReconcileBudget{
			Pass: string(key.Pass), Host: key.HostID, Begun: spent.Within(s.Uptime), Exhausted: spent.Exhausted,
		})
	}
	if s.Last != nil {
		last := cycleOf(*s.Last)
		last.At = s.LastAt.UTC()
		out.Last = &last
	}
	return out
}

func pausesOf(p fleet.Pauses) []gen.Pause {
	out := []gen.Pause{}
	if p.All != nil {
		out = append(out, gen.Pause{Actor: p.All.Actor, Reason: p.All.Reason, At: p.All.At.UTC()})
	}
	for _, host := range slices.Sorted(maps.Keys(p.Hosts)) {
		by := p.Hosts[host]
		out = append(out, gen.Pause{Host: host, Actor: by.Actor, Reason: by.Reason, At: by.At.UTC()})
	}
	return out
}

// limitsOf shows what is off as absent.
func limitsOf(l decide.Limits) gen.ReconcileLimits {
	return gen.ReconcileLimits{
		MaxRuntimeSeconds: whole(l.StuckAfter), IdleTimeoutSeconds: whole(l.IdleAfter), OrphanTries: max(0, l.OrphanTries),
		MaxDestroyPerCycle: max(0, l.PerCycle), MaxDestroyPerHour: max(0, l.PerHour),
		SnapshotRetentionSeconds: whole(l.SnapshotRetention), ArtifactIdleTTLSeconds: whole(l.ArtifactIdle), ArtifactMaxPerTenant: l.ArtifactMax,
	}
}

func whole(d time.Duration) int64 { return int64(max(0, d) / time.Second) }

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func cycleOf(s decide.Summary) gen.ReconcileCycle {
	out := gen.ReconcileCycle{
		TookMs: milliseconds(s.Duration), Aborted: s.Aborted, Tracked: s.TrackedVMs, Listed: s.ProviderVMs,
		Skipped: s.Skipped, Hosts: make([]gen.ReconcileHost, 0, len(s.Hosts)), Counts: countsOf(s),
	}
	for _, h := range s.Hosts {
		out.Hosts = append(out.Hosts, gen.ReconcileHost{
			Host: h.HostID, Look: h.Quality.String(), Reason: h.Reason, TookMs: milliseconds(h.Took), Tracked: h.Tracked, Listed: h.Listed,
		})
	}
	return out
}

func countsOf(s decide.Summary) map[string]int {
	counts := map[string]int{
		"missing_suspected": s.MissingSuspected, "missing": s.VMsMissingProvider,
		"orphans_destroyed": s.OrphansDestroyed, "orphans_failed": s.OrphansFailed, "orphans_dead_lettered": s.OrphansDeadLettered,
		"stuck_suspected": s.StuckTasksSuspected, "stuck": s.StuckTasksFailed,
		"idle_suspected": s.IdleVMsSuspected, "idle": s.IdleVMsFailed,
		"health_checked": s.HealthChecked, "health_failing": s.HealthFailing, "health_changed": s.HealthChanged,
		"snapshots_deleted": s.SnapshotsDeleted, "artifacts_deleted": s.ArtifactsDeleted, "collects_failed": s.CollectsFailed,
		"destroys_retried": s.DestroysRetried, "destroys_failed": s.DestroysFailed, "reaped": s.Reaped, "purged": s.Purged,
		"held": s.Held, "withheld": s.Withheld, "waiting": s.Waiting, "budgets_exhausted": s.BudgetsSpent,
		"dropped": s.Dropped, "in_flight": s.InFlight, "unverified": s.Unverified, "foreign": s.Foreign,
	}
	maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
	return counts
}

func planOf(p converge.Preview) gen.ReconcilePlan {
	out := gen.ReconcilePlan{At: p.At, Steps: []gen.ReconcileStep{}, Withheld: []gen.ReconcileStep{}, Cycle: cycleOf(p.Summary)}
	for _, s := range p.Steps {
		out.Steps = append(out.Steps, stepOf(s))
	}
	for _, w := range p.Withheld {
		step := stepOf(w.Step)
		step.WaitsFor = w.Why
		out.Withheld = append(out.Withheld, step)
	}
	return out
}

func stepOf(s decide.Step) gen.ReconcileStep {
	return gen.ReconcileStep{
		Step: string(s.Kind), Destroys: s.Destroys(), Host: s.HostID, VM: s.VMID, UID: s.UID, Snapshot: s.Snapshot,
		Rule: s.Rule, Evidence: s.Evidence, Look: s.Look, Revision: int64(s.RowRevision), Count: s.Count,
	}
}
