package metrics

import (
	"strings"
	"testing"
	"time"
)

func TestPlayguardFigures(t *testing.T) {
	m := New("test")
	m.PlayguardPassed(PlayguardPass{Verdict: "seen", Took: time.Second, Acts: map[string]int{"strike": 2}, Refusals: map[string]int{"dirty": 1, "apply_grace": 3}, Moved: 1})
	m.PlayguardPassed(PlayguardPass{Verdict: "unseen", Reason: "dial", Took: time.Second})
	m.PlayguardPassed(PlayguardPass{Verdict: "skipped", Took: time.Second})
	m.PlayguardOperated("up", "failed")
	m.WatchPlayguard(func() Playguard {
		return Playguard{Marquees: map[string]int{"ok": 2}, Playgrounds: map[string]int{"running": 5}, Connections: map[string]int{"live": 2}}
	})
	got := text(t, m)
	for _, want := range []string{
		`orchestrator_playguard_passes_total{reason="",verdict="seen"} 1`,
		`orchestrator_playguard_passes_total{reason="dial",verdict="unseen"} 1`,
		`orchestrator_playguard_pass_seconds_count 2`,
		`orchestrator_playguard_acts_total{act="strike"} 2`,
		`orchestrator_playguard_refusals_total{guard="dirty"} 1`,
		`orchestrator_playguard_refusals_total{guard="apply_grace"} 3`,
		`orchestrator_playguard_records_moved_total 1`,
		`orchestrator_playguard_operations_total{kind="up",result="failed"} 1`,
		`orchestrator_playguard_marquees{state="ok"} 2`,
		`orchestrator_playguard_playgrounds{state="running"} 5`,
		`orchestrator_playguard_ssh_connections{state="live"} 2`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("there is no %s", want)
		}
	}
}
