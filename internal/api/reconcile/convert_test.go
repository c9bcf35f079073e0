package reconcile

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	decide "github.com/fusevm/fuse/internal/reconcile"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// What is off is absent, pauses come with that of everything first, and only
// what was counted is told.
func TestStatus(t *testing.T) {
	got := statusOf(converge.Status{
		Ready: true, Interval: 30 * time.Second, LastAt: noon, Uptime: 2 * time.Hour,
		Pauses: fleet.Pauses{All: &fleet.Pause{Actor: "user:a", At: noon}, Hosts: map[string]fleet.Pause{"h1": {Actor: "user:b", Reason: "disks", At: noon}}},
		Limits: decide.Limits{StuckAfter: -1, OrphanTries: -1, PerCycle: 100, PerHour: -1, IdleAfter: time.Hour},
		Spent: map[decide.BudgetKey]decide.Spent{
			{HostID: "h1", Pass: decide.KindOrphan}: {Window: []decide.Spend{{At: time.Minute, N: 9}, {At: 90 * time.Minute, N: 2}}, Exhausted: true},
		},
		Last: &decide.Summary{
			TrackedVMs: 3, ProviderVMs: 2, StuckTasksFailed: 1, Duration: 1500 * time.Microsecond,
			Hosts: []decide.HostResult{{HostID: "h1", Quality: fleet.Unseen, Reason: "down", Tracked: 3}},
		},
	})
	want := gen.Reconcile{
		Ready: true, IntervalSeconds: 30, Paused: true, Passes: decide.Passes(),
		Pauses:  []gen.Pause{{Actor: "user:a", At: noon}, {Host: "h1", Actor: "user:b", Reason: "disks", At: noon}},
		Limits:  gen.ReconcileLimits{MaxDestroyPerCycle: 100, IdleTimeoutSeconds: 3600},
		Budgets: []gen.ReconcileBudget{{Pass: "orphan", Host: "h1", Begun: 2, Exhausted: true}},
		Last: &gen.ReconcileCycle{
			At: noon, TookMs: 1.5, Tracked: 3, Listed: 2, Counts: map[string]int{"stuck": 1},
			Hosts: []gen.ReconcileHost{{Host: "h1", Look: "unseen", Reason: "down", Tracked: 3}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPlan(t *testing.T) {
	step := decide.Step{Kind: decide.KindStuck, HostID: "h1", VMID: "fuse-a", UID: "A", Rule: "stuck_task", Evidence: "old", Look: "l", RowRevision: 7, Count: 2}
	got := planOf(converge.Preview{At: noon, Steps: []decide.Step{step}, Withheld: []decide.Withheld{{Step: step, Why: "paused"}}})
	shown := gen.ReconcileStep{Step: "stuck", Destroys: true, Host: "h1", VM: "fuse-a", UID: "A", Rule: "stuck_task", Evidence: "old", Look: "l", Revision: 7, Count: 2}
	waits := shown
	waits.WaitsFor = "paused"
	want := gen.ReconcilePlan{
		At: noon, Steps: []gen.ReconcileStep{shown}, Withheld: []gen.ReconcileStep{waits},
		Cycle: gen.ReconcileCycle{Hosts: []gen.ReconcileHost{}, Counts: map[string]int{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if empty := planOf(converge.Preview{}); empty.Steps == nil || empty.Withheld == nil {
		t.Error("nothing to do is null, not an empty list")
	}
}
