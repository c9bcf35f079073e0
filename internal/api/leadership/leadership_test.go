package leadership

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStatusOnTheWire(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		name   string
		status Status
		want   string
	}{
		{"lasting and fresh", Status{Name: "a", Version: "v", FleetID: "f", Started: now, Term: 7, Lasting: true, Store: "sqlite"},
			`{"role":"leader","name":"a","version":"v","fleet_id":"f","started_at":"2026-01-02T03:04:05Z","uptime_seconds":0,"term":7,
			"lease_lasting":true,"store":"sqlite","revision":0,"event_seq":0,"standbys":[]}`},
		{"with a deadline and standbys", Status{
			Name: "a", Address: "https://a:1", Version: "v", FleetID: "f", Started: now.Add(-time.Minute), Term: 7, Left: 9 * time.Second,
			Store: "postgres", Revision: 5, Seq: 6, CommittedAt: now.Add(-time.Second), Standbys: []string{"b", "c"},
		}, `{"role":"leader","name":"a","address":"https://a:1","version":"v","fleet_id":"f","started_at":"2026-01-02T03:03:05Z","uptime_seconds":60,
			"term":7,"lease_lasting":false,"lease_expires_at":"2026-01-02T03:04:14Z","store":"postgres","revision":5,"event_seq":6,
			"committed_at":"2026-01-02T03:04:04Z","standbys":["b","c"]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, err := json.Marshal(toWire(c.status, now))
			if err != nil {
				t.Fatal(err)
			}
			var got, want map[string]any
			if err := json.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(c.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
