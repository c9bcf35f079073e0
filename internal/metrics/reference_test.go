package metrics

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// public are the names of the seed's table and of the public server, with
// their labels.
var public = map[string]string{
	"reconcile_cycles_total": "", "reconcile_duration_seconds": "", "fleet_tracked_vms": "", "fleet_provider_vms": "",
	"reconcile_orphans_destroyed_total": "", "reconcile_orphans_failed_total": "", "reconcile_orphans_dead_lettered_total": "",
	"reconcile_stuck_tasks_suspected_total": "", "reconcile_stuck_tasks_failed_total": "", "reconcile_vms_missing_provider_total": "",
	"reconcile_health_checked_vms": "", "reconcile_health_failing_vms": "",
	"reconcile_idle_vms_suspected_total": "", "reconcile_idle_vms_failed_total": "",
	"http_requests_total": "route method code", "http_request_duration_seconds": "route method", "http_requests_in_flight": "",
	"operations_total": "op result", "operations_duration_seconds": "op",
	"fleet_vms": "state host", "host_info": "host state region backend arch", "host_last_seen_timestamp_seconds": "host",
	"host_capacity": "host resource", "host_allocated": "host resource", "fleet_snapshots": "state mode",
}

var later = []string{"fleet_egress_endpoints", "egress_provision_failures_total", "egress_teardown_failures_total"}

func reference(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestPublicNamesAreThere(t *testing.T) {
	m := New("test")
	for name, labels := range public {
		got, ok := m.series[name]
		if !ok || strings.Join(got, " ") != labels {
			t.Errorf("%s: labels %q, want %q", name, got, labels)
		}
	}
	for _, name := range later {
		if _, built := m.series[name]; built || !strings.Contains(reference(t), "`"+name+"`") {
			t.Errorf("%s is built, or the page does not say that it is not", name)
		}
	}
}

// The page names every series with its labels, and no other.
func TestReferenceIsWhatIsExported(t *testing.T) {
	page := reference(t)
	rows := regexp.MustCompile("(?m)^\\| `orchestrator_([a-z_]+)` \\| (.*?) \\|").FindAllStringSubmatch(page, -1)
	told := map[string]string{}
	for _, r := range rows {
		told[r[1]] = r[2]
	}
	m := New("test")
	for name, labels := range m.series {
		want := "–"
		if len(labels) > 0 {
			want = "`" + strings.Join(labels, "`, `") + "`"
		}
		if told[name] != want {
			t.Errorf("docs/reference/metrics.md: %s has labels %s, want %s", name, told[name], want)
		}
		delete(told, name)
	}
	if len(told) > 0 {
		t.Errorf("docs/reference/metrics.md tells of %v, which nobody exports", told)
	}
}

// Whatever is handed over, the number of series does not grow with it, but for
// the hosts that are registered.
func TestLabelsAreBounded(t *testing.T) {
	m := New("test")
	var now Fleet
	m.WatchFleet(func() Fleet { return now })
	feed := func(i int) {
		text := fmt.Sprintf("made-up-%d", i)
		m.RequestStarted()("/v1/environments/{id}", text, 200, time.Second)
		m.OperationCompleted(text, time.Second, nil)
		m.CreatePhase(text, time.Second)
		m.CommitDone(1, time.Second, text)
		m.WebhookTried(text)
		m.PlayguardPassed(PlayguardPass{Verdict: text, Reason: text, Acts: map[string]int{text: 1}, Refusals: map[string]int{text: 1}})
		m.PlayguardOperated(text, text)
		Told(m, text, text)
		PlayguardFollowed(m, text, text)
		m.ReconcileCompleted(Summary{Looks: []HostLook{{HostID: text, Result: text}}})
		now = Fleet{
			DeadLetters: map[fleet.DeadLetterKind]int{fleet.DeadLetterKind(text): 1},
			Hosts:       []HostFigures{{Host: &fleet.Host{ID: text}, Looked: true}},
		}
	}
	count := func() int {
		lines := strings.Split(text(t, m), "\n")
		return len(slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, namespace) }))
	}
	for i := range 100 {
		feed(i)
	}
	before := count()
	for i := range 500 {
		feed(1000 + i)
	}
	if after := count(); after != before {
		t.Errorf("%d series have become %d", before, after)
	}
}
