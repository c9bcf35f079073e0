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

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("scrape answered %d", w.Code)
	}
	return w.Body.String()
}

func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}

func TestRequestsAndOperations(t *testing.T) {
	m := New("v1.2.3")
	first, second := m.RequestStarted(), m.RequestStarted()
	wantLines(t, scrape(t, m), "orchestrator_http_requests_in_flight 2")
	first("/v1/environments/{id}", "GET", 404, 3*time.Millisecond)
	second("/v1/environments/{id}", "BREW", 405, -1)
	closed := m.StreamOpened()
	m.StreamLagged()
	m.OperationCompleted("create", time.Second, nil)
	m.OperationCompleted("create", time.Second, fleet.Errorf(fleet.CodeUnavailable, "full"))
	m.OperationCompleted("exec", time.Second, errors.New("secret detail"))
	m.OperationCompleted("made up", time.Second, nil)
	text := scrape(t, m)
	wantLines(t, text,
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
	if !strings.Contains(text, `orchestrator_build_info{`) || !strings.Contains(text, `version="v1.2.3"`) {
		t.Error("no build info")
	}
	if strings.Contains(text, `method="other",route="/v1/environments/{id}",le=`) || strings.Contains(text, "secret detail") {
		t.Error("a duration below zero was observed, or an error's text became a label")
	}
	closed()
	wantLines(t, scrape(t, m), "orchestrator_sse_subscribers 0")
}

func TestPhasesAreBounded(t *testing.T) {
	m := New("test")
	for i := range 1000 {
		m.CreatePhase(fmt.Sprintf("step%d", i), time.Millisecond)
	}
	m.CreatePhase("step0", time.Millisecond)
	text := scrape(t, m)
	wantLines(t, text,
		`orchestrator_create_phase_seconds_count{phase="step0"} 2`,
		fmt.Sprintf(`orchestrator_create_phase_seconds_count{phase="other"} %d`, 1000-maxPhases))
	if n := strings.Count(text, "orchestrator_create_phase_seconds_count"); n != maxPhases+1 {
		t.Errorf("%d series, want %d", n, maxPhases+1)
	}
}

func TestReconcileFigures(t *testing.T) {
	m := New("test")
	m.ReconcileCompleted(Summary{TrackedVMs: 5, ProviderVMs: 5, OrphansDestroyed: 2, DestroysRetried: 1, HealthFailing: 1, Duration: time.Second})
	m.ReconcileCompleted(Summary{TrackedVMs: 6, ProviderVMs: 1, HostsUnseen: 1, OrphansDestroyed: 1, IdleVMsFailed: 1})
	wantLines(t, scrape(t, m),
		"orchestrator_reconcile_cycles_total 2",
		"orchestrator_fleet_tracked_vms 6",
		"orchestrator_fleet_provider_vms 5", // the second cycle did not see all
		"orchestrator_reconcile_hosts_unseen 1",
		"orchestrator_reconcile_orphans_destroyed_total 3",
		"orchestrator_reconcile_idle_vms_failed_total 1",
		"orchestrator_reconcile_destroys_retried_total 1",
		"orchestrator_reconcile_health_failing_vms 0",
		"orchestrator_reconcile_duration_seconds_count 2",
	)
}

func TestFleetIsReadAtScrapeTime(t *testing.T) {
	m := New("test")
	var now Fleet
	m.WatchFleet(func() Fleet { return now })
	if text := scrape(t, m); strings.Contains(text, "orchestrator_fleet_vms") {
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
			LastSeen: time.UnixMilli(1500),
		}, {Host: &fleet.Host{ID: "h2", State: fleet.HostCordoned}}},
	}
	text := scrape(t, m)
	wantLines(t, text,
		`orchestrator_fleet_vms{host="h1",state="running"} 3`,
		`orchestrator_host_info{arch="amd64",backend="qemu",host="h1",region="",state="active"} 1`,
		`orchestrator_host_last_seen_timestamp_seconds{host="h1"} 1.5`,
		`orchestrator_host_capacity{host="h1",resource="vms"} 4`,
		`orchestrator_host_allocated{host="h1",resource="cpus"} 3`,
	)
	if strings.Contains(text, `last_seen_timestamp_seconds{host="h2"}`) {
		t.Error("a host that was never seen has a time")
	}
}
