package reconcile_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
)

func TestHolds(t *testing.T) {
	running := &fleet.VM{UID: "A", Generation: 1, HostID: "h1", State: fleet.VMStateRunning, Revision: 3}
	written := &fleet.VM{UID: "A", Generation: 1, HostID: "h1", State: fleet.VMStateRunning, Revision: 4}
	going := &fleet.VM{UID: "A", Generation: 1, HostID: "h1", State: fleet.VMStateDestroying, Revision: 9}
	for _, tt := range []struct {
		kind reconcile.Kind
		row  *fleet.VM
		want bool
	}{
		{reconcile.KindMissing, running, true},
		{reconcile.KindMissing, written, false},
		{reconcile.KindMissing, going, false},
		{reconcile.KindMissing, nil, false},
		{reconcile.KindOrphan, nil, true},
		{reconcile.KindOrphan, going, false},
		{reconcile.KindDeadLetter, nil, true},
		{reconcile.KindDeadLetter, running, false},
		{reconcile.KindRetry, going, true},
		{reconcile.KindRetry, running, false},
		{reconcile.KindRetry, nil, false},
		{reconcile.KindReap, going, true},
		{reconcile.KindReap, nil, false},
		{reconcile.KindPurgeLives, nil, true},
	} {
		why, ok := reconcile.Step{Kind: tt.kind, UID: "A", HostID: "h1", RowRevision: 3}.Holds(reconcile.Now{Row: tt.row, Life: reconcile.Life{Tasked: true}})
		if ok != tt.want || ok == (why != "") {
			t.Errorf("%s on %+v: %v %q", tt.kind, tt.row, ok, why)
		}
	}
	if _, ok := (reconcile.Step{Kind: reconcile.KindRetry, HostID: "h2"}).Holds(reconcile.Now{Row: going}); ok {
		t.Error("a retry holds though the VM is on another host now")
	}
}

// The counts stay truthful while a host is not seen: what it last listed
// counts, and it is named.
func TestCountsCarryOverAnUnseenHost(t *testing.T) {
	list := func(host string, n int) fleet.Observation {
		var vms []fleet.ObservedVM
		for i := range n {
			vms = append(vms, fleet.ObservedVM{ID: "x", UID: fmt.Sprint(host, i)})
		}
		return fleet.SeenComplete(fleet.Look{HostID: host, ID: host}, vms, nil, 2)
	}
	in := reconcile.Input{Observations: map[string]fleet.Observation{"h1": list("h1", 3), "h2": list("h2", 4)}}
	first := reconcile.Plan(in)
	in.Memory = first.Memory
	in.Observations["h1"] = fleet.NotSeen(fleet.Look{HostID: "h1"}, "down")
	second := reconcile.Plan(in)
	type counts struct {
		Provider, Seen, Foreign int
		Unseen                  []string
	}
	of := func(s reconcile.Summary) counts {
		return counts{s.ProviderVMs, s.HostsSeen, s.Foreign, s.HostsUnseen}
	}
	if diff := cmp.Diff([]counts{{7, 2, 4, nil}, {7, 1, 2, []string{"h1"}}}, []counts{of(first.Summary), of(second.Summary)}); diff != "" {
		t.Error(diff)
	}
	gone := second.Memory.Keep(func(host string) bool { return host == "h2" })
	if diff := cmp.Diff(map[string]int{"h2": 4}, gone.Listed); diff != "" {
		t.Error(diff)
	}
}

// Planning host by host, as the answers come, is planning all at once.
func TestHostsArePlannedAlone(t *testing.T) {
	rows := []*fleet.VM{
		{ID: "a", UID: "A", HostID: "h1", State: fleet.VMStateRunning, Revision: 1},
		{ID: "b", UID: "B", HostID: "h2", State: fleet.VMStateRunning, Revision: 1},
	}
	obs := map[string]fleet.Observation{
		"h1": fleet.SeenComplete(fleet.Look{HostID: "h1", ID: "l1", Revision: 5}, []fleet.ObservedVM{{ID: "x", UID: "X"}}, nil, 0),
		"h2": fleet.SeenComplete(fleet.Look{HostID: "h2", ID: "l2", Revision: 5}, nil, nil, 0),
	}
	heard := map[string]uint64{"h1": 5, "h2": 5}
	together := reconcile.Plan(reconcile.Input{VMs: rows, Observations: obs, Heard: heard, Revision: 5})
	var one reconcile.Result
	for _, host := range []string{"h2", "h1"} {
		r := reconcile.Plan(reconcile.Input{
			VMs: rows, Observations: map[string]fleet.Observation{host: obs[host]}, Heard: heard, Revision: 5, Memory: one.Memory,
		})
		one.Steps, one.Memory = append(one.Steps, r.Steps...), r.Memory
	}
	if diff := cmp.Diff(together.Steps, one.Steps); diff != "" {
		t.Errorf("steps:\n%s", diff)
	}
	if diff := cmp.Diff(together.Memory, one.Memory); diff != "" {
		t.Errorf("memory:\n%s", diff)
	}
}

func TestSummaryCountsOutcomes(t *testing.T) {
	var s reconcile.Summary
	failed := errors.New("no")
	for _, kind := range []reconcile.Kind{reconcile.KindMissing, reconcile.KindOrphan, reconcile.KindDeadLetter, reconcile.KindRetry, reconcile.KindReap} {
		s.Applied(kind, nil)
		s.Applied(kind, failed)
	}
	s.Add(reconcile.Summary{TrackedVMs: 2, Aborted: "first", HostsUnseen: []string{"h"}, Duration: 2})
	s.Add(reconcile.Summary{Aborted: "second", Duration: 1, Purged: 3})
	want := reconcile.Summary{
		TrackedVMs: 2, OrphansDestroyed: 1, OrphansFailed: 1, OrphansDeadLettered: 1, VMsMissingProvider: 1,
		DestroysRetried: 1, DestroysFailed: 5, Reaped: 1, Purged: 3, HostsUnseen: []string{"h"}, Aborted: "first", Duration: 2,
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
}

func BenchmarkPlan(b *testing.B) {
	const n = 10000
	in := reconcile.Input{Revision: 10, Heard: map[string]uint64{"h1": 10}}
	var vms []fleet.ObservedVM
	for i := range n {
		uid := fmt.Sprintf("u%05d", i)
		in.VMs = append(in.VMs, &fleet.VM{ID: "fuse-" + uid, UID: uid, HostID: "h1", State: fleet.VMStateRunning, Revision: 1})
		vms = append(vms, fleet.ObservedVM{ID: "fuse-" + uid, UID: uid, Running: true})
	}
	in.Observations = map[string]fleet.Observation{"h1": fleet.SeenComplete(fleet.Look{HostID: "h1", Revision: 10}, vms, nil, 0)}
	b.ReportAllocs()
	for b.Loop() {
		if r := reconcile.Plan(in); len(r.Steps) > 0 {
			b.Fatal(r.Steps)
		}
	}
}

// News that did not get out is forgotten, that alone, and only what it told of.
func TestUntold(t *testing.T) {
	key := func(uid string) reconcile.VMKey { return reconcile.VMKey{HostID: "h1", UID: uid} }
	budget := reconcile.BudgetKey{HostID: "h1", Pass: reconcile.KindOrphan}
	m := reconcile.Memory{
		Stuck: map[reconcile.VMKey]reconcile.Strike{key("A"): {Count: 1}, key("B"): {Count: 1}},
		Idle:  map[reconcile.VMKey]reconcile.Strike{key("A"): {Count: 1}},
		Health: map[reconcile.VMKey]fleet.HealthStatus{
			key("A"): {State: fleet.HealthFailing}, key("B"): {State: fleet.HealthPassing}, key("C"): {State: fleet.HealthPassing},
		},
		Spent: map[reconcile.BudgetKey]reconcile.Spent{budget: {Exhausted: true, Window: []reconcile.Spend{{N: 3}}}},
	}
	got := m.Untold([]reconcile.Step{
		{Kind: reconcile.KindStuckSuspected, HostID: "h1", UID: "A"},
		{Kind: reconcile.KindIdleSuspected, HostID: "h1", UID: "A"},
		{Kind: reconcile.KindHealth, HostID: "h1", UID: "A", Was: fleet.HealthPassing, Is: fleet.HealthFailing},
		{Kind: reconcile.KindHealth, HostID: "h1", UID: "B", Is: fleet.HealthPassing},
		{Kind: reconcile.KindHealth, HostID: "h1", UID: "C", Is: fleet.HealthFailing}, // it changed again
		{Kind: reconcile.KindBudget, HostID: "h1", Pass: reconcile.KindOrphan},
		{Kind: reconcile.KindMissing, HostID: "h1", UID: "B"},
	})
	want := reconcile.Memory{
		Stuck: map[reconcile.VMKey]reconcile.Strike{key("B"): {Count: 1}},
		Idle:  map[reconcile.VMKey]reconcile.Strike{},
		Health: map[reconcile.VMKey]fleet.HealthStatus{
			key("A"): {State: fleet.HealthPassing}, key("C"): {State: fleet.HealthPassing},
		},
		Spent: map[reconcile.BudgetKey]reconcile.Spent{budget: {Window: []reconcile.Spend{{N: 3}}}},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	if len(m.Stuck) != 2 || !m.Spent[budget].Exhausted {
		t.Error("the memory that was given was changed")
	}
}
