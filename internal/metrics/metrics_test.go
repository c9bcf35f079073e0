package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

func text(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("scrape answered %d", w.Code)
	}
	return w.Body.String()
}

func wantLines(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+page, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}

func TestRequestsAndOperations(t *testing.T) {
	m := New("v1.2.3")
	first, second := m.RequestStarted(), m.RequestStarted()
	wantLines(t, text(t, m), "orchestrator_http_requests_in_flight 2")
	first("/v1/environments/{id}", "GET", 404, 3*time.Millisecond)
	second("/v1/environments/{id}", "BREW", 405, -1)
	closed := m.StreamOpened()
	m.StreamLagged()
	m.OperationCompleted("create", time.Second, nil)
	m.OperationCompleted("create", time.Second, fleet.Errorf(fleet.CodeUnavailable, "full"))
	m.OperationCompleted("exec", time.Second, errors.New("secret detail"))
	m.OperationCompleted("made up", time.Second, nil)
	got := text(t, m)
	wantLines(t, got,
		"orchestrator_http_requests_in_flight 0",
		`orchestrator_http_requests_total{code="404",method="GET",route="/v1/environments/{id}"} 1`,
		`orchestrator_http_requests_total{code="405",method="other",route="/v1/environments/{id}"} 1`,
		`orchestrator_http_request_duration_seconds_count{method="GET",route="/v1/environments/{id}"} 1`,
		`orchestrator_operations_total{op="create",result="ok"} 1`,
		`orchestrator_operations_total{op="create",result="unavailable"} 1`,
		`orchestrator_operations_total{op="exec",result="internal"} 1`,
		`orchestrator_operations_total{op="other",result="ok"} 1`,
		"orchestrator_sse_subscribers 1",
		"orchestrator_sse_lagged_total 1",
	)
	if !strings.Contains(got, `orchestrator_build_info{`) || !strings.Contains(got, `version="v1.2.3"`) {
		t.Error("no build info")
	}
	if strings.Contains(got, `method="other",route="/v1/environments/{id}",le=`) || strings.Contains(got, "secret detail") {
		t.Error("a duration below zero was observed, or an error's text became a label")
	}
	closed()
	wantLines(t, text(t, m), "orchestrator_sse_subscribers 0")
}

func TestPhasesAreBounded(t *testing.T) {
	m := New("test")
	for i := range 1000 {
		m.CreatePhase(fmt.Sprintf("step%d", i), time.Millisecond)
	}
	m.CreatePhase("step0", time.Millisecond)
	got := text(t, m)
	wantLines(t, got,
		`orchestrator_create_phase_seconds_count{phase="step0"} 2`,
		fmt.Sprintf(`orchestrator_create_phase_seconds_count{phase="other"} %d`, 1000-maxPhases))
	if n := strings.Count(got, "orchestrator_create_phase_seconds_count"); n != maxPhases+1 {
		t.Errorf("%d series, want %d", n, maxPhases+1)
	}
}

func TestReconcileFigures(t *testing.T) {
	m := New("test")
	m.ReconcileCompleted(Summary{TrackedVMs: 5, ProviderVMs: 5, OrphansDestroyed: 2, DestroysRetried: 1, HealthFailing: 1, BudgetsSpent: 1, Withheld: 3, Duration: time.Second})
	m.ReconcileCompleted(Summary{TrackedVMs: 6, ProviderVMs: 5, HostsUnseen: 1, OrphansDestroyed: 1, IdleVMsFailed: 1, Skipped: 2, Aborted: true})
	wantLines(t, text(t, m),
		"orchestrator_reconcile_cycles_total 2",
		"orchestrator_reconcile_cycles_aborted_total 1",
		"orchestrator_reconcile_passes_skipped_total 2",
		"orchestrator_fleet_tracked_vms 6",
		"orchestrator_fleet_provider_vms 5",
		"orchestrator_reconcile_hosts_unseen 1",
		"orchestrator_reconcile_orphans_destroyed_total 3",
		"orchestrator_reconcile_idle_vms_failed_total 1",
		"orchestrator_reconcile_destroys_retried_total 1",
		"orchestrator_reconcile_health_failing_vms 0",
		"orchestrator_reconcile_budgets_exhausted_total 1",
		"orchestrator_reconcile_withheld_steps 0",
		"orchestrator_reconcile_duration_seconds_count 2",
	)
}

// A host that was not seen keeps the list of its last complete look, and one
// that is removed leaves no series behind.
func TestHostsOfCycles(t *testing.T) {
	m := New("test")
	m.ReconcileCompleted(Summary{Looks: []HostLook{{HostID: "a", Result: LookComplete, Took: time.Second, Tracked: 3, Listed: 2}, {HostID: "b", Result: LookUnseen, Tracked: 1}}})
	m.ReconcileCompleted(Summary{Looks: []HostLook{{HostID: "a", Result: LookPartial, Tracked: 3}, {HostID: "b", Result: "made up", Tracked: 1}}})
	wantLines(t, text(t, m),
		`orchestrator_host_looks_total{host="a",result="complete"} 1`,
		`orchestrator_host_looks_total{host="a",result="partial"} 1`,
		`orchestrator_host_looks_total{host="b",result="unseen"} 2`,
		`orchestrator_host_listed_vms{host="a"} 2`,
		`orchestrator_host_tracked_vms{host="b"} 1`,
		`orchestrator_host_seen_complete{host="a"} 0`,
		`orchestrator_host_look_duration_seconds_count 4`,
	)
	m.ReconcileCompleted(Summary{Aborted: true}) // looked at nobody
	if got := text(t, m); !strings.Contains(got, `host="b"`) {
		t.Error("an aborted cycle forgets the hosts")
	}
	m.ReconcileCompleted(Summary{Looks: []HostLook{{HostID: "a", Result: LookComplete}}})
	if got := text(t, m); strings.Contains(got, `host="b"`) {
		t.Error("a removed host has series")
	}
}

func TestFleetIsReadAtScrapeTime(t *testing.T) {
	m := New("test")
	var now Fleet
	m.WatchFleet(func() Fleet { return now })
	if got := text(t, m); strings.Contains(got, "orchestrator_fleet_vms") {
		t.Error("an empty fleet has series")
	}
	now = Fleet{
		VMs: map[StateHost]int{{fleet.VMStateRunning, "h1"}: 3},
		Hosts: []HostFigures{{
			Host: &fleet.Host{
				ID: "h1", State: fleet.HostActive, Backend: fleet.BackendQEMU,
				Capacity:  fleet.HostCapacity{CPUs: 8, RamMB: 1024, VMCount: 4, Arch: "amd64"},
				Allocated: fleet.HostCapacity{CPUs: 3},
			},
			LastSeen: time.UnixMilli(1500), Looked: true,
		}, {Host: &fleet.Host{ID: "h2", State: fleet.HostCordoned}, Looked: true, Unreachable: true, UnreachableSince: time.Unix(7, 0), Foreign: 2, Fenced: true, Strange: true, Returning: true}},
		Snapshots:   map[StateMode]int{{fleet.SnapshotStateReady, fleet.SnapshotModeAuto}: 4},
		DeadLetters: map[fleet.DeadLetterKind]int{fleet.DeadLetterStuckTask: 9, "made_up": 1},
		EventSeq:    70, EventOldest: time.Unix(5, 0), Paused: map[string]time.Time{"": time.Unix(9, 0)},
	}
	got := text(t, m)
	wantLines(t, got,
		`orchestrator_fleet_vms{host="h1",state="running"} 3`,
		`orchestrator_host_info{arch="amd64",backend="qemu",host="h1",region="",state="active"} 1`,
		`orchestrator_host_last_seen_timestamp_seconds{host="h1"} 1.5`,
		`orchestrator_host_capacity{host="h1",resource="vms"} 4`,
		`orchestrator_host_allocated{host="h1",resource="cpus"} 3`,
		`orchestrator_host_reachable{host="h1"} 1`,
		`orchestrator_host_reachable{host="h2"} 0`,
		`orchestrator_host_unreachable_since_timestamp_seconds{host="h2"} 7`,
		`orchestrator_host_foreign_vms{host="h2"} 2`,
		`orchestrator_host_fenced{host="h1"} 0`,
		`orchestrator_host_fenced{host="h2"} 1`,
		`orchestrator_host_certificate_changed{host="h1"} 0`,
		`orchestrator_host_certificate_changed{host="h2"} 1`,
		`orchestrator_host_returning{host="h1"} 0`,
		`orchestrator_host_returning{host="h2"} 1`,
		`orchestrator_fleet_snapshots{mode="auto",state="ready"} 4`,
		`orchestrator_dead_letters{kind="stuck_task"} 9`,
		`orchestrator_dead_letters{kind="orphan_destroy"} 0`,
		`orchestrator_events_total 70`,
		`orchestrator_event_oldest_timestamp_seconds 5`,
		`orchestrator_reconcile_paused_since_timestamp_seconds{host=""} 9`,
	)
	if strings.Contains(got, "made_up") {
		t.Error("a kind that nobody knows is a label")
	}
	m.WatchFleet(nil) // as on a leader that has lost the fleet
	if strings.Contains(text(t, m), "orchestrator_fleet_vms") {
		t.Error("what nobody reads any more has series")
	}
	if strings.Contains(got, `last_seen_timestamp_seconds{host="h2"}`) {
		t.Error("a host that was never seen has a time")
	}
}

func TestStoreFigures(t *testing.T) {
	m := New("test")
	lease := Lease{}
	m.WatchLease(func() Lease { return lease })
	m.WatchPool(func() Pool { return Pool{InUse: 1, Idle: 2, Max: 8, Waits: 3, Waited: 1500 * time.Millisecond} })
	disk := true
	m.WatchDisk(func() (Disk, bool) { return Disk{FreeBytes: 10, TotalBytes: 20}, disk })
	m.CommitDone(3, time.Millisecond, CommitOK)
	m.CommitDone(1, time.Second, "something else")
	m.EventDelivered(time.Millisecond)
	m.WatchWebhooks(func() Webhooks { return Webhooks{Pending: 2, Oldest: time.Unix(3, 0)} })
	m.WebhookTried(DeliveryGivenUp)
	m.WebhookTried("https://example.com/made/up")
	got := text(t, m)
	wantLines(t, got,
		"orchestrator_leader 0",
		`orchestrator_store_commits_total{result="ok"} 1`,
		`orchestrator_store_commits_total{result="unknown"} 1`,
		"orchestrator_store_commit_seconds_count 2",
		"orchestrator_store_commit_writes_sum 4",
		`orchestrator_store_pool_connections{state="in_use"} 1`,
		`orchestrator_store_pool_connections{state="max"} 8`,
		"orchestrator_store_pool_waits_total 3",
		"orchestrator_store_pool_wait_seconds_total 1.5",
		"orchestrator_data_disk_free_bytes 10",
		"orchestrator_event_delivery_seconds_count 1",
		"orchestrator_webhook_pending_deliveries 2",
		"orchestrator_webhook_oldest_pending_timestamp_seconds 3",
		`orchestrator_webhook_deliveries_total{result="given_up"} 1`,
		`orchestrator_webhook_deliveries_total{result="other"} 1`,
	)
	if strings.Contains(got, "orchestrator_lease_term") {
		t.Error("a standby has a term")
	}
	lease, disk = Lease{Leader: true, Term: 17, Left: 12 * time.Second}, false
	wantLines(t, text(t, m), "orchestrator_leader 1", "orchestrator_lease_term 17", "orchestrator_lease_left_seconds 12")
	lease.Forever = true
	got = text(t, m)
	wantLines(t, got, "orchestrator_lease_left_seconds +Inf")
	if strings.Contains(got, "data_disk") {
		t.Error("a disk that could not be asked has series")
	}
}
